"""``enforce_projection_contract`` [the specification's 4.1.3]; re-exported by ``guardrails``.

>>> enforce_projection_contract("SELECT id, city, name FROM shops", "Show the name and city of each.")
'SELECT name, city FROM shops'

Only where the question itself enumerates fields ("Show the name, age and city of ...") and each of them is exactly
one item of the outermost SELECT: the asked ones come in the question's order, and items nobody asked for go where
the SQL accounts for every other word of the question ("of all members" FROM members): any other word may ask for one.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from nl2sql.sql.text import Tree, edited, parse, tokens, top_level
from nl2sql.sql.words import singular, words

_LEAD = re.compile(
    r"\b(?:show|list|give|find|return|display|report|retrieve|get|print|provide|select|fetch|tell|output|state"
    r"|what\s+(?:are|is|were|was))\s+(?:me\s+|us\s+|out\s+)?",
    re.I,
)
_STOPS = (
    "of for from in on at who whose whom that which where with by when having has have had to as if sorted "
    "ordered order using per across among between under over above below is are was were"
)
_STOP = re.compile(rf"\b(?:{'|'.join(_STOPS.split())})\b|[.?!;:()\"']", re.I)
_MORE_TO_COME = re.compile(
    r"\b(?:and|also|including|plus|along|together|well|their|its|his|her|how|what|when|where|why|then|respectively"
    r"|show|list|give|find|return|display|tell)\b",
    re.I,
)
_SEPARATOR = re.compile(r"\s*(?:,\s*(?:and\b|&)?|\band\b|&|\bplus\b)\s*", re.I)
_FILLERS = (
    "the a an their its his her all each both every respective corresponding different distinct unique also me us "
    "full complete only just"
)
_FILLER = frozenset(_FILLERS.split())
_AGGREGATES: dict[str, type[exp.Expr]] = {
    "count": exp.Count,
    "number": exp.Count,
    "average": exp.Avg,
    "avg": exp.Avg,
    "mean": exp.Avg,
    "total": exp.Sum,
    "sum": exp.Sum,
    "maximum": exp.Max,
    "max": exp.Max,
    "highest": exp.Max,
    "largest": exp.Max,
    "minimum": exp.Min,
    "min": exp.Min,
    "lowest": exp.Min,
    "smallest": exp.Min,
}
_COUNTS = frozenset({"number", "count"})
_GENERIC = frozenset({"id", "name", "code", "number", "no", "key", "type"})


@dataclass(frozen=True)
class _Item:
    """One select item: its span in the text, its tree, and the words of its name with the table's words left out."""

    start: int
    end: int
    tree: Tree
    words: frozenset[str]

    @property
    def column(self) -> exp.Column | None:
        inner = self.tree.this if isinstance(self.tree, exp.Alias) else self.tree
        return inner if isinstance(inner, exp.Column) and not isinstance(inner.this, exp.Star) else None


def enforce_projection_contract(sql: str, nlq: str) -> str:
    """Prune select items that the question's own enumeration leaves out; put the others in its order.

    Arguments: ``sql`` one cleaned statement; ``nlq`` the question. Returns ``sql``, byte for byte the same outside
    the select list. Nothing is done for set operations, ``SELECT *``, ordinals in GROUP BY or ORDER BY, or when an
    enumerated field matches no item or several. Only plain columns are pruned, never under DISTINCT, never one that
    the question mentions anywhere, that is a GROUP BY key or whose alias is used, and only when the question asks for
    nothing after its enumeration.
    """
    enumeration = enumerated_fields(nlq)
    if enumeration is None:
        return sql
    fields, _ = enumeration
    tree = parse(sql)
    stream = tokens(sql)
    if not isinstance(tree, exp.Select) or stream is None or _uses_ordinals(tree):
        return sql
    items = _items(sql, tree, stream)
    if items is None or len(items) < 2:
        return sql
    matched = _match(fields, items)
    if matched is None:
        return sql
    prunable = not tree.args.get("distinct") and _accounted_for(nlq, fields, tree, matched)
    owners = {column.table for item in matched for column in item.tree.find_all(exp.Column)}
    kept = [i for i in items if i in matched or not (prunable and _nobody_asked(i, tree, nlq, owners))]
    in_order = iter(matched)
    arranged = [next(in_order) if item in matched else item for item in kept]
    if arranged == items:
        return sql
    text = ", ".join(sql[item.start : item.end] for item in arranged)
    return edited(sql, [(items[0].start, items[-1].end, text)])


def enumerated_fields(nlq: str) -> tuple[list[frozenset[str]], bool] | None:
    """The fields a question enumerates, as word sets in its order, and whether that is all it asks for.

    None where it enumerates fewer than two. ``first and last names`` gives {first} and {last, name}.
    """
    lead = _LEAD.search(nlq)
    if lead is None:
        return None
    rest = nlq[lead.end() :]
    stop = _STOP.search(rest)
    phrase, tail = (rest[: stop.start()], rest[stop.start() :]) if stop else (rest, "")
    fields = [_field_words(part) for part in _SEPARATOR.split(phrase) if part.strip()]
    if len(fields) < 2 or any(not 1 <= len(field) <= 4 for field in fields) or len(set(fields)) < len(fields):
        return None
    before = nlq[: lead.start()].strip(" ,.")
    one_sentence = not re.search(r"[.?!;]\s*\S", tail)
    return fields, one_sentence and not before and not _MORE_TO_COME.search(tail)


