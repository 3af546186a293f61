"""Which column or table a few words of a follow-up mean, and bounded looks at the cells that decide it.

On ``rail_operator``, from a query over ``train_runs``, "line" is ``lines.label``, "run number" ``train_runs.run_id``.

A column's words are matched by stems, abbreviations ("dept") and a short list of synonyms (``edit_words.yaml``); of
equal columns the one in the fewest joins' distance counts. Not covered: synonyms that the list lacks.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

from sqlglot import exp

from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.databases.schema import Column, Schema, Table, column_samples
from nl2sql.interfaces import Database
from nl2sql.sessions.statement import FARTHEST, Statement
from nl2sql.sessions.tables import label_column, refers
from nl2sql.sql.words import words

ENOUGH = 0.55  # score of a name that is believed
SAMPLES = 5  # values of a column that show its kind
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_DATETIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")
_TIME = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?\Z")
_OF_YEARS = frozenset(["opened", "founded", "built", "established", "since", "born", "formed", "released", "completed"])
Kinds = dict[tuple[str, str], str]  # (table, column) in lower case -> kind
_KINDS: dict[str, Kinds] = {}
_reading = threading.Lock()


@dataclass(frozen=True)
class Named:
    """A column that words mean, and how sure that is (0 to about 1.5)."""

    table: str
    column: str
    score: float = 1.0


@cache
def edit_words() -> dict[str, Any]:
    """The packaged lists, read once."""
    import yaml

    text = files("nl2sql.sessions").joinpath("edit_words.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def column_kinds(database: Database) -> Kinds:
    """(table, column) in lower case -> date, datetime, time, year, flag, number or text; read once per database."""
    key = f"{database.name} {database.fingerprint}"
    with _reading:
        if key not in _KINDS:
            if len(_KINDS) >= 64:
                _KINDS.clear()
            schema = database.schema()
            samples = column_samples(database, schema, SAMPLES) if schema.dialect == "sqlite" else {}
            _KINDS[key] = {
                (table.name.lower(), c.name.lower()): _kind(c, samples.get(table.name, {}).get(c.name, ()))
                for table in schema.tables
                for c in table.columns
            }
        return _KINDS[key]


def _kind(column: Column, values: Sequence[Any]) -> str:
    declared = column.type.upper()
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        for pattern, kind in ((_DATETIME, "datetime"), (_DATE, "date"), (_TIME, "time")):
            if all(pattern.match(text) for text in texts):
                return kind
        return "text"
    if values and all(value in (0, 1) for value in values) and len(set(values)) == 2:
        return "flag"
    if "BOOL" in declared:
        return "flag"
    if re.search(r"TIMESTAMP|DATETIME", declared):
        return "datetime"
    if "DATE" in declared:
        return "date"
    if declared.startswith("TIME"):
        return "time"
    if values and _OF_YEARS & {*words(column.name)} and all(1500 <= value <= 2100 for value in values):
        return "year"  # "opened": 1910
    if "year" in words(column.name) and (not values or all(1000 <= value <= 2999 for value in values)):
        return "year"
    return "number" if re.search(r"INT|REAL|FLOA|DOUB|NUM|DEC", declared) or values else "text"


def alike(word: str, part: str) -> float:
    """How well a word of a question fits a part of a name."""
    if stem(word) == stem(part):
        return 1.0
    for root in (word, word.removesuffix("s")):
        if part in edit_words()["synonyms"].get(root, ()):
            return 0.8
    short, long = sorted((stem(word), stem(part)), key=len)
    if len(short) >= 4 and long.startswith(short):
        return 0.7
    if len(short) >= 5 and short[:4] == long[:4] and len(long) - len(short) <= 2:
        return 0.7  # build, built; publication, published
    if 3 <= len(part) < len(word) and word[0] == part[0] and _is_subsequence(part, word) and len(part) <= 4:
        return 0.8  # dept, qty
    return 0.0


def _is_subsequence(short: str, long: str) -> bool:
    letters = iter(long)
    return all(letter in letters for letter in short)


def named_column(
    phrase: Sequence[str], statement: Statement, kinds: Kinds | None = None, want: Sequence[str] = ()
) -> Named | None:
    """The column that the content words of ``phrase`` mean; None where no name fits well enough.

    want: kinds that it may have, of ``kinds``.
    """
    asked = [word for word in phrase if word not in STOP_WORDS or word in ("no", "number", "name", "most", "at")]
    best: Named | None = None
    for table in statement.schema.tables if asked else ():
        away = statement.away(table.name)
        if away > FARTHEST:
            continue
        for column in table.columns:
            if want and kinds is not None and kinds[table.name.lower(), column.name.lower()] not in want:
                continue
            score = _score(asked, table, column) * (1 - 0.25 * away) - (0.05 if refers(table, column.name) else 0.0)
            if score >= ENOUGH and (best is None or score > best.score + 1e-9):
                best = Named(table.name, column.name, score)
    return best


def _score(asked: Sequence[str], table: Table, column: Column) -> float:
    """Share of the words that the name explains (1 at most), and 0.3 times the share of the name that they explain."""
    own = words(column.name)
    table_words = words(table.name)
    light = edit_words()["light"]
    by_column = [max((alike(word, part) for part in own), default=0.0) for word in asked]
    by_table = [max((0.9 * alike(word, part) for part in table_words), default=0.0) for word in asked]
    if not any(by_column):
        return 0.0
    explained = sum(map(max, by_column, by_table)) / len(asked)
    weights = {part: 0.3 if part in light and len(own) > 1 else 1.0 for part in own}
    matched = sum(weights[part] * max(alike(word, part) for word in asked) for part in own)
    covered = matched / sum(weights.values())
    return explained * (0.5 + 0.5 * covered) + (0.3 if covered > 0.99 and explained > 0.99 else 0.0)


def named_table(phrase: Sequence[str], schema: Schema) -> Table | None:
    """The table whose whole name the words hold; the longest such name where several do."""
    stems = {stem(word) for word in phrase}
    joined = {stem("".join(pair)) for pair in pairwise(phrase)}
    fits = [t for t in schema.tables if {stem(w) for w in words(t.name)} <= stems or stem(t.name.lower()) in joined]
    return max(fits, key=lambda table: len(words(table.name)), default=None)


def rates_of(schema: Schema) -> list[tuple[str, str]]:
    """("price", "per night") of each column called so."""
    names = [" ".join(words(column.name)).partition(" per ") for table in schema.tables for column in table.columns]
    return [(head, f"per {tail}") for head, per, tail in names if head and per]


def label_of(table: Table, statement: Statement) -> Named | None:
    """The column that rows of ``table`` are called by: its own, or that of a table it refers to and that no condition
    of the statement is on."""
    own = label_column(table)
    if own:
        return Named(table.name, own)
    fixed = {column[0] for c in statement.conditions() if (column := statement.column_compared(c))}
    for key in table.foreign_keys:
        target = statement.schema.table(key.ref_table)
        label = label_column(target) if target and target.name.lower() not in fixed else None
        if target and label:
            return Named(target.name, label)
    first = next((c.name for c in table.columns if c.primary_key), table.columns[0].name)
    return Named(table.name, first)


def named_group(phrase: Sequence[str], statement: Statement) -> Named | None:
    """What a grouping "by X" means: a column called exactly so in a table that is read, a table's label, a column."""
    column, table = named_column(phrase, statement), named_table(phrase, statement.schema)
    if column and statement.away(column.table) < 1 and _is_exactly(phrase, column):
        return column
    if table and statement.distance(table.name) <= FARTHEST:
        rest = [word for word in phrase if stem(word) not in {stem(part) for part in words(table.name)}]
        asked = [word for word in rest if word not in STOP_WORDS]
        if not asked:
            return _own_label(table, statement)
        own = max(table.columns, key=lambda each: _score(asked, table, each))
        if column is None and _score(asked, table, own) > 0.9:  # "patient gender", two joins away
            column = Named(table.name, own.name)
    return _label_behind(column, statement) if column else None


