"""Constraints: what a question asks of the structure of its query, and whether a query has it [13].

>>> intent_constraints("How many customers are there?", "SELECT name FROM customers")
(False, 'missing_agg:COUNT')
>>> validate_constraints("SELECT name FROM customers", {"agg": "count"})
{'valid': False, 'reason': 'missing_agg:count'}

``extract_constraints`` reads the question alone, ``validate_constraints`` the query against what was
extracted, ``intent_constraints`` both together (after a successful run). The gates abstain where sqlglot
cannot parse: syntax is ``validate_sql``'s matter. Measured both ways by ``scripts/gold_through_gates.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nl2sql.agents.checks.constraints import evidence
from nl2sql.agents.checks.constraints.evidence import Cues, lexicon, read_cues
from nl2sql.agents.checks.constraints.evidence import extract_constraints as extract_constraints
from nl2sql.agents.checks.constraints.shape import QueryShape, name_words, read_shape
from nl2sql.databases.schema import Schema
from nl2sql.sql.text import is_plural, letter_words, singular

# ------------------------------------------------------------------------------ the constraint gate


def validate_constraints(sql: str, constraints: Mapping[str, Any], schema: Schema | None = None) -> dict[str, Any]:
    """Check a query against the output of ``extract_constraints``.

    Args:
        sql: one SELECT in SQLite's dialect. What cannot be parsed is valid here (reason ``unparsed``).
        constraints: missing fields ask for nothing.
        schema: when given, stored counts and totals and unique columns are recognised.

    Returns:
        ``{"valid": bool, "reason": str}``; reason ``ok``, ``unparsed``, ``missing_agg:COUNT``,
        ``missing_group_by``, ``missing_order_by``, ``missing_limit:3`` or ``missing_distinct``.
    """
    shape = read_shape(sql, schema)
    if shape is None:
        return {"valid": True, "reason": "unparsed"}
    agg = constraints.get("agg")
    limit = constraints.get("limit")
    if agg and not has_aggregate(shape, agg):
        return {"valid": False, "reason": f"missing_agg:{agg}"}
    single = len(shape.tables) == 1  # it may hold one row per asked thing: the question has to tell (intent)
    if constraints.get("needs_group_by") and not single and not evidence.has_groups(shape):
        return {"valid": False, "reason": "missing_group_by"}
    if limit and not evidence.has_limit(shape, limit):
        return {"valid": False, "reason": f"missing_limit:{limit}"}
    if constraints.get("needs_order_by") and not evidence.has_order(shape, extreme=bool(limit)):
        return {"valid": False, "reason": "missing_order_by"}
    if constraints.get("distinct") and not evidence.has_distinct(shape):
        return {"valid": False, "reason": "missing_distinct"}
    return {"valid": True, "reason": "ok"}


def has_aggregate(shape: QueryShape, agg: str) -> bool:
    """Whether the query computes ``agg``, or has another legitimate way to the same value."""
    if agg == "COUNT":
        return evidence.has_count(shape)
    if agg == "SUM":
        return evidence.has_sum(shape)
    if agg == "AVG":
        return evidence.has_average(shape)
    return evidence.is_extreme(shape) or evidence.is_pinned(shape)  # "maximum speed" of one named thing is stored


# ---------------------------------------------------------------------------------- the intent gate


def intent_constraints(nlq: str, sql: str, schema: Schema | None = None) -> tuple[bool, str]:
    """Apply the SQL-structure heuristic of section 7.3.

    Args:
        nlq: the question.
        sql: the query that ran. What cannot be parsed passes (reason ``unparsed``).
        schema: when given, stored values and keys are recognised.

    Returns:
        ``(ok, reason)``; reason ``ok`` or ``unparsed`` when ok, else what is missing, named as in
        ``validate_constraints``. Not covered: wrong columns, wrong joins, wrong filters.
    """
    shape = read_shape(sql, schema)
    if shape is None:
        return True, "unparsed"
    cues = read_cues(nlq)
    for missing, reason in (
        (evidence.lacks_grouping(shape), "missing_group_by"),
        (evidence.lacks_aggregate(shape, schema), _aggregate_reason(cues)),
        ("count_asked" in cues and not _answers_how_many(cues, shape), "missing_agg:COUNT"),
        ("avg" in cues and not evidence.has_average(shape), "missing_agg:AVG"),
        (("sum" in cues or "total_number" in cues) and not evidence.has_sum(shape), "missing_agg:SUM"),
        ("together" in cues and "count" in cues and not _adds_up(shape), "missing_agg:SUM"),
        (_lacks_threshold(cues, shape), "missing_group_by"),
        (
            "group" in cues
            and _names_aggregate(cues)
            and not evidence.has_groups(shape)
            and not _row_per_thing(cues, shape, schema, "group"),
            "missing_group_by",
        ),
        (not evidence.has_groups(shape) and _leaves_out_a_group(cues, shape, schema), "missing_group_by"),
        (_lacks_extreme(cues, shape), "missing_limit:1" if shape.order else "missing_order_by"),
        (_lacks_distinct(cues, shape, schema), "missing_distinct"),
    ):
        if missing:
            return False, reason
    return True, "ok"


def _aggregate_reason(cues: Cues) -> str:
    for cue, agg in (("avg", "AVG"), ("count", "COUNT"), ("sum", "SUM")):
        if cue in cues:
            return f"missing_agg:{agg}"
    return "missing_agg:SUM"


def _names_aggregate(cues: Cues) -> bool:
    return any(cue in cues for cue in ("count", "avg", "sum", "max", "min", "superlative"))


def _answers_how_many(cues: Cues, shape: QueryShape) -> bool:
    """An aggregate or a stored count in the SELECT list, or a column called by the plural that was asked for."""
    if shape.projected_aggregates or evidence.projects_stored_count(shape):
        return True
    plurals = {word for run in _noun_runs(cues, "count_asked") for word in run if is_plural(word)}
    return any(plurals & name_words(use.name) for use in shape.projected)


def _adds_up(shape: QueryShape) -> bool:
    return (
        bool(shape.aggregates)
        or shape.window
        or shape.arithmetic
        or evidence.stores(shape, "sum")
        or evidence.is_pinned(shape)
    )


def _lacks_threshold(cues: Cues, shape: QueryShape) -> bool:
    """ "at least two X": the number is nowhere in the query, nothing is counted and no table is joined to itself."""
    if shape.aggregates or shape.set_operation or shape.subquery or len(set(shape.tables)) < len(shape.tables):
        return False
    return any(number > 0 and not _mentions(shape, number) for number in cues.numbers("threshold"))


def _mentions(shape: QueryShape, number: int) -> bool:
    """The number itself, one beside it (``> 2`` for "at least 3"), in other units, or inside a string."""
    if any(abs(x - number) <= 1 or (x >= 10 * number and x % number == 0) for x in shape.numbers):
        return True
    return any(str(number) in value for value in shape.strings)


def _lacks_extreme(cues: Cues, shape: QueryShape) -> bool:
    if "superlative" not in cues or evidence.picks_extreme(shape):
        return False
    words = set(cues.words("superlative"))
    stored = words & {"maximum", "minimum"} or words  # "the largest maximum" is not a stored maximum
    if stored == words and evidence.stores_extreme(shape):
        return False
    if shape.order and "ranking" in cues:
        return False
    if words <= {"maximum", "minimum"} and evidence.is_pinned(shape):
        return False
    named = [*shape.strings, *shape.tables, *(use.name.lower() for use in shape.columns)]
    if any(word in name for word in words for name in named):
        return False
    # A name that the question does not have may be the answer to the superlative, known to the writer.
    names = [value for value in shape.strings if len(value) > 3 and not any(c.isdigit() for c in value)]
    return all(any(word in cues.raw for word in name.split()) for name in names)


def _lacks_distinct(cues: Cues, shape: QueryShape, schema: Schema | None) -> bool:
    if "count_distinct" in cues and not evidence.counts_distinct(shape):
        return not _row_per_thing(cues, shape, schema, "count_distinct")
    if "distinct" not in cues or shape.distinct or shape.group or shape.set_operation:
        return False
    if not evidence.has_distinct(shape):
        return True
    return (
        len(shape.tables) == 1
        and not any(u.unique for u in shape.projected)
        and not _row_per_thing(cues, shape, schema, "distinct")
    )


def _row_per_thing(cues: Cues, shape: QueryShape, schema: Schema | None, cue: str) -> bool:
    """Whether the one table of the query is called what the cue's noun says: it holds one row per such thing."""
    if len(shape.tables) != 1:
        return False
    name = shape.tables[0]
    words = name_words(name)
    table = schema.table(name) if schema else None
    attributes = {w for column in table.columns for w in name_words(column.name)} - words if table else set()
    for run in _noun_runs(cues, cue):
        for at, noun in enumerate(run):
            if {noun, singular(noun)} & words or name.startswith(singular(noun)):
                return not any({w, singular(w)} & attributes for w in run[at + 1 :])
    return False


