"""Repairs that need no model: SQL of another dialect, misspelled names, aliases; what is sound is left alone.

Each step is a small change to the statement's tokens, and what comes of it must compile and have no mistaken name; else
the statement is left to the model. Nothing here knows the question: a repaired statement runs, and may still be wrong.

``autofix("SELECT contct_name FROM customers", "no such column: contct_name", database, database.schema())`` gives
``SELECT contact_name FROM customers``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp

from nl2sql.databases.schema import Schema
from nl2sql.databases.validation import validate_sql
from nl2sql.interfaces import Database
from nl2sql.repair.clause_repairs import grouped_columns, moved_conditions, ordered_clauses, punctuated
from nl2sql.repair.readings import is_text, tokens_of, transpiled
from nl2sql.repair.registry import packaged
from nl2sql.repair.schema_names import (
    SURE,
    SchemaNames,
    bare,
    links,
    similar_columns,
    similar_names,
    spelled_with_table,
)
from nl2sql.sql.parse import parse_query, past_limits
from nl2sql.sql.text import statement_words

CLAUSES = frozenset(("select", "from", "join", "on", "where", "group by", "having", "order by", "limit"))
# Signs between two columns; between a column and itself they say nothing.
BESIDE = frozenset(("=", "==", "<>", "!=", "<", ">", "<=", ">=", "-", ","))
MAX_FIXED = 10_000  # characters: a list of 9,000 names is read in 1.3 s
MAX_STEPS = 4  # faults of one statement that are repaired in turn
MAX_TRIED = 12  # candidates that the engine is asked about in one step
WRONG_SHAPE = re.compile(r"intent_mismatch|missing_|clean_reject")  # no error of a name or a dialect


def autofix(sql: str, error: str, database: Database, schema: Schema) -> str | None:
    """``sql`` repaired, or None. ``error`` is the engine's message or the loop's reason.

    Deterministic. Asks the engine to compile candidates (``explain``), and runs nothing.
    """
    if WRONG_SHAPE.search(error) or len(sql) > MAX_FIXED or past_limits(sql):
        return None
    current = sql
    for _ in range(MAX_STEPS):
        problem = fault(current, database, schema)
        if not problem:
            return current if current != sql else None
        before = _idle_comparisons(current, database.dialect)
        moved = None  # the first candidate that is not sound at once, but moves the fault elsewhere
        for text in itertools.islice(_candidates(current, problem, database, schema), MAX_TRIED):
            if _idle_comparisons(text, database.dialect) > before:
                continue
            left = fault(text, database, schema)
            if not left:
                return text
            if moved is None and left != problem:
                moved = text
        if moved is None:
            return None
        current = moved
    return None


def fault(sql: str, database: Database, schema: Schema) -> str:
    """Why the engine refuses ``sql``, or a name in double quotes that SQLite takes for a text; "" if it is sound."""
    compiled = database.explain(sql)
    return mistaken_name(sql, database, schema) if compiled.success else compiled.error or "refused"


def mistaken_name(sql: str, database: Database, schema: Schema | None = None) -> str:
    """SQLite's own message for a name in double quotes that is no column; "" without one, and on other engines."""
    if database.dialect != "sqlite":
        return ""
    kind, _, name = str(validate_sql(sql, schema or database.schema(), database)["reason"]).partition(":")
    return f"no such column: {name}" if kind == "unknown_column" else ""


def _idle_comparisons(sql: str, dialect: str) -> int:
    """The number of columns that stand beside themselves: compared (a join on that joins everything with everything),
    subtracted, or listed twice."""
    words = [word.lower() for word in statement_words(sql, dialect)]
    dots = (at - 2 for at in range(4, len(words)) if words[at] == ".")  # of ... . a OPERATOR b . ...
    return sum(words[at] in BESIDE and words[at - 3 : at] == words[at + 1 : at + 4] for at in dots)


def _candidates(sql: str, error: str, database: Database, schema: Schema) -> Iterator[str]:
    match = packaged(database.dialect).find(error, sql)
    if match is None:
        return
    pattern, captured = match
    if pattern.category == "unknown_column" and "alias" in captured and "." not in captured.get("column", "."):
        captured["column"] = f"{captured['alias']}.{captured['column']}"  # DuckDB names them apart
    names = SchemaNames(schema, sql, database.dialect, captured)
    if pattern.category == "scope_error" and "table" in captured and "column" not in captured:
        words = names.words  # the engine names the table only: the first column that is asked of it
        uses = (at for at in range(len(words) - 2) if words[at].lower() == captured["table"].lower())
        behind = next((words[at + 2] for at in uses if words[at + 1] == "."), "")
        captured["column"] = f"{captured['table']}.{behind}" if behind else ""
    for repair in REPAIRS.get(pattern.category, ()):
        yield from (text for text in repair(sql, names) if text != sql)


