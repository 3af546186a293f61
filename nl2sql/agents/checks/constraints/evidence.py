"""Facts about a query that decide whether it does what a cue asks for, by this way or another.

>>> from nl2sql.agents.checks.constraints.shape import read_shape
>>> [has_count(read_shape(f"SELECT {item} FROM customers")) for item in ("COUNT(*)", "name")]
[True, False]

Each function answers one yes-or-no question about a ``QueryShape``; a gate rejects only where every legitimate way
is missing. Doubt is settled for the query: a wrong rejection costs a right answer, a missed one nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from sqlglot import exp

from nl2sql.agents.checks.constraints.shape import (
    ColumnUse,
    QueryShape,
    aggregate_name,
    bare_columns,
    is_aggregate_call,
)
from nl2sql.databases.schema import Schema
from nl2sql.machine import from_yaml
from nl2sql.sql.text import OTHERS, QUOTED, SCALES, TENS, UNITS, WORDS, as_digits


def stores(shape: QueryShape, kind: str) -> bool:
    """Whether the query uses a column whose name says that it stores such a value already."""
    words = lexicon().stored[kind]
    return any(use.words & words for use in shape.columns)


def is_quantity(use: ColumnUse) -> bool:
    """A number that is no key, by its type, or by its name where the type does not say (VARCHAR amounts exist)."""
    return use.measure or (bool(use.words & lexicon().stored["count"]) and not use.identity)


def projects_stored_count(shape: QueryShape) -> bool:
    """Whether the SELECT list holds a quantity or a computed value."""
    return shape.arithmetic or any(is_quantity(use) for use in shape.projected)


def has_count(shape: QueryShape) -> bool:
    """COUNT or another aggregate shown, or one used to filter or order, or a stored count in either place."""
    if shape.projected_aggregates or projects_stored_count(shape):
        return True
    if any(use.plural for use in shape.projected):  # ``years_played``: the question's noun decides (intent)
        return True
    return not shape.star and (bool(shape.aggregates) or stores(shape, "explicit_count"))


def has_sum(shape: QueryShape) -> bool:
    """SUM or COUNT; a stored total; a sum of columns; numbers listed row by row, or of one pinned row."""
    if shape.aggregates & {"SUM", "COUNT"} or stores(shape, "sum"):
        return True
    if any(p.find(exp.Add) for leg in shape.legs for p in leg.expressions):
        return True
    if shape.group:
        return False
    numbers_only = all(is_quantity(use) or not use.column for use in shape.projected)
    return not numbers_only or is_pinned(shape)


def has_average(shape: QueryShape) -> bool:
    """AVG, a quotient (or a scaled number that the question gave), a stored average, or "average" as a value."""
    if "AVG" in shape.aggregates or shape.scaled or stores(shape, "avg"):
        return True
    for quotient in shape.tree.find_all(exp.Div):  # by a number alone it converts units
        if not isinstance(quotient.right.unnest(), exp.Literal):
            return True
        if quotient.left.find(exp.Add) is not None or any(is_aggregate_call(n) for n in quotient.left.walk()):
            return True
    return any(word in value for word in lexicon().stored["avg"] for value in shape.strings)


def is_extreme(shape: QueryShape) -> bool:
    """Whether rows are picked by rank, or a stored maximum or rank is used."""
    return picks_extreme(shape) or stores_extreme(shape)


def picks_extreme(shape: QueryShape) -> bool:
    """MAX or MIN, LIMIT, a rank window, ALL, or "none is greater"."""
    return bool(shape.aggregates & {"MAX", "MIN"}) or shape.has_limit or shape.ranked or shape.negated


def stores_extreme(shape: QueryShape) -> bool:
    """A column called like a maximum, a minimum or a rank."""
    ranks = lexicon().stored["rank"]
    ranked = any(use.words & ranks and (use.measure or not use.column) for use in shape.columns)
    return ranked or stores(shape, "max") or stores(shape, "min")


def has_groups(shape: QueryShape) -> bool:
    """Whether rows are grouped, or things are aggregated one by one another way, or nothing is aggregated.

    Other ways: windows, correlated or parallel subqueries, legs of a set operation, ratios ("per"), one CASE for
    each group, and division ("every" as NOT EXISTS ... NOT EXISTS).
    """
    if shape.group or shape.window or shape.correlated or shape.negated or shape.set_operation:
        return True
    if shape.derived_tables > 1 or not shape.projected_aggregates:
        return True
    projections = [p for leg in shape.legs for p in leg.expressions]
    cases = sum(p.find(exp.Case, exp.If, exp.Filter) is not None for p in projections)
    return cases > 1 or any(p.find(exp.Div) is not None for p in projections)


def has_limit(shape: QueryShape, limit: int) -> bool:
    """LIMIT of that many, or a rank compared with it; two or three may also be picked one by one.

    The one extreme may be named by a value (``city = 'Tokyo'`` for the largest city): the question decides (intent).
    """
    if limit == 1:
        return is_extreme(shape) or bool(shape.strings)
    by_hand = limit <= 3 and (shape.subquery or bool(shape.set_operation))
    return float(limit) in shape.numbers or by_hand


def has_order(shape: QueryShape, *, extreme: bool) -> bool:
    return shape.order or (extreme and (is_extreme(shape) or bool(shape.strings)))


def has_distinct(shape: QueryShape) -> bool:
    """Whether duplicates are removed, or cannot arise, or would be rows that differ elsewhere."""
    if shape.distinct or shape.group or shape.set_operation:
        return True
    if any(use.unique for use in shape.projected):
        return True
    if len(shape.tables) > 1 and not shape.subquery:
        return False
    return not shape.projected or any(use.identity for use in shape.projected)


def counts_distinct(shape: QueryShape) -> bool:
    """Whether what is counted differs row by row: DISTINCT, a derived table, or a key of the only table."""
    if shape.distinct or shape.derived_tables or shape.set_operation or "COUNT" not in shape.projected_aggregates:
        return True
    if len(shape.tables) > 1:
        return False
    counted = {c.name.lower() for n in shape.tree.find_all(exp.Count) for c in n.find_all(exp.Column)}
    return any(use.unique and use.name.lower() in counted for use in shape.columns)


def is_pinned(shape: QueryShape) -> bool:
    """Whether a WHERE equality names the one row that a projected number is taken from."""
    tables = {use.table for use in shape.projected}
    by_name = {(use.name.lower()): use for use in shape.columns}
    for leg in shape.legs:
        where = leg.args.get("where")
        for equal in where.find_all(exp.EQ) if where else ():
            for side in (equal.left, equal.right):
                use = by_name.get(side.name.lower()) if isinstance(side, exp.Column) else None
                if use and use.identity and use.table in tables:
                    return True
    return False


# --------------------------------------------------------------------------------- faults of the query alone


def lacks_grouping(shape: QueryShape) -> bool:
    """An aggregate over all rows beside a column of single rows, or used to order or filter single rows."""
    return any(_ungrouped(leg, shape) for leg in shape.legs)


def _own_aggregates(leg: exp.Select) -> Iterator[exp.Expr]:
    """Aggregates of the SELECT list, less window functions and those of subqueries."""
    for node in (node for projection in leg.expressions for node in projection.walk()):
        windowed = isinstance(node.parent, exp.Window)
        if is_aggregate_call(node) and not windowed and node.find_ancestor(exp.Select) is leg:
            yield node


def _ungrouped(leg: exp.Select, shape: QueryShape) -> bool:
    if leg.args.get("group"):
        return False
    named = {aggregate_name(node) for node in _own_aggregates(leg)}
    bare = [shape.use(c) for projection in leg.expressions for c in bare_columns(projection)]
    if named - {"MAX", "MIN"} and not _all_fixed(leg, [use for use in bare if use], shape):
        return True
    order = leg.args.get("order")
    own = order.walk(prune=lambda node: isinstance(node, (exp.Query, exp.Window))) if order is not None else ()
    in_order = any(is_aggregate_call(node) for node in own)
    return leg.args.get("having") is not None or (in_order and bool(bare or named))


def _all_fixed(leg: exp.Select, bare: list[ColumnUse], shape: QueryShape) -> bool:
    """Whether WHERE leaves one value of every column: by itself, by its row's name, or as a derived constant."""
    where = leg.args.get("where")
    fixed: list[ColumnUse] = []
    for equal in where.find_all(exp.EQ) if where else ():
        sides = [use for c in equal.find_all(exp.Column) if (use := shape.use(c)) and not use.derived]
        fixed += sides if len(sides) == 1 else []  # two columns: a join; ``= "value"`` resolves to no column
    names = {use.name.lower() for use in fixed}
    pinned = {use.table for use in fixed if use.identity}
    return all(use.derived or use.name.lower() in names or use.table in pinned for use in bare)


