"""A comparison with a text that no cell of the column holds, rewritten to what the database holds; no model is asked.

On the packaged ``scale_models`` database ``... WHERE city = 'paris'`` becomes ``... WHERE city = 'Paris'``. In turn:
``= 'null'`` on a column with empty cells is ``IS NULL``; the column's one text that differs in case or in spaces; where
the column is a key, the one text of the table that it refers to (``type_code = 'Double'`` becomes ``type_code IN
(SELECT type_code FROM room_types WHERE label = 'Double')``); the one other column of the table that holds the text.
Where two columns would do, nothing is done. An answer that such a comparison leaves without rows is empty by accident
or by intent, and the database cannot tell: whoever uses this says that it was used.

Not covered: numbers, ``<>``, LIKE, comparisons under NOT, what ``suspicions.evidence`` cannot read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from nl2sql.agents.checks.suspicions import TEXTUAL, Evidence, Place, cells, compared, sides, some_cell
from nl2sql.databases.schema import Table, quote_name
from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Database, RunResult
from nl2sql.sql.parse import parse_bounded
from nl2sql.sql.text import Tree

MOST_PLACES = 12  # columns that are looked through for a text


def repair_literals(sql: str, database: Database) -> str | None:
    """``sql`` with such comparisons rewritten, where the engine compiles the result; None where nothing changes.

    A database that cannot be read and a statement that cannot be parsed change nothing.
    """
    evidence = Evidence("", sql, database.schema(), database, RunResult(True))
    try:
        repaired = _repaired(evidence)
    except (Nl2SqlError, SqlglotError, RecursionError, ValueError):
        return None
    return repaired if repaired and database.explain(repaired).success else None


def _repaired(evidence: Evidence) -> str | None:
    """The statement as it is written, with the comparisons replaced that the qualified tree shows to be idle."""
    dialect = evidence.database.dialect
    named: dict[tuple[str, str], set[Place]] = {}
    for place, literal in compared(evidence):
        if literal.is_string:
            named.setdefault((place.column.lower(), str(literal.this)), set()).add(place)
    changes = {
        (name, text): place
        for (name, text), (place, *others) in named.items()
        if not others  # a name of two tables may mean either
        and some_cell(evidence, place, cells(place).eq(exp.Literal.string(text))) is False
    }
    if not changes:
        return None
    tree, changed = parse_bounded(evidence.sql, dialect), False
    for node in list(tree.find_all(exp.EQ, exp.In)):
        found = _column_and_texts(node)
        if found is None:
            continue
        column, texts = found
        places = {text: changes.get((column.name.lower(), text)) for text in texts}
        new = _rewritten(evidence, column, places)
        if new is not None:
            node.replace(new)
            changed = True
    return f"{tree.sql(dialect=dialect)};" if changed else None


def _column_and_texts(node: Any) -> tuple[exp.Column, list[str]] | None:
    """``column = 'text'`` and ``column IN ('text', ...)`` that do not stand under NOT."""
    for column, others in sides(node):
        texts = [str(other.this) for other in others if isinstance(other, exp.Literal) and other.is_string]
        if isinstance(column, exp.Column) and texts and len(texts) == len(others):
            return column, texts
    return None


def _rewritten(evidence: Evidence, column: exp.Column, places: dict[str, Place | None]) -> Tree | None:
    """One condition for all texts; None unless every idle one of them has a place that holds it."""
    idle = {text: place for text, place in places.items() if place is not None}
    if not idle:
        return None
    place = next(iter(idle.values()))
    if len(places) == 1 and next(iter(idle)).casefold() == "null" and some_cell(evidence, place, _empty(cells(place))):
        return _empty(column.copy())
    own = {text: [text] if text not in idle else _alike(evidence, place, text) for text in places}
    if all(len(alike) == 1 for alike in own.values()):
        return _among(column, [alike[0] for alike in own.values()])
    if len(idle) < len(places):
        return None
    return _elsewhere(evidence, column, place, list(idle))


def _elsewhere(evidence: Evidence, column: exp.Column, place: Place, texts: list[str]) -> Tree | None:
    """The texts in the one column of the table that a key refers to, or of the place's own table."""
    table = evidence.schema.table(place.table)
    assert table is not None, "a place is of the schema"
    for owner, key in (*_referred(evidence, table, place.column), (table, "")):
        held: list[tuple[str, list[str]]] = []
        for other in _text_columns(owner, place.column if owner is table else key):
            alike = [_alike(evidence, Place(owner.name, other, ""), text) for text in texts]
            if all(len(found) == 1 for found in alike):
                held.append((other, [found[0] for found in alike]))
        if len(held) > 1:
            return None
        if held and not key:
            moved = column.copy()
            moved.set("this", _name(evidence, held[0][0]))
            return _among(moved, held[0][1])
        if held:
            inner = exp.select(exp.column(_name(evidence, key))).from_(exp.table_(_name(evidence, owner.name)))
            inner = inner.where(_among(exp.column(_name(evidence, held[0][0])), held[0][1]))
            return exp.In(this=column.copy(), query=exp.Subquery(this=inner))
    return None


def _name(evidence: Evidence, name: str) -> exp.Identifier:
    """A name, in quotes where it needs them."""
    return exp.to_identifier(name, quoted=quote_name(name, evidence.database.dialect) != name)


def _referred(evidence: Evidence, table: Table, column: str) -> Iterator[tuple[Table, str]]:
    """The tables that a column refers to by itself, each with the column referred to."""
    for key in table.foreign_keys:
        other = evidence.schema.table(key.ref_table)
        if other is not None and [name.lower() for name in key.columns] == [column.lower()] and key.ref_columns:
            yield other, key.ref_columns[0]


def _text_columns(table: Table, but: str) -> list[str]:
    names = [c.name for c in table.columns if TEXTUAL.search(c.type) or not c.type]
    return [name for name in names if name.lower() != but.lower()][:MOST_PLACES]


def _among(column: Tree, texts: list[str]) -> Tree:
    texts = list(dict.fromkeys(texts))
    made: Tree = column.eq(exp.Literal.string(texts[0])) if len(texts) == 1 else column.isin(*texts)
    return made


def _alike(evidence: Evidence, place: Place, text: str) -> list[str]:
    """The texts of a column that differ from ``text`` in case and in spaces around it at most; three suffice."""
    folded = exp.Lower(this=exp.Trim(this=cells(place)))
    query = exp.select(cells(place)).distinct().from_(exp.table_(place.table, quoted=True))
    seen = evidence.read(query.where(folded.eq(exp.Literal.string(text.strip().lower()))).limit(3), 3)
    return [value for (value,) in seen.rows if isinstance(value, str)]


def _empty(column: Tree) -> Tree:
    return exp.Is(this=column, expression=exp.Null())