# ------------------------------------------------------------------------------------------------------ the repairs


def _known_table(sql: str, names: SchemaNames) -> Iterator[str]:
    """A misspelled table becomes the closest real one."""
    wanted = bare(names.captured.get("table", ""))
    for real in similar_names(wanted, (table.name for table in names.schema.tables), cutoff=SURE):
        yield _replaced(sql, wanted, names.written(real), names.dialect)


def _known_alias(sql: str, names: SchemaNames) -> Iterator[str]:
    """A table's name before a dot becomes the alias that it has here."""
    qualifier = bare(names.captured.get("table", "")) or names.qualifier
    for alias, table in names.aliases.items():
        if table.name.lower() == qualifier.lower() and alias != qualifier.lower():
            yield _qualified(sql, qualifier, names.written(alias), names.dialect)


def _other_table(sql: str, names: SchemaNames) -> Iterator[str]:
    """A column before which the wrong table stands: the table of the FROM clause that has it."""
    for alias, table in names.aliases.items() if names.qualifier else ():
        if table.column(names.column) and alias != names.qualifier.lower():
            right = f"{names.written(alias)}.{names.written(names.column)}"
            yield _replaced(sql, names.wrong, right, names.dialect)


def _joined(sql: str, names: SchemaNames) -> Iterator[str]:
    """A column that only a table outside the FROM clause has: that table is joined by its foreign key."""
    name, qualifier = names.column, names.qualifier
    if qualifier and _links_tables(names.words, qualifier, name):
        return  # to join yet another table would leave the one before the dot unlinked
    for table in names.schema.tables:
        own = [
            c.name for c in table.columns if c.name.lower() == name.lower() or spelled_with_table(name, table, c.name)
        ]
        if table in names.used or not own:
            continue
        for alias, near in names.aliases.items():
            for condition in links(table, near, alias, names.dialect):
                joined = _with_join(sql, f" JOIN {names.written(table.name)} ON {condition}", names.dialect)
                if joined is not None:
                    right = f"{names.written(table.name)}.{names.written(own[0])}"
                    yield _replaced(joined, names.wrong, right, names.dialect)


def _links_tables(words: Sequence[str], qualifier: str, column: str) -> bool:
    """Whether ``qualifier.column`` is compared in an ON."""
    clause = ""
    for at, word in enumerate(word.lower() for word in words):
        clause = word if word in CLAUSES else clause
        if clause == "on" and [w.lower() for w in words[at : at + 3]] == [qualifier.lower(), ".", column.lower()]:
            return True
    return False


def _known_column(sql: str, names: SchemaNames) -> Iterator[str]:
    """A misspelled column becomes the closest real one of a table that the statement names."""
    own, qualifier = names.aliases.get(names.qualifier.lower()), names.qualifier
    alias_of = {table.name.lower(): alias for alias, table in names.aliases.items()}
    for table, column_there in similar_columns(names.column, names.schema, own, names.used, SURE):
        alias, real = alias_of.get(table.lower()), names.written(column_there)
        if alias is None:
            continue
        alias = names.written(alias)
        if not qualifier:
            yield _replaced(sql, names.wrong, real, names.dialect)
        yield _replaced(sql, names.wrong, f"{alias}.{real}", names.dialect)


def _disambiguated(sql: str, names: SchemaNames) -> Iterator[str]:
    """A column of several tables gets the first of them where the statement joins them on just this column, and the
    other of two where it is compared with the one."""
    name = names.column
    owners = [alias for alias, table in names.aliases.items() if table.column(name)]
    words = [word.lower() for word in names.words]
    for at in range(1, len(words) - 4):
        if words[at : at + 2] == [name.lower(), "="] and words[at - 1] != "." and words[at + 4] == name.lower():
            others = [alias for alias in owners if alias != words[at + 2]]
        elif words[at : at + 5] == [words[at], ".", name.lower(), "=", name.lower()] and words[at + 5 : at + 6] != [
            "."
        ]:
            others = [alias for alias in owners if alias != words[at]]
        else:
            continue
        if len(others) == 1:
            yield _replaced(sql, name, f"{names.written(others[0])}.{names.written(name)}", names.dialect)
    plain = re.sub(r"[\"`\[\]\s]", "", sql.lower())
    for first in owners:
        for second in owners:
            if f"{first}.{name}={second}.{name}".lower() in plain:
                yield _replaced(sql, name, f"{names.written(first)}.{names.written(name)}", names.dialect)
                return


