"""What a follow-up groups and sorts by, the rows that a superlative asks for, and the one figure it asks for.

On ``scale_models``, behind ``SELECT title FROM products WHERE list_price > 10``: "sort them by maker" adds ``ORDER BY
maker``, "the cheapest?" ``ORDER BY list_price LIMIT 1``. An adjective is about a column that is selected or compared
before, where one fits it (``edit_words.yaml``).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sqlglot import exp

from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.sessions import where
from nl2sql.sessions.conditions import Conditions
from nl2sql.sessions.naming import Named, edit_words, has_nulls, label_of, named_column, named_group, named_table
from nl2sql.sessions.reading import SO_MANY, Phrase
from nl2sql.sessions.statement import Statement
from nl2sql.sessions.tables import column_of, key_columns
from nl2sql.sql.words import words

# --------------------------------------------------------------------------- order and superlatives

_DIRECTIONS = frozenset(["ascending", "descending", "order", "first", "last", "highest", "lowest", *STOP_WORDS])
_NUMBERS = ("number", "year")
_END = re.compile(r"\b(?P<end>top|best|bottom|worst) (?:\d{1,3}|[a-z]+)\b")
_ONE = re.compile(r"\b(?:one|which|who|is|was|of (?:them|these|those))\b")
_OFTEN = re.compile(r"\b(?:most|least) (?:often|frequently|commonly)\b")
_KNOWN = r"(?:is|are|has|have|had|cost|got|get|earn|pay|paid|spen|weigh|scor|ma[dk]e)[a-z]*"
_DOES_MOST = re.compile(  # "who trained the most?" is about no number of a person
    rf"\b(?:who|which|that)\b.*\b(?!{_KNOWN} )[a-z]+ the (?:most|least)\s*[.?!]*$"
)
_DATES = ("date", "datetime", "year")
_FIGURES: dict[str, type[exp.Expr]] = {
    "count": exp.Count,
    "number": exp.Count,
    "total": exp.Sum,
    "sum": exp.Sum,
    "average": exp.Avg,
    "mean": exp.Avg,
}
_GENERAL = frozenset(["number", "total", "count", "figure", "one", "average", "amount", "value", "sum", "rate"])
_BIRTH = frozenset(["birth", "born", "dob"])


def order(conditions: Conditions) -> None:
    """Sort the rows as the reading says."""
    keys: list[tuple[exp.Expr, bool]] = []
    for phrase, direction in conditions.reading.orders:
        measures = conditions.statement.aggregates()
        if not phrase and conditions.statement.grouped and measures and "alphabet" not in conditions.reading.text:
            keys.append((measures[-1].unalias().copy(), direction == "desc"))
            continue
        if figure := _figure_called(phrase, conditions, measures):
            keys.append((figure, direction == "desc"))
            continue
        named, way = _order_column(phrase, conditions)
        if named:
            key: exp.Expr = conditions.statement.column(named.table, named.column)
            if not conditions.statement.one_per_group(named.table, named.column):
                key = _figure_of(key, named, measures)
            keys.append((key, (direction or way) == "desc"))
    if keys:
        conditions.statement.order_by(keys)
        conditions.made.append("order")


def _figure_called(phrase: Phrase, conditions: Conditions, measures: list[exp.Expr]) -> exp.Expr | None:
    """ "sorted by count", "by number of orders": the figure of each group that is one."""
    kind = _FIGURES.get(phrase[0]) if phrase and conditions.statement.grouped else None
    rest = [word for word in phrase[1:] if word not in STOP_WORDS]
    table = named_table(rest, conditions.statement.schema)
    if kind is None or (rest and not (table and table.name in conditions.statement.tables())):
        return None
    figures = [each.unalias() for each in measures if isinstance(each.unalias(), kind)]
    return figures[-1].copy() if figures else None


def _figure_of(column: exp.Expr, named: Named, measures: list[exp.Expr]) -> exp.Expr:
    """ "sorted by price" behind the average price of each. Raises LookupError where no figure is of that column."""
    figures = [each.unalias() for each in measures]
    figures = [each for each in figures if [c for c in each.find_all(exp.Column) if c.name == named.column]]
    if len(figures) != 1:
        raise LookupError(f"one {named.column} of each group")
    return figures[0].copy()


def order_instead(conditions: Conditions) -> bool:
    """ "by buy price instead" behind rows in another order: the same way round. Whether it was asked."""
    statement, reading = conditions.statement, conditions.reading
    before = _ordered_by(statement)
    if not before or statement.grouped or statement.aggregates() or "instead" not in reading.text:
        return False
    named = [named_column(phrase, statement) for phrase in reading.groupings]
    if not named or not all(named):
        return False
    statement.order_by([(statement.column(each.table, each.column), before[0][1]) for each in named if each])
    conditions.made.append("order")
    return True


def superlative(conditions: Conditions) -> None:
    """ "who is the youngest?" of a list: ordered by what the adjective is about, so many rows.

    Raises LookupError where no column is known to be that.
    """
    reading, statement = conditions.reading, conditions.statement
    adjective = reading.adjective
    if adjective is None or statement.counts_only or reading.orders:
        return
    if _OFTEN.search(reading.text):
        raise LookupError("how often")
    rows = named_table(_words_behind(adjective[0], conditions)[:1], statement.schema)
    if rows and "any" in adjective[2].split() and rows.name not in statement.tables():
        raise LookupError(f"how many {rows.name} each has")  # "the most visits" is about no number of a doctor
    named = _behind(adjective[0], conditions) or _adjective_column(adjective[2], conditions)
    if named and adjective[0] in ("best", "worst") and conditions.kind_of(named) == "year":
        raise LookupError(f"a column that {adjective[0]} is about")
    table = statement.schema.table(named.table) if named else None
    if named is None or table is None or not column_of(table, named.column):
        raise LookupError(f"a column that {adjective[0]} is about")
    column = statement.column(named.table, named.column)
    if not statement.one_per_group(named.table, named.column):
        raise LookupError(f"one {named.column} of each group")
    if adjective[1] == "asc" and has_nulls(named, conditions.database):
        statement.add_condition(exp.Not(this=exp.Is(this=column.copy(), expression=exp.Null())))
    desc, before = adjective[1] == "desc", statement.tree.args.get("limit")
    turned = before is not None and _ordered_by(statement)[:1] == [(Named(named.table, named.column), not desc)]
    statement.order_by([(column, desc)])
    if not turned or reading.limit or _ONE.search(reading.text):  # "and the cheapest?" behind the ten dearest: ten
        statement.limit(reading.limit or 1, reading.skipped)
    conditions.made += ["order", "limit"]


def figure_said(measure: exp.Expr, conditions: Conditions) -> exp.Expr:
    """The figure of each group that a superlative goes by: ``measure``, where it may be that.

    Raises LookupError for "the cheapest" or "the lowest credit score" behind counts.
    """
    adjective = conditions.reading.adjective
    columns = {column.name.lower() for column in measure.find_all(exp.Column)}
    wanted = {*adjective[2].split(), *(["age"] if "birth" in adjective[2] else [])} if adjective else {"any"}
    if adjective and "any" not in wanted and not wanted & {word for name in columns for word in words(name)}:
        raise LookupError(f"a figure that {adjective[0]} is about")
    named = _behind(adjective[0], conditions) if adjective else None
    behind = _words_behind(adjective[0], conditions) if adjective else []
    said = [word for word in behind if word not in _DIRECTIONS]
    if (named and named.score > 0.9 and named.column.lower() not in columns) or conditions.name_another_column(said):
        raise LookupError(f"that figure of each group: {' '.join(said)}")
    return measure


def extreme_of_each(conditions: Conditions) -> exp.Expr | None:
    """ "the cheapest per destination": the lowest price; None where an adjective says nothing of a column."""
    adjective = conditions.reading.adjective
    if adjective is None or "any" in adjective[2].split():
        return None
    named = _adjective_column(adjective[2], conditions)
    if named is None:
        raise LookupError(f"a column that {adjective[0]} is about")
    column = conditions.statement.column(named.table, named.column)
    return exp.Max(this=column) if adjective[1] == "desc" else exp.Min(this=column)


def best_first(conditions: Conditions) -> None:
    """ "the top 5" of rows in no order: by the figure of each group, or by the number that a condition compares."""
    statement, end = conditions.statement, _END.search(conditions.reading.text)
    before = statement.tree.args.get("order")
    if end and before and end["end"] in ("bottom", "worst") and all(key.args.get("desc") for key in before.expressions):
        statement.order_by([(key.this, False) for key in before.expressions])  # "the bottom 5" behind the top ones
        conditions.made.append("order")
    if not end or before is not None:
        return
    measures, compared = statement.aggregates(), conditions.compared_before(("number",))
    key = measures[-1].unalias().copy() if statement.grouped and measures else None
    if key is None and compared and not statement.grouped:
        key = statement.column(compared.table, compared.column)
    if key is not None:
        statement.order_by([(key, end["end"] in ("top", "best"))])
        conditions.made.append("order")


def _ordered_by(statement: Statement) -> list[tuple[Named, bool]]:
    """The columns that the rows are ordered by, each with whether it is descending."""
    order = statement.tree.args.get("order")
    keys = [(key.this, bool(key.args.get("desc"))) for key in order.expressions] if order else []
    columns = [(statement.table_of(key), key.name, desc) for key, desc in keys if isinstance(key, exp.Column)]
    return [(Named(table.name, name), desc) for table, name, desc in columns if table]


def _behind(adjective: str, conditions: Conditions) -> Named | None:
    """The number or date that the words behind a superlative name: "the lowest credit score"."""
    behind = [word for word in _words_behind(adjective, conditions) if word not in _GENERAL]
    phrases = [behind[:n] for n in range(len(behind), 0, -1)]
    kinds = (*_NUMBERS, "date", "datetime")
    fits = [named_column(phrase, conditions.statement, conditions.kinds, kinds) for phrase in phrases]
    return next((fit for fit in fits if fit and not conditions.is_key(fit)), None)


def _words_behind(adjective: str, conditions: Conditions) -> list[str]:
    return words(conditions.reading.text.partition(adjective)[2])[:3]


def _order_column(phrase: Phrase, conditions: Conditions) -> tuple[Named | None, str]:
    """The column that rows are sorted by: named itself, by an adjective ("dearest first"), or the first one."""
    statement, adjective = conditions.statement, conditions.reading.adjective
    first = statement.tree.expressions[0].unalias()
    if not phrase and isinstance(first, exp.Column) and (table := statement.table_of(first)):
        return Named(table.name, first.name), ""
    if called := _called(phrase, conditions):
        return called, ""
    whole = named_column(phrase, statement)  # "last" may be of the name, as in last_name
    bare = named_column([word for word in phrase if word not in _DIRECTIONS], statement)
    named = max(filter(None, (bare, whole)), key=lambda fit: fit.score, default=None)
    if named and statement.away(named.table) <= 1:
        return named, ""
    return (_adjective_column(adjective[2], conditions), adjective[1]) if adjective else (None, "")


def _called(phrase: Phrase, conditions: Conditions) -> Named | None:
    """ "By name": what is shown and called so, else what the rows are called by, whatever is nearer to the word."""
    said = [word.removesuffix("s") for word in phrase if word not in _DIRECTIONS - {"first", "last"}]
    label = label_of(conditions.statement.main, conditions.statement)
    fits = [*conditions.selected(), *([label] if label and not conditions.statement.grouped else [])]
    plain = said in (["name"], ["title"], ["label"])
    return next((fit for fit in fits if words(fit.column)[-1] == said[0]), None) if plain else None


def _adjective_column(columns: str, conditions: Conditions) -> Named | None:
    """A column of the tables that are read whose name has one of the words, best one that is compared or selected.

    "Oldest" may be of a birth or of any date: where there is a birth, it is that.
    """
    statement, wanted = conditions.statement, set(columns.split()) - {"any"}
    known = {column for _, column in where.compared_columns(statement)}
    known |= {(named.table.lower(), named.column.lower()) for named in conditions.selected()}
    known |= {(named.table.lower(), named.column.lower()) for named, _ in _ordered_by(statement)}
    read = [(table, column.name) for table in statement.sources().values() for column in table.columns]
    fits = [Named(table.name, name) for table, name in read if wanted & set(words(name))]
    fits = [fit for fit in fits if conditions.kind_of(fit) != "flag" and not conditions.is_never(fit)]
    if not fits and "date" in wanted and (dated := conditions.only_one(_DATES)):
        fits = [dated]
    if fits:
        births = [fit for fit in fits if _BIRTH & wanted & set(words(fit.column))]
        return max(births or fits, key=lambda fit: (fit.table.lower(), fit.column.lower()) in known)
    ordered = [named for named, _ in _ordered_by(statement)]  # "highest first" behind "sort by gpa"
    numbers = [named for named in (*ordered, *conditions.selected()) if conditions.kind_of(named) in _NUMBERS]
    if "any" not in columns.split():  # "the shortest" is about no number of visitors
        return None
    only = None if _DOES_MOST.search(conditions.reading.text) else conditions.only_one(("number",))
    numbers += filter(None, [conditions.compared_before(("number",)), only])  # "the biggest" is about no year
    return next((named for named in numbers if not conditions.is_key(named)), None)


# ------------------------------------------------------------------------------------------- groups
# On ``library_network``, "by patron type" behind loans gives ``patron_types.label``, grouped with
# the table's key so that two of one name stay two; "per year" the year of the date that a condition
# compares. Conditions on what is grouped by are dropped: "by country" behind one country means all
# of them.

FORMATS = {"day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}
_DAYS = ("date", "datetime")


class Grouped(NamedTuple):
    """The column that is shown of each group, and the keys of GROUP BY."""

    shown: exp.Expr
    keys: list[exp.Expr]


def grouped_by(phrase: Phrase, conditions: Conditions) -> Grouped | None:
    """What ``phrase`` means in the statement of ``conditions``, joined in where it must be; None for nothing known.

    Raises LookupError where a join is missing.
    """
    if part := _date_part(phrase, conditions):
        return Grouped(part, [part])
    named = named_group(phrase, conditions.statement)
    if named is None:
        return None
    _drop_conditions(named, conditions)
    column = conditions.statement.column(named.table, named.column)
    return Grouped(column, [*_own_key(named, conditions), column])


def _own_key(named: Named, conditions: Conditions) -> list[exp.Expr]:
    """The key of the table that ``named`` is the label of; none for a column of the main table."""
    statement = conditions.statement
    table = statement.schema.table(named.table)
    if (
        table is None
        or table.name == statement.main.name
        or label_of(table, statement) != Named(named.table, named.column)
    ):
        return []
    keys = key_columns(table)
    return [statement.column(table.name, keys[0])] if len(keys) == 1 and named.column not in keys else []


def _drop_conditions(named: Named, conditions: Conditions) -> None:
    table = conditions.statement.schema.table(named.table)
    same = [named.column, *(key_columns(table) if table else [])]
    if any(f"{done} {named.table}.{column}" in conditions.made for done in ("filter", "replace") for column in same):
        return  # "by genre, for crime and poetry": what this follow-up asks for
    if where.drop_conditions_on(conditions.statement, named.table, same):
        conditions.made.append(f"drop {named.table}.{named.column}")


def _date_part(phrase: Phrase, conditions: Conditions) -> exp.Expr | None:
    """ "per year" where no column is called so: that part of the date that is compared, or of the only one."""
    unit = next((name for name in edit_words()["units"] if stem(name) == stem(phrase[-1])), "")
    if unit not in FORMATS or len(phrase) > 2:
        return None
    exact = named_column(phrase, conditions.statement)
    kind = conditions.kinds[exact.table.lower(), exact.column.lower()] if exact else ""
    if exact and kind not in _DAYS and conditions.statement.away(exact.table) < 1:
        return None
    named = conditions.compared_before(_DAYS) or conditions.only_one(_DAYS)
    if named is None:
        return None
    column = conditions.statement.column(named.table, named.column)
    return exp.TimeToStr(this=column, format=exp.Literal.string(FORMATS[unit]))


# --------------------------------------------------------------------------------------- one figure
# Behind ``SELECT AVG(credit_limit) FROM customers`` on ``scale_models``, "and the maximum?" is
# ``SELECT MAX(credit_limit) FROM customers``. Not covered: figures of each group and of the rows
# that a LIMIT lets through (LookupError), and other arithmetic.


def aggregate(conditions: Conditions) -> bool:
    """The figure that the reading names, of all rows; whether one is known."""
    text, statement = conditions.reading.text, conditions.statement
    if re.search(rf"[a-z]{{3,}}est {SO_MANY}\b", text):  # "the smallest two" are no figure
        return False
    column = aggregated_column(conditions)
    if column is None:
        return False
    if statement.grouped or statement.tree.args.get("limit") is not None:
        raise LookupError("a figure of each group, or of a few rows")
    statement.clear("order", "limit", "distinct")
    statement.select([aggregated(conditions.reading.aggregate, column)])
    conditions.made.append("aggregate")
    return True


def aggregated_column(conditions: Conditions) -> exp.Expr | None:
    """The column behind "average", "highest"; the one that was aggregated before where none is named."""
    reading, statement = conditions.reading, conditions.statement
    listed = edit_words()["aggregates"][reading.aggregate]
    said = [match for word in listed for match in [re.search(rf"\b{word}\b", reading.text)] if match]
    behind = words(re.split(r"[,.;?!]", reading.text[said[0].end() :])[0])[:4] if said else []
    wanted = ("number", "year", "date", "datetime") if reading.aggregate in ("MAX", "MIN") else ("number", "year")
    if many := re.search(r"\bhow (?:many|much|long|old|high|large) (?P<what>[a-z_]+)", reading.text):
        behind = behind or words(many["what"])
    for phrase in (behind[:n] for n in range(len(behind), 0, -1)):
        named = named_column(phrase, statement, conditions.kinds, wanted)
        if named and not conditions.is_key(named):  # "the oldest captain" is no captain_id
            return statement.column(named.table, named.column)
    for measure in statement.aggregates():
        if (column := measure.find(exp.Column)) is not None and not measure.find(exp.Count):
            return figure_said(column, conditions).copy()
    rows = not statement.grouped and not statement.aggregates()
    if rows and reading.aggregate in ("MAX", "MIN"):
        return None  # "the youngest?" of a list is one of its rows
    named = conditions.only_one(("number",))
    return figure_said(statement.column(named.table, named.column), conditions) if named else None


def aggregated(kind: str, column: exp.Expr) -> exp.Expr:
    made = {"AVG": exp.Avg, "SUM": exp.Sum, "MAX": exp.Max, "MIN": exp.Min}[kind]
    return made(this=column.copy())