def _own_label(table: Table, statement: Statement) -> Named | None:
    """What tells the rows of ``table``: "per animal" is no name of the animals' fields."""
    label, keys = label_of(table, statement), [c.name for c in table.columns if c.primary_key]
    return Named(table.name, keys[0]) if label and label.table != table.name and len(keys) == 1 else label


def _label_behind(column: Named, statement: Statement) -> Named:
    """For a reference ("class" for ``class_code``) the label of the table that it refers to."""
    table = statement.schema.table(column.table)
    for key in table.foreign_keys if table else ():
        target = statement.schema.table(key.ref_table)
        label = label_column(target) if target and target != table else None
        if target and label and key.columns == (column.column,):
            return Named(target.name, label, column.score)
    return column


def _is_exactly(phrase: Sequence[str], column: Named) -> bool:
    content = {stem(word) for word in phrase if word not in STOP_WORDS}
    return content == {stem(part) for part in words(column.column)}


# --------------------------------------------------------------------------- bounded looks at cells
# Each look is one query of at most a second. Where it fails, the cells are taken as unknown.

MOST_VALUES = 12  # distinct cells of a column that are looked at


def texts_of(named: Named, database: Database) -> list[str]:
    """The different texts of a column, some of them."""
    query = exp.select(_column(named)).distinct().from_(exp.table_(named.table, quoted=True)).limit(MOST_VALUES)
    return [value for (value,) in _rows(query, database) if isinstance(value, str)]


def cell_called(text: str, named: Named, database: Database) -> str | None:
    """The cell of a column that is ``text`` but for casing, among those that are looked at."""
    return next((cell for cell in texts_of(named, database) if cell.casefold() == text.casefold()), None)


def has_nulls(named: Named, database: Database) -> bool:
    return _holds(named, _column(named).is_(exp.null()), database)


def yes_or_no(named: Named, database: Database) -> tuple[str, str] | None:
    """The cells for yes and for no, where the column holds nothing else."""
    values = {value.casefold(): value for value in texts_of(named, database)}
    for yes, no in (("y", "n"), ("yes", "no"), ("t", "f"), ("true", "false")):
        if values and values.keys() <= {yes, no}:
            known = next(iter(values.values()))
            return (yes.upper(), no.upper()) if known.isupper() else (values.get(yes, yes), values.get(no, no))
    return None


def _holds(named: Named, condition: exp.Expr, database: Database) -> bool:
    """Has any row such a cell?"""
    query = exp.select("1").from_(exp.table_(named.table, quoted=True)).where(condition).limit(1)
    return bool(_rows(query, database))


def _column(named: Named) -> exp.Column:
    return exp.column(named.column, quoted=True)


def _rows(query: exp.Query, database: Database, most: int = MOST_VALUES) -> Sequence[tuple[Any, ...]]:
    result = database.run(query.sql(dialect=database.dialect), timeout_s=1.0, max_rows=most)
    return result.rows if result.success else ()