def lacks_aggregate(shape: QueryShape, schema: Schema | None) -> bool:
    """A number, a key or a computed value of single rows shown for a group that does not determine it.

    SQLite takes such a value from an arbitrary row of the group (except beside MAX or MIN).
    """
    for leg in shape.legs:
        group = leg.args.get("group")
        if group is None or any(aggregate_name(n) in ("MAX", "MIN") for n in _own_aggregates(leg)):
            continue
        if len(leg.expressions) > 1 and any(p.is_star for p in leg.expressions) and not list(_own_aggregates(leg)):
            return True
        if schema is None:
            continue
        keys = [shape.use(c) for e in group.expressions for c in bare_columns(_unaliased(e, leg))]
        for projection in leg.expressions:
            computed = projection.find(exp.Add, exp.Sub, exp.Mul, exp.Div) is not None
            for column in bare_columns(projection):
                use = shape.use(column)
                other_key = use and use.unique and all(k and k.table != use.table for k in keys)
                shown = use and (use.measure or other_key or computed)
                if use and shown and not any(k and _determines(k, use, schema, keys, shape.joined) for k in keys):
                    return True
    return False


def _unaliased(node: exp.Expr, leg: exp.Select) -> exp.Expr:
    """The expression that a GROUP BY term stands for: an ordinal or an alias of the SELECT list, else itself."""
    if isinstance(node, exp.Literal) and node.is_int and 0 < int(node.this) <= len(leg.expressions):
        return leg.expressions[int(node.this) - 1]
    for projection in leg.expressions:
        if isinstance(projection, exp.Alias) and projection.alias.lower() == node.name.lower() and node.name:
            return projection.this
    return node