def _leaves_out_a_group(cues: Cues, shape: QueryShape, schema: Schema | None) -> bool:
    """ "average X per Y", "total X by Y": nothing in the query is called Y, or Y is a column that it leaves out.

    After "by" may stand who did it ("taught by professors"): there the schema has to know X and Y.
    """
    tables = schema.tables if schema else ()
    own = [table for table in tables if table.name.lower() in shape.tables]
    used = _all_words([*shape.tables, *(use.name for use in shape.columns), *shape.strings])
    open_columns = _all_words(c.name for table in own for c in table.columns) - used
    nouns = _all_words(name for table in tables for name in (table.name, *(c.name for c in table.columns)))
    groups = [_all_words(run) for run in _noun_runs(cues, "per")] if _names_aggregate(cues) else []
    for (words, _), run in zip(cues.matches.get("by", ()), _noun_runs(cues, "by"), strict=True):
        before = words.split()[-2]
        if name_words(before) & (nouns | lexicon().stored["count"]) and _all_words(run) & nouns:
            groups.append(_all_words(run))
    names = [frozenset(map(singular, letter_words(table.name))) for table in tables]
    tables_left_out = [name for name in names if len(name) > 1 and not name <= used]
    return any(
        group and (group & open_columns or not group & used or any(name <= group for name in tables_left_out))
        for group in groups
    )


def _all_words(names: Iterable[str]) -> set[str]:
    return {word for name in names for word in name_words(name)}


def _noun_runs(cues: Cues, cue: str, reach: int = 3) -> list[list[str]]:
    """The words after each match of a cue, up to a stop word: its noun is among them."""
    runs: list[list[str]] = []
    for words, at in cues.matches.get(cue, ()):
        run: list[str] = []
        for word in cues.text[at + len(words) :].split()[:reach]:
            if word in ",;:?!." or word in lexicon().stop:
                break
            if word not in lexicon().numbers:
                run.append(word)
        runs.append(run)
    return runs