REPAIRS: dict[str, Sequence[Callable[[str, SchemaNames], Iterator[str]]]] = {
    "unknown_table": (_known_table, _known_alias),
    "scope_error": (_known_alias, _other_table, _joined, moved_conditions),
    "unknown_column": (_known_alias, _other_table, _joined, _known_column),
    "ambiguous_column": (_disambiguated,),
    "unsupported_function": (transpiled,),
    "unsupported_syntax": (transpiled,),
    "unsupported_join": (transpiled,),
    "aggregation_error": (moved_conditions, grouped_columns),
    "syntax_error": (ordered_clauses, punctuated, transpiled),
}


# -------------------------------------------------------------------------------------------------- editing by tokens


def _replaced(sql: str, wrong: str, right: str, dialect: str) -> str:
    """``sql`` with the name ``wrong`` (``name`` without, or ``table.name`` with a qualifier) written as ``right``."""
    tokens = [token for token in tokens_of(sql, dialect) if not is_text(token)]
    parts = [part.lower() for part in wrong.split(".")]
    words = [token.text.lower() for token in tokens]
    wanted = [parts[0]] if len(parts) == 1 else [parts[0], ".", parts[1]]
    result, done = [], 0
    for at in range(len(tokens) - len(wanted) + 1):
        follows_dot = at and words[at - 1] == "."
        called = len(parts) == 1 and words[at + 1 : at + 2] in (["("], ["."])
        if words[at : at + len(wanted)] == wanted and not follows_dot and not (called and "." in right):
            result += [sql[done : tokens[at].start], right]
            done = tokens[at + len(wanted) - 1].end + 1
    return "".join([*result, sql[done:]])


def _qualified(sql: str, wrong: str, right: str, dialect: str) -> str:
    """``sql`` with the qualifier ``wrong`` before a dot written as ``right``."""
    result, done = [], 0
    for token, behind in itertools.pairwise(tokens_of(sql, dialect)):
        if token.text.lower() == wrong.lower() and behind.text == ".":
            result += [sql[done : token.start], right]
            done = token.end + 1
    return "".join([*result, sql[done:]])


def _with_join(sql: str, join: str, dialect: str) -> str | None:
    """``sql`` with ``join`` at the end of the outermost FROM clause; None where there is none to be found."""
    depth, inside = 0, False
    for token in tokens_of(sql, dialect):
        word = token.text.upper()
        depth += {"(": 1, ")": -1}.get(word, 0)
        if depth == 0 and word == "FROM":
            inside = True
        elif inside and depth == 0 and (word in AFTER_FROM or token.token_type.name in ("GROUP_BY", "ORDER_BY")):
            return f"{sql[: token.start].rstrip()}{join} {sql[token.start :]}"
    return f"{sql.rstrip().rstrip(';').rstrip()}{join}" if inside and depth == 0 else None


AFTER_FROM = frozenset(("WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "EXCEPT", "INTERSECT", "WINDOW", ";"))


# --------------------------------------------------------------------------- the part that is sound
# On the packaged ``scale_models`` database, ``SELECT nam FROM customers WHERE country = 'France'``
# gives ``FROM customers WHERE country = 'France'``.

CUT_CLAUSES = ("where", "group")
MAX_CHARS = 600  # in a prompt; a longer part is left out


def valid_part(sql: str, database: Database) -> str:
    """The longest beginning of ``FROM ... WHERE ... GROUP BY ...`` that compiles on its own; "" where not even FROM
    does, where the statement is sound as it is, or where it cannot be parsed."""
    tree = parse_query(sql, database.dialect)
    if not isinstance(tree, exp.Select) or tree.args.get("from_") is None or database.explain(sql).success:
        return ""
    probe = exp.select("1")
    for part in ("with_", "from_", "joins", "laterals"):
        if tree.args.get(part):
            probe.set(part, tree.args[part])
    sound = ""
    for clause in ("", *CUT_CLAUSES):
        if clause:
            if tree.args.get(clause) is None:
                continue
            probe.set(clause, tree.args[clause])
        text = probe.sql(dialect=database.dialect)
        if not database.explain(text).success:
            break
        sound = text.replace("SELECT 1 ", "", 1)
    return sound if len(sound) <= MAX_CHARS else ""
