"""Follow-ups about rows of another table that belong to those shown: "which of these have no orders?".

Behind ``SELECT company FROM customers`` on ``scale_models`` this adds ``NOT customer_id IN (SELECT customer_id FROM
"order" ...)``; where the rows themselves have the other table's key, that key IS NULL ("those without a manager"). Only
tables one key away are looked at. Not covered: how many there are ("more than three orders"), and what else is said of
them ("no orders in May").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sqlglot import exp

from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.databases.schema import Schema, Table
from nl2sql.sessions.members import select_of
from nl2sql.sessions.naming import Named, alike, edit_words, named_column, named_table
from nl2sql.sessions.reading import Phrase
from nl2sql.sessions.statement import Statement
from nl2sql.sessions.tables import links
from nl2sql.sql.words import words

_HAVING = re.compile(
    r"\b(?:(?:do(?:es)? not|don't|doesn't|never|not) (?P<never>have|has|had|having)(?: an?| any)?"
    r"|(?P<without>without|lack|lacks|lacking|missing)(?: an?| any)?"
    r"|(?:have|has|had|having|with)(?: (?P<no>no|not any)| at least one| any| some| an?)?)"
    r" (?P<what>[a-z_]+(?: [a-z_]+)?)(?: (?:at all|yet|so far))?\s*(?=[?.!;]|$)"
)
_NEVER = re.compile(
    r"\b(?:never|not|haven't|hasn't)(?: yet)? (?P<what>[a-z_]+ed)(?: (?:anything|yet|at all))?\s*(?=[?.!;]|$)"
)

_FILLER = frozenset([*STOP_WORDS, "too", "only", "please", "also", "though", "either", "instead", "yet"])


def related(text: str, statement: Statement) -> Iterator[tuple[tuple[int, int], Table, exp.Expr, str]]:
    """(place in ``text``, the other table, the condition, what else is said of its rows) for each such part of a
    follow-up in lower case."""
    for match, phrase, absent in _said(text):
        table = named_table((*phrase, *(word.removesuffix("ed") for word in phrase)), statement.schema)
        parts = [named_column(part, statement) for part in (phrase, phrase[-1:])]
        own = [named for named in parts if named and statement.away(named.table) < 1]
        if own and not (match.re is _NEVER and table and all(_by_synonym(phrase, named) for named in own)):
            continue
        condition = _condition(table, statement, absent) if table and statement.distance(table.name) == 1 else None
        if table and condition is not None:
            called = {stem(part) for part in words(table.name)}
            more = [word for word in phrase if stem(word) not in called and word not in _FILLER]
            yield match.span(), table, condition, " ".join(more) if match.re is _HAVING else ""


def _by_synonym(phrase: Phrase, named: Named) -> bool:
    """Has the column another word for it: a name for "called", where there are calls?"""
    return not {stem(word) for word in phrase} & {stem(part) for part in words(named.column)}


def _moves(table: str, before: Statement, after: Statement, text: str) -> bool:
    """Is something else asked of a table that was joined by one key, where the words may name another: "to Vienna"?"""
    keys = {name for name in said_of(text, after.schema) if "." in name}
    return bool(keys) and _asked_of(table, before) != _asked_of(table, after)


def _asked_of(table: str, statement: Statement) -> list[str]:
    compared = ((c, statement.column_compared(c)) for c in statement.conditions())
    return [c.sql() for c, column in compared if column and column[0] == table.lower()]


def _said(text: str) -> Iterator[tuple[re.Match[str], Phrase, bool]]:
    for match in _HAVING.finditer(text):
        yield match, tuple(words(match["what"])), bool(match["never"] or match["without"] or match["no"])
    for match in _NEVER.finditer(text):
        yield match, tuple(words(match["what"])), True


def _condition(table: Table, statement: Statement, absent: bool) -> exp.Expr | None:
    """A key of the statement among those of ``table``, or not among them; None where no single column links them."""
    for source in statement.sources().values():
        for pairs, other in links(source, statement.schema):
            if other.name != table.name or len(pairs) != 1:
                continue
            [(mine, theirs)] = pairs
            if any(
                key.columns == (mine,) and key.ref_table.lower() == table.name.lower() for key in source.foreign_keys
            ):
                missing = exp.Is(this=statement.column(source.name, mine), expression=exp.Null())
                return missing if absent else exp.Not(this=missing)
            found = select_of(statement, table.name, theirs, absent).tree
            among = exp.In(this=statement.column(source.name, mine), query=exp.Subquery(this=found))
            return exp.Not(this=among) if absent else among
    return None


def keys_are_said(text: str, before: Statement, after: Statement) -> None:
    """Raise LookupError where ``after`` joins a table by one of two keys to it, and the words do not say by which."""
    used = _keys_used(before)
    for column, table, other in _keys_used(after):
        if (column, table, other) in used and not _moves(other, before, after, text):
            continue
        source, target = after.schema.table(table), after.schema.table(other)
        if source and target and (word := which_key(source, column, target, text)):
            raise LookupError(f"{other} by {word}")


def _keys_used(statement: Statement) -> set[tuple[str, str, str]]:
    """(column, its table, the other table) of each column by which two tables hang together, by a join or ``IN``."""
    found: set[tuple[str, str, str]] = set()
    pairs = [(eq.this, eq.expression, statement) for eq in statement.tree.find_all(exp.EQ)]
    for condition, inner, _ in statement.selects_within():
        found |= _keys_used(inner)
        pairs += [(among.this, inner.tree.expressions[0], inner) for among in condition.find_all(exp.In)][:1]
    for mine, theirs, there in pairs:
        if isinstance(mine, exp.Column) and isinstance(theirs, exp.Column):
            table, other = statement.table_of(mine), there.table_of(theirs)
            if table and other:
                found |= {(mine.name, table.name, other.name), (theirs.name, other.name, table.name)}
    return found


def which_key(table: Table, column: str, other: Table, text: str) -> str:
    """The word that tells ``column`` from another key of ``table`` to ``other``; "" where ``text`` says it, or no other
    is there.

    A match has a home and an away team: "of Rovers" may mean either. A flight "from Oslo" has it as its origin.
    """
    own = words(column)
    for key in table.foreign_keys:
        if key.ref_table.lower() == other.name.lower() and len(key.columns) == 1 and key.columns != (column,):
            others = words(key.columns[0])
            mine = [word for word in own if word not in others]
            theirs = [word for word in others if word not in own]
            if _says(theirs, text) or (mine and not _says(mine, text)):
                return " ".join(mine or theirs)
    return ""


def said_of(text: str, schema: Schema) -> frozenset[str]:
    """The tables, and the keys of those with several to one table ("table.column"), that a follow-up names; in lower
    case."""
    asked = {stem(word) for word in words(text)}
    found = {table.name.lower() for table in schema.tables if {stem(word) for word in words(table.name)} <= asked}
    for table in schema.tables:
        for key in table.foreign_keys:
            target = schema.table(key.ref_table)
            others = [k for k in table.foreign_keys if k.ref_table == key.ref_table and k.columns != key.columns]
            if target and others and len(key.columns) == 1 and not which_key(table, key.columns[0], target, text):
                found.add(f"{table.name}.{key.columns[0]}".lower())
    return frozenset(found)


def _says(parts: Sequence[str], text: str) -> bool:
    """Is one of these parts of a key's name said, or a preposition for it: "from" for an origin?"""
    asked, ways = words(text), edit_words()["directions"]
    content = [word for word in asked if word not in STOP_WORDS or word in parts]
    return any(alike(word, part) for word in content for part in parts) or any(
        part in ways.get(word, ()) for word in asked for part in parts
    )
