"""The same questions over a schema that is written otherwise: other spelling of names, other order, fewer columns.

A training set of Spider's size has 140 schemas. A model that has seen each a hundred times knows them by heart and
need not read them. A variant has the same tables, answers and values under other names: ``Student.Fname`` becomes
``students.first_name`` in the schema, in the line of values and in the query; the question keeps its words.
Not covered: repair examples, whose messages come from the real database.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nl2sql.databases.schema import PLAIN_NAME, RESERVED, Column, ForeignKey, Schema, Table, quote_name
from nl2sql.sql.text import words
from training.examples import Asked

_LONG_FORMS = {
    "addr": "address",
    "amt": "amount",
    "avg": "average",
    "cat": "category",
    "desc": "description",
    "dept": "department",
    "dob": "date of birth",
    "emp": "employee",
    "fname": "first name",
    "lname": "last name",
    "loc": "location",
    "mgr": "manager",
    "no": "number",
    "num": "number",
    "org": "organization",
    "pct": "percent",
    "qty": "quantity",
    "tel": "telephone",
    "yr": "year",
}
_SHORT_FORMS = {long: short for short, long in _LONG_FORMS.items() if " " not in long}
_STYLES: tuple[Callable[[Sequence[str]], str], ...] = (
    "_".join,
    lambda parts: "_".join(part.capitalize() for part in parts),
    lambda parts: "".join(part.capitalize() for part in parts),
    lambda parts: parts[0] + "".join(part.capitalize() for part in parts[1:]),
    "".join,
    lambda parts: "_".join(parts).upper(),
)
_TEXT_TYPE = re.compile(r"\b(VARCHAR2?|CHAR|CHARACTER|NVARCHAR)\b(\(\d+\))?")
_SQL_PART = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[^\W\d]\w*(?!\w|\s*\()""")
_KEPT = RESERVED | {"count", "sum", "min", "max", "avg", "like", "end", "true", "false", "intersect", "key"}


def varied(schema: Schema, group: Sequence[Asked], rng: random.Random) -> tuple[Schema, list[Asked]]:
    """``schema`` and the questions of ``group`` in one variant. The items' own ``schema`` stays the database's."""
    thinner = thinned(schema, group, rng)
    names = new_names(thinner, rng)
    items = [replace(item, sql=renamed(item.sql, names), nlq=values_renamed(item.nlq, names)) for item in group]
    return with_names(thinner, names), items


def renamed(sql: str, names: Mapping[str, str]) -> str:
    """``sql`` with every identifier that ``names`` has (in lower case) replaced. Texts and functions stay."""

    def other(match: re.Match[str]) -> str:
        part = match.group()
        plain = part[1:-1].replace('""', '"') if part[0] == '"' else part
        new = names.get(plain.lower())
        return part if new is None else quote_name(new)

    return _SQL_PART.sub(other, sql)


def values_renamed(nlq: str, names: Mapping[str, str]) -> str:
    """The line of values in ``nlq`` under other names; the question keeps its words."""
    question, line, values = nlq.rpartition("\nValues: ")
    return question + line + renamed(values, names) if line else nlq


def thinned(schema: Schema, group: Sequence[Asked], rng: random.Random) -> Schema:
    """Some columns left out that no query reads and no line of values names, and the others in another order."""
    texts = " ".join([*(item.sql for item in group), *(item.nlq.rpartition("\nValues: ")[2] for item in group)])
    used = {word.strip('"').lower() for word in re.findall(r'"[^"]+"|\w+', texts)}
    keys = {name.lower() for t in schema.tables for k in t.foreign_keys for name in (*k.columns, *k.ref_columns)}
    share = rng.choice((1.0, 1.0, 0.7, 0.4))
    shuffle, plain_types = rng.random() < 0.3, rng.random() < 0.4
    tables = []
    for table in schema.tables:
        kept = [
            column
            for column in table.columns
            if column.primary_key or column.name.lower() in used | keys or rng.random() < share
        ] or list(table.columns)
        if shuffle:
            rng.shuffle(kept)
        if plain_types:
            kept = [replace(column, type=_TEXT_TYPE.sub("TEXT", column.type)) for column in kept]
        tables.append(replace(table, columns=tuple(kept)))
    return Schema(tuple(tables), schema.dialect)


def new_names(schema: Schema, rng: random.Random) -> dict[str, str]:
    """Name in lower case -> its spelling in this variant; a table and a column of one name have one spelling."""
    columns = {column.name.lower(): column.name for table in schema.tables for column in table.columns}
    tables = {table.name.lower(): table.name for table in schema.tables}
    table_style, column_style = rng.choice(_STYLES), rng.choice(_STYLES)
    forms = rng.choice((dict, _LONG_FORMS.copy, _SHORT_FORMS.copy, lambda: _clipped([*columns, *tables], rng)))()
    plural = rng.choice((None, None, True, False))
    found: dict[str, str] = {}
    taken = {*columns, *tables}
    for old, name in {**columns, **tables}.items():
        only_table = old in tables and old not in columns
        parts = [w for word in words(name) for w in forms.get(word.lower(), word.lower()).split()]
        if only_table and plural is not None and parts:
            parts[-1] = _number(parts[-1], plural)
        new = (table_style if only_table else column_style)(parts) if parts else name
        free = new.lower() == old or new.lower() not in taken
        if old not in _KEPT and free and PLAIN_NAME.fullmatch(new) and new.lower() not in _KEPT:
            found[old] = new
            taken.add(new.lower())
    return found


def _clipped(names: Sequence[str], rng: random.Random) -> dict[str, str]:
    """Half of the longer words of ``names`` -> a short form: ``department`` becomes ``dep``, ``depa`` or ``dprt``."""
    found = {}
    for word in sorted({word for name in names for word in words(name) if len(word) > 4}):
        if rng.random() < 0.5:
            skeleton = word[0] + "".join(letter for letter in word[1:] if letter not in "aeiou")
            found[word] = rng.choice((word[:3], word[:4], skeleton[:4]))
    return found


def _number(word: str, plural: bool) -> str:
    """``word`` as a plural or a singular; as it is where a simple rule does not know."""
    if plural:
        return word if word.endswith("s") or len(word) < 3 else word[:-1] + "ies" if _ends_in_y(word) else word + "s"
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is", "ies")) and len(word) > 3 else word


def _ends_in_y(word: str) -> bool:
    return word.endswith("y") and word[-2] not in "aeiou"


def with_names(schema: Schema, names: Mapping[str, str]) -> Schema:
    """``schema`` with every name replaced that ``names`` has (in lower case)."""

    def new(name: str) -> str:
        return names.get(name.lower(), name)

    def column(old: Column) -> Column:
        return replace(old, name=new(old.name))

    def key(old: ForeignKey) -> ForeignKey:
        return ForeignKey(tuple(map(new, old.columns)), new(old.ref_table), tuple(map(new, old.ref_columns)))

    def table(old: Table) -> Table:
        parts = tuple(map(column, old.columns)), tuple(map(key, old.foreign_keys))
        return replace(old, name=new(old.name), columns=parts[0], foreign_keys=parts[1])

    return Schema(tuple(map(table, schema.tables)), schema.dialect)