def _field_words(phrase: str) -> frozenset[str]:
    return frozenset(word for word in _text_words(phrase) if word not in _FILLER)


def _text_words(text: str) -> list[str]:
    return [singular(word) for word in words(text.lower())]


def _name_words(name: str) -> list[str]:
    return [singular(word) for word in words(name)]


def _uses_ordinals(tree: exp.Select) -> bool:
    group = tree.args.get("group")
    order = tree.args.get("order")
    keys = [*(group.expressions if group else []), *(key.this for key in (order.expressions if order else []))]
    bare = (key.this if isinstance(key, exp.Collate) else key for key in (key.unnest() for key in keys))
    return any(isinstance(key, exp.Literal) for key in bare)  # "2 COLLATE NOCASE" is an ordinal as well


def _items(sql: str, tree: exp.Select, stream: list[Token]) -> list[_Item] | None:
    """The outermost select list, token spans beside trees; None where the two do not agree."""
    flat = list(top_level(stream))
    begin = next((index for index, token in flat if token.token_type == TokenType.SELECT), None)
    if begin is None:
        return None
    begin += 1
    while begin < len(stream) and stream[begin].token_type in (TokenType.DISTINCT, TokenType.ALL):
        begin += 1
    end = next((i for i, t in flat if i >= begin and t.token_type == TokenType.FROM), None)
    if end is None or end == begin:
        return None
    commas = [i for i, t in flat if begin <= i < end and t.token_type == TokenType.COMMA]
    edges = [begin - 1, *commas, end]
    spans = [(stream[a + 1].start, stream[b - 1].end + 1) for a, b in itertools.pairwise(edges) if a + 1 < b]
    trees = tree.expressions
    if len(spans) != len(trees) or len(spans) != len(commas) + 1 or any(t.is_star for t in trees):
        return None
    tables = _table_words(tree)
    return [_Item(a, b, t, _item_words(t, tables)) for (a, b), t in zip(spans, trees, strict=True)]


def _table_words(tree: exp.Select) -> frozenset[str]:
    return frozenset(word for table in tree.find_all(exp.Table) for word in _name_words(table.name))


def _item_words(tree: Tree, tables: frozenset[str]) -> frozenset[str]:
    column = tree.find(exp.Column)
    own = frozenset(_name_words(column.name if column is not None else tree.alias))
    return own - tables or own


def _match(fields: list[frozenset[str]], items: list[_Item]) -> list[_Item] | None:
    """One item per field, each found by exactly one field; None otherwise."""
    matched: list[_Item] = []
    for field in fields:
        item = _only_match(field, items)
        if item is None or item in matched:
            return None
        matched.append(item)
    return matched


def _only_match(field: frozenset[str], items: list[_Item]) -> _Item | None:
    # "number" and "count" alone ask for a count ("the number of ..."); "phone number" is a column.
    asked = {_AGGREGATES[word] for word in field if word in _AGGREGATES and (len(field) == 1 or word not in _COUNTS)}
    if asked:
        aggregates = [item for item in items if any(item.tree.find(kind) for kind in asked)]
        return aggregates[0] if len(aggregates) == 1 else None
    columns = [item for item in items if item.column is not None and item.words]
    for fits in (
        lambda own: own == field,
        lambda own: field < own,
        lambda own: own < field,
    ):
        fitting = [item for item in columns if fits(item.words)]
        if fitting:
            return fitting[0] if len(fitting) == 1 else None
    return None


def _accounted_for(nlq: str, fields: list[frozenset[str]], tree: exp.Select, matched: list[_Item]) -> bool:
    """Whether every word besides the fields relates things, or stands in the SQL outside of items nobody asked for."""
    own = {id(node) for item in matched for node in item.tree.walk()}
    listed = {id(node) for item in tree.expressions for node in item.walk()} - own
    used = (n.name for n in tree.find_all(exp.Identifier, exp.Literal) if id(n) not in listed)
    known = {*_text_words(f"{_STOPS} {_FILLERS} and"), *itertools.chain(*fields), *_name_words(" ".join(used))}
    return set(_text_words(_LEAD.sub(" ", nlq, count=1))) <= known


def _nobody_asked(item: _Item, tree: exp.Select, nlq: str, owners: set[str]) -> bool:
    """A plain column that the question does not name, of a table that an asked one comes from; no group's key.

    owners: as the items that were asked for name their tables. An alias that the query uses elsewhere stays, too.
    """
    column = item.column
    if column is None or column.table not in owners or (item.words - _GENERIC or item.words) & set(_text_words(nlq)):
        return False
    alias = item.tree.alias.lower() if isinstance(item.tree, exp.Alias) else ""
    group = tree.args.get("group")
    keys = {key.name.lower() for key in group.find_all(exp.Column)} if group is not None else set()
    if column.name.lower() in keys:
        return False
    return not alias or all(c.name.lower() != alias for c in tree.find_all(exp.Column) if c is not column)