def _determines(
    key: ColumnUse,
    use: ColumnUse,
    schema: Schema,
    keys: list[ColumnUse | None],
    joined: Iterable[tuple[ColumnUse, ColumnUse]],
) -> bool:
    """Whether one value of a grouping column leaves one value of ``use``."""
    if key.name.lower() == use.name.lower():
        return True
    table = schema.table(use.table)
    if table is None or key.column is None:
        return True
    primary = {c.name.lower() for c in table.columns if c.primary_key}
    if primary and primary <= {k.name.lower() for k in keys if k}:
        return True
    if key.table == use.table:
        return key.unique or (not primary and key.identity) or (key.identity and not key.foreign and not key.id_like)
    for pair in joined:
        for left, right in (pair, pair[::-1]):
            if (left.table, left.name.lower()) == (key.table, key.name.lower()) and right.table == use.table:
                return right.unique or (not primary and (right.identity or right.id_like))
    owner = schema.table(key.table)
    references = [fk for fk in owner.foreign_keys if key.name.lower() in map(str.lower, fk.columns)] if owner else []
    if references:
        return any(fk.ref_table.lower() == use.table for fk in references)
    return not primary and not key.unique


# --------------------------------------------------------------------------------------------- cues
# They say only which words are there; what a query must then look like is decided above, with the
# alternatives that make a literal reading of cues wrong. Other languages than English yield none.

COUNTED = (*UNITS, TENS[0])  # the number words of ``<n>``; larger ones become digits
_TOKEN = re.compile(r"[^\W\d_]+|\d+(?:\.\d+)?|[,;:?!]|\.(?=\s|$)")


def normalise(nlq: str) -> str:
    """Lower-case words parted and framed by single spaces; quoted values become the token ``@``."""
    parts = QUOTED.split(nlq.replace("’s", " s").replace("'s", " s"))
    words = " @ ".join(" ".join(_TOKEN.findall(as_digits(part.lower()))) for part in parts)
    return f" {words} ".replace("  ", " ")


def _compile(phrases: Iterable[str], words: Mapping[str, list[str]]) -> re.Pattern[str] | None:
    """One pattern that matches any of the phrases in a normalised question."""
    compiled = [_phrase(phrase, words) for phrase in phrases]
    return re.compile("|".join(compiled)) if compiled else None


def _phrase(phrase: str, words: Mapping[str, list[str]]) -> str:
    out = "(?<= )"
    for word in phrase.split():
        if word == "...":
            out += r"(?:[^ ,;:?!.]+ ){0,4}?"
        elif word == "<clause>":
            out += "(?:[^ ,;:?!.]+ )*"
        elif word == "_":
            out += "[^ ,;:?!.]+ "
        elif word == "<n>":
            out += r"(?:\d+|" + "|".join(COUNTED[1:]) + ") "
        else:
            choices = (words[part[1:]] if part.startswith("$") else [part] for part in word.split("|"))
            out += "(?:" + "|".join(re.escape(w) for choice in choices for w in choice) + ") "
    return out


