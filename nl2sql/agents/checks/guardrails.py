"""The deterministic guardrails in their order, and the fallback candidate [the specification's sections 4 and 7.4].

>>> from nl2sql.databases.schema import Column, Schema, Table
>>> schema = Schema((Table("customers", (Column("name"),)),))
>>> canonicalize_table_casing("SELECT name FROM CUSTOMERS", schema)
'SELECT name FROM customers'

clean (``candidate``) -> postprocess -> projection contract -> table casing. Each works on tokens or the tree, is
idempotent, and leaves the statement alone when in doubt.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from nl2sql.agents.checks.candidate import clean_candidate_with_reason
from nl2sql.agents.checks.constraints.evidence import read_cues
from nl2sql.databases.schema import Schema
from nl2sql.sql.text import KEYWORDS, Tree, edited, parse, singular, span, tokens, top_level, words

CUTTABLE = ("postprocess", "projection_contract", "table_casing")


def apply_guardrails(
    raw_sql: str, nlq: str, schema: Schema, *, cut: Collection[str] = (), strip_unasked: bool = False
) -> tuple[str, str | None]:
    """All four guardrails: ``(sql, None)`` when accepted, ``("", "clean_reject:<reason>")`` when rejected.

    cut: those of ``CUTTABLE`` that are left out. strip_unasked: see ``guarded_postprocess``.
    """
    sql, reason = clean_candidate_with_reason(raw_sql, schema.dialect)
    if sql is None:
        return "", f"clean_reject:{reason}"
    if "postprocess" not in cut:
        sql = guarded_postprocess(sql, nlq, strip_unasked=strip_unasked, dialect=schema.dialect)
    if "projection_contract" not in cut:
        sql = enforce_projection_contract(sql, nlq)
    return sql if "table_casing" in cut else canonicalize_table_casing(sql, schema), None


def vanilla_candidate(
    nlq: str, schema_summary: str, generate: Callable[[str, str], str], schema: Schema, **options: Any
) -> str:
    """The deterministic fallback: one single-shot ``generate(nlq, schema_summary)`` through the guardrails.

    options: of ``apply_guardrails``. Returns "" when they reject what came. What ``generate`` raises is the caller's.
    """
    return apply_guardrails(generate(nlq, schema_summary), nlq, schema, **options)[0]


def canonicalize_table_casing(sql: str, schema: Schema) -> str:
    """Table names in FROM and JOIN, and as prefixes of columns, in the schema's own casing.

    Every other character stays, aliases, strings, columns and quotes included. Names of CTEs and aliases are no
    table names even where they look like one. SQL that sqlglot cannot parse comes back as it is, and a name that is a
    table's own: other engines than SQLite have tables that differ in casing alone.
    """
    tree = parse(sql)
    if tree is None:
        return sql
    names = {table.name.lower(): table.name for table in schema.tables}
    own = {table.name for table in schema.tables}
    aliases = {alias.name.lower() for alias in tree.find_all(exp.TableAlias)}  # those of CTEs among them
    ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    replacements = []
    for identifier, is_prefix in _table_identifiers(tree):
        name = identifier.name
        canonical = names.get(name.lower())
        if canonical is None or name in own or name.lower() in (aliases if is_prefix else ctes):
            continue
        where = span(identifier)
        if where is not None and sql[where[0] : where[1]].strip('"`[]') == name:
            start, end = where
            quotes = (end - start - len(name)) // 2
            replacements.append((start + quotes, end - quotes, canonical))
    return edited(sql, replacements)


def _table_identifiers(tree: Tree) -> list[tuple[Tree, bool]]:
    tables = [(table.this, False) for table in tree.find_all(exp.Table)]
    prefixes = [(column.args.get("table"), True) for column in tree.find_all(exp.Column)]
    return [(name, is_prefix) for name, is_prefix in tables + prefixes if isinstance(name, exp.Identifier)]


# ------------------------------------------------------------------------------------ postprocess [4.1.2]
# It leaves ORDER BY and LIMIT as the model wrote them: a question asks for an order in more words than a list
# holds ("tops", "runner-up", "by seniority"), and an order that nobody asked for changes no rows. The letter of
# 4.1.2 strips both where no known cue asks for a ranking: ``strip_unasked``.

_RANKING_CUES = ("ranking", "superlative", "limit", "max", "min")  # of constraints/cues.yaml
_SAFE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_QUERY_STARTS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN, TokenType.VALUES})
_TEXT_TOKENS = frozenset(
    {TokenType.STRING, TokenType.IDENTIFIER, TokenType.NATIONAL_STRING, TokenType.HEX_STRING, TokenType.RAW_STRING}
)


def guarded_postprocess(sql: str, nlq: str, *, strip_unasked: bool = False, dialect: str = "sqlite") -> str:
    """Normalise surface noise; with ``strip_unasked`` also strip an outermost ORDER BY and LIMIT without a ranking cue.

    >>> guarded_postprocess("SELECT name\\n FROM customers LIMIT 5;;", "List all customers.")
    'SELECT name FROM customers LIMIT 5;'

    Arguments: ``sql`` one cleaned statement; ``nlq`` the question, read with ``strip_unasked`` alone; ``dialect`` the
    database's, which decides what a token is. Returns the statement on one line with one ``;``. Noise is: whitespace
    and comments between tokens, trailing semicolons, and in SQLite backticks or brackets round a name that needs none.
    Text that does not lex comes back stripped and otherwise as it is.
    """
    stream = tokens(sql, dialect)
    while stream and stream[-1].token_type == TokenType.SEMICOLON:
        stream.pop()
    if not stream:
        return sql.strip()
    if strip_unasked and not any(cue in read_cues(nlq) for cue in _RANKING_CUES):
        clauses = (i for i, t in top_level(stream) if t.token_type in (TokenType.ORDER_BY, TokenType.LIMIT))
        stream = stream[: next(clauses, None)] if stream[0].token_type in _QUERY_STARTS else stream
    return _one_line(sql, stream, dialect)


def _one_line(sql: str, stream: list[Token], dialect: str) -> str:
    parts: list[str] = []
    end = stream[0].start
    for token in stream:
        gap = sql[end : token.start]
        if gap.strip() and not gap.lstrip().startswith(("--", "/*")):
            return sql.strip()  # characters the tokens do not account for: leave the text alone
        parts.append(" " if gap else "")
        parts.append(_token_text(sql, token, dialect))
        end = token.end + 1
    return "".join(parts) + ";"


def _token_text(sql: str, token: Token, dialect: str) -> str:
    text = sql[token.start : token.end + 1]
    if token.token_type not in _TEXT_TOKENS:
        return " ".join(text.split())  # "GROUP BY" is one token, with whatever stands between its words
    if dialect != "sqlite" or token.token_type != TokenType.IDENTIFIER or text[0] not in "`[":
        return text  # elsewhere brackets are arrays, and other words are reserved
    name, beside = text[1:-1], sql[max(token.start - 1, 0) : token.start] + sql[token.end + 1 : token.end + 2]
    glued = any(character.isalnum() or character in "_$" for character in beside)  # "SELECT[name]FROM t"
    return text if glued or not _SAFE_NAME.match(name) or name.lower() in KEYWORDS else name


# ---------------------------------------------------------------------------- the projection contract [4.1.3]
# Only where the question itself enumerates fields ("Show the name, age and city of ...") and each of them is
# exactly one item of the outermost SELECT: the asked ones come in the question's order, and items nobody asked for
# go where the SQL accounts for every other word of the question ("of all members" FROM members): any other word
# may ask for one.

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
_CALLED: dict[type[exp.Expr], str] = {
    exp.Count: "count number",
    exp.Avg: "average avg mean",
    exp.Sum: "total sum",
    exp.Max: "maximum max highest largest",
    exp.Min: "minimum min lowest smallest",
}
_AGGREGATES = {word: kind for kind, called in _CALLED.items() for word in called.split()}
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

    >>> enforce_projection_contract("SELECT id, city, name FROM shops", "Show the name and city of each.")
    'SELECT name, city FROM shops'

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
    tree, stream = parse(sql), tokens(sql)
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
    listed = [_text_words(part) for part in _SEPARATOR.split(phrase) if part.strip()]
    fields = [frozenset(word for word in named if word not in _FILLERS.split()) for named in listed]
    if len(fields) < 2 or any(not 1 <= len(field) <= 4 for field in fields) or len(set(fields)) < len(fields):
        return None
    before = nlq[: lead.start()].strip(" ,.")
    one_sentence = not re.search(r"[.?!;]\s*\S", tail)
    return fields, one_sentence and not before and not _MORE_TO_COME.search(tail)


def _text_words(text: str) -> list[str]:
    return _name_words(text.lower())


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
    tables = frozenset(word for table in tree.find_all(exp.Table) for word in _name_words(table.name))
    return [_Item(a, b, t, _item_words(t, tables)) for (a, b), t in zip(spans, trees, strict=True)]


def _item_words(tree: Tree, tables: frozenset[str]) -> frozenset[str]:
    column = tree.find(exp.Column)
    own = frozenset(_name_words(column.name if column is not None else tree.alias))
    return own - tables or own


def _match(fields: list[frozenset[str]], items: list[_Item]) -> list[_Item] | None:
    """One item per field, each found by exactly one field; None otherwise."""
    matched = [item for field in fields if (item := _only_match(field, items)) is not None]
    told_apart = all(item not in matched[:at] for at, item in enumerate(matched))
    return matched if told_apart and len(matched) == len(fields) else None


def _only_match(field: frozenset[str], items: list[_Item]) -> _Item | None:
    # "number" and "count" alone ask for a count ("the number of ..."); "phone number" is a column.
    asked = {_AGGREGATES[word] for word in field if word in _AGGREGATES and (len(field) == 1 or word not in _COUNTS)}
    if asked:
        aggregates = [item for item in items if any(item.tree.find(kind) for kind in asked)]
        return aggregates[0] if len(aggregates) == 1 else None
    columns = [item for item in items if item.column is not None and item.words]
    equal = [item for item in columns if item.words == field]
    wider = [item for item in columns if field < item.words]
    fitting = equal or wider or [item for item in columns if item.words < field]
    return fitting[0] if len(fitting) == 1 else None


def _accounted_for(nlq: str, fields: list[frozenset[str]], tree: exp.Select, matched: list[_Item]) -> bool:
    """Whether every word besides the fields relates things, or stands in the SQL outside of items nobody asked for."""
    own = {id(node) for item in matched for node in item.tree.walk()}
    listed = {id(node) for item in tree.expressions for node in item.walk()} - own
    used = (n.name for n in tree.find_all(exp.Identifier, exp.Literal) if id(n) not in listed)
    vocabulary = {*_text_words(f"{_STOPS} {_FILLERS} and"), *itertools.chain(*fields), *_name_words(" ".join(used))}
    return set(_text_words(_LEAD.sub(" ", nlq, count=1))) <= vocabulary


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