@dataclass(frozen=True)
class Lexicon:
    """The compiled content of ``cues.yaml``."""

    masks: re.Pattern[str] | None
    cues: Mapping[str, tuple[re.Pattern[str] | None, re.Pattern[str] | None]]  # what is one, and where it is none
    stored: Mapping[str, frozenset[str]]
    numbers: Mapping[str, int]
    stop: frozenset[str]


@cache
def lexicon() -> Lexicon:
    """The packaged cues, read once."""
    data = from_yaml(Path(__file__).with_name("cues.yaml").read_text(encoding="utf-8"))
    words = data["words"]
    return Lexicon(
        masks=_compile(data["masks"], words),
        cues={n: (_compile(cue["any"], words), _compile(cue["unless"], words)) for n, cue in data["cues"].items()},
        stored={name: frozenset(stored) for name, stored in data["stored"].items()},
        numbers={word: WORDS[word] for word in COUNTED} | OTHERS,
        stop=frozenset(data["stop"]),
    )


def _hide(text: str, pattern: re.Pattern[str] | None) -> str:
    """Overwrite every word inside a match with ``~``; positions stay."""
    return pattern.sub(lambda m: re.sub("[^ ]", "~", m.group()), text) if pattern else text


@dataclass(frozen=True)
class Cues:
    """The cues found in one question: name -> (matched words, position) in reading order."""

    raw: str  # the question in lower case
    text: str  # its normalised words
    matches: Mapping[str, tuple[tuple[str, int], ...]]

    def __contains__(self, name: str) -> bool:
        return bool(self.matches.get(name))

    def first(self, name: str) -> int:
        """Position of the first match of a cue that is there."""
        return self.matches[name][0][1]

    def words(self, name: str) -> list[str]:
        return [word for word, _ in self.matches.get(name, ())]

    def numbers(self, name: str) -> list[int]:
        """The numbers written inside the matches of a cue; "two hundred" is one."""
        number_words, found = lexicon().numbers, []
        tokens = [token for words in self.words(name) for token in words.split()]
        for token, after in itertools.pairwise([*tokens, ""]):
            if token in number_words or token.isdecimal():
                found.append((number_words[token] if token in number_words else int(token)) * SCALES.get(after, 1))
        return found


@lru_cache(maxsize=256)
def read_cues(nlq: str) -> Cues:
    """The cues of a question. Gaps in phrases are bounded, so time is linear in its length.

    >>> read_cues("How many cities are there?").words("count")
    ['how many']
    """
    lex = lexicon()
    text = normalise(nlq)
    masked = _hide(text, lex.masks)
    matches = {}
    for name, (cue, unless) in lex.cues.items():
        seen = _hide(masked, unless)
        if cue:
            matches[name] = tuple((m.group().strip(), m.start()) for m in cue.finditer(seen))
    return Cues(nlq.lower(), text, matches)


# ----------------------------------------------------------------------------------- the dictionary

_AGGREGATES = {"count_named": "COUNT", "avg": "AVG", "sum": "SUM", "max": "MAX", "min": "MIN"}


def extract_constraints(nlq: str) -> dict[str, Any]:
    """Structure that a question asks for, from its words alone.

    Args:
        nlq: the question in English; any text is accepted.

    Returns:
        ``agg`` (COUNT, AVG, SUM, MAX, MIN or None; the first one named), ``needs_group_by``,
        ``needs_order_by``, ``limit`` (int or None; 1 for a superlative), ``distinct``.
        Not covered: several aggregates in one question, and languages other than English.

    >>> extract_constraints("Which city has the most customers?")
    {'agg': None, 'needs_group_by': False, 'needs_order_by': True, 'limit': 1, 'distinct': False}
    """
    cues = read_cues(nlq)
    named = [cue for cue in _AGGREGATES if cue in cues]
    agg = _AGGREGATES[min(named, key=cues.first)] if named else None
    ranking = "ranking" in cues
    limit = next((n for n in cues.numbers("limit") if n > 0), None)
    if limit is None and "superlative" in cues and not ranking and agg is None:
        limit = 1
    return {
        "agg": agg,
        "needs_group_by": agg is not None and "group" in cues,
        "needs_order_by": ranking or limit is not None,
        "limit": limit,
        "distinct": "distinct" in cues,
    }
