"""``validate_sql``, the check that a statement compiles on this database and that its names mean something.

>>> from nl2sql.databases.schema import Column, Schema, Table
>>> validate_sql("SELECT nme FROM customers", Schema((Table("customers", (Column("name"),)),)))
{'valid': False, 'reason': 'unknown_column:nme', 'suggestions': ['customers.name']}

Two judges. SQLite's EXPLAIN (through ``Database.explain``, in the sandbox) knows its own grammar, names and functions,
but reads a mistyped double-quoted column as a string. The scope walk (``nl2sql.sql.names``) catches that, and
stands in where no database is given. Where sqlglot cannot parse what EXPLAIN accepts, EXPLAIN wins. Reasons are
machine-readable and come with did-you-mean suggestions.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from nl2sql.databases.schema import Schema
from nl2sql.errors import one_line
from nl2sql.interfaces import Database
from nl2sql.sql.names import Problem, unresolved_names
from nl2sql.sql.text import KEYWORDS, Tree, parse, syntax_error, tokens

_MAX_SUGGESTIONS = 5  # did-you-mean names
_QUERY_STARTS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.VALUES, TokenType.L_PAREN})

_NO_VERDICT = frozenset({"timeout", "worker_died", "memory"})  # EXPLAIN did not get to say anything about the SQL

# SQLite's messages and the reasons they become; {0} is the first group. The first that matches counts.
_MESSAGES: tuple[tuple[str, str], ...] = (
    (r"no such column: (?P<column>.+?)(?: - should this be.*)?$", "unknown_column:{0}"),
    (r"ambiguous column name: (.+)$", "ambiguous_column:{0}"),
    (r"no such table: (?P<table>.+)$", "unknown_table:{0}"),
    (r"no such view: (?P<table>.+)$", "unknown_table:{0}"),
    (r"no such function: (?P<function>.+)$", "unknown_function:{0}"),
    (r"(near .+?): syntax error$", "syntax:{0}"),
    (r"(incomplete input|unrecognized token.*)$", "syntax:{0}"),
    (r"misuse of aliased aggregate (.+)$", "misuse_aggregate:{0}"),
    (r"misuse of aggregate(?: function)?:? ?(.+)$", "misuse_aggregate:{0}"),
    (r"misuse of window function (.+)$", "misuse_window:{0}"),
    (r"(.+) may not be used as a window function$", "misuse_window:{0}"),
    (r"wrong number of arguments to function (.+)$", "wrong_arguments:{0}"),
    (r"SELECTs to the left and right of (.+) do not have the same number of result columns", "column_count:{0}"),
    (r"sub-select returns (\d+) columns - expected (?:\d+)", "column_count:subquery"),
    (r"row value misused", "column_count:row value"),
    (r"a GROUP BY clause is required before HAVING|HAVING clause on a non-aggregate query", "having_without_group_by"),
    (r"aggregate functions are not allowed in the GROUP BY clause", "misuse_aggregate:GROUP BY"),
    (r"(.+) (?:ORDER|GROUP) BY term (?:does not match|out of range).*", "unknown_column:{0} ORDER BY term"),
    (r"(?:ORDER BY|LIMIT) clause should come after (.+) not before", "syntax:clause before {0}"),
    (r"cannot join using column (?P<column>.+?) - column not present in both tables", "unknown_column:{0}"),
    (r"no tables specified", "no_from"),
    (r"not allowed: ([^;]+)", "denied:{0}"),
    (r"not authorized.*|access to .+ is prohibited|denied.*", "denied"),
)


def validate_sql(sql: str, schema: Schema, database: Database | None = None) -> dict[str, Any]:
    """Whether a statement is one SELECT that compiles: ``{"valid": bool, "reason": str, "suggestions": [str]}``.

    Arguments: ``sql`` the statement; ``schema`` what its names are checked against; ``database`` where EXPLAIN is
    asked; without it, or when it fails to answer, the scope walk, SQLite's list of functions and its grammar judge.

    ``reason`` is ``ok`` or one of ``empty``, ``multi_statement``, ``not_select``, ``syntax:<what>``,
    ``unknown_table:<table>``, ``unknown_column:<table.column>`` (the table's own name, not its alias),
    ``ambiguous_column:<name>``, ``unknown_function:<name>``, ``misuse_aggregate:<function>``, ``wrong_arguments:...``,
    ``column_count:...``, ``having_without_group_by``, ``denied:<what>``, or ``other:<SQLite's message>``.
    ``suggestions`` are names to use instead, most likely first: ``table.column`` for columns.
    """
    stream = tokens(sql)
    if stream is None:
        return _rejected(_syntax_reason(syntax_error(sql) or "not parsable"))
    while stream and stream[-1].token_type == TokenType.SEMICOLON:
        stream.pop()
    if not stream:
        return _rejected("empty")
    statement = sql[: stream[-1].end + 1]
    if any(token.token_type == TokenType.SEMICOLON for token in stream):
        return _rejected("multi_statement")
    tree = parse(statement)
    if stream[0].token_type not in _QUERY_STARTS or (
        tree is not None and not isinstance(tree, (exp.Query, exp.Values))
    ):
        return _rejected("not_select")
    problems = _problems(statement, tree, schema)
    explained = database.explain(statement) if database is not None else None
    if explained is not None and explained.success:
        problems = [problem for problem in problems if problem.double_quoted]
    elif explained is not None and explained.error_kind not in _NO_VERDICT:
        return _explained(explained.error or explained.error_kind or "", problems, schema)
    elif (error := syntax_error(statement)) is not None:
        return _rejected(_syntax_reason(error))
    elif not problems and (name := _unknown_function(stream, tree)):
        return _rejected(f"unknown_function:{name}", _close(name, known_functions()))
    return _of_problem(problems[0], schema) if problems else _valid()


def _valid() -> dict[str, Any]:
    return {"valid": True, "reason": "ok", "suggestions": []}


def _rejected(reason: str, suggestions: Sequence[str] = ()) -> dict[str, Any]:
    return {"valid": False, "reason": reason, "suggestions": list(suggestions)[:_MAX_SUGGESTIONS]}


def _syntax_reason(message: str) -> str:
    return "syntax:" + message.removesuffix(": syntax error")[:120]


def _problems(sql: str, tree: Tree | None, schema: Schema) -> list[Problem]:
    if tree is None:
        return []
    try:
        return unresolved_names(sql, tree, schema)
    except RecursionError:  # thousands of nested or chained queries: EXPLAIN alone decides
        return []


def _of_problem(problem: Problem, schema: Schema) -> dict[str, Any]:
    if problem.kind == "unknown_table":
        return _rejected(f"unknown_table:{problem.name}", _close(problem.name, (t.name for t in schema.tables)))
    name = f"{problem.table}.{problem.name}" if problem.table else problem.name
    return _rejected(f"{problem.kind}:{name}", _columns_like(problem, schema))


def _explained(message: str, problems: list[Problem], schema: Schema) -> dict[str, Any]:
    """SQLite's message as a reason; the walk's problem of the same kind and name adds table and suggestions."""
    for pattern, reason in _MESSAGES:
        match = re.search(pattern, message, re.S)
        if match is None:
            continue
        subject = match.group(1).strip() if match.groups() else ""
        kind = reason.partition(":")[0]
        bare = subject.rpartition(".")[2].strip('"').lower()
        for problem in problems:
            if problem.kind == kind and problem.name.lower() == bare:
                return _of_problem(problem, schema)
        suggestions: list[str] = []
        if "table" in match.groupdict():
            suggestions = _close(bare, (table.name for table in schema.tables))
        elif "function" in match.groupdict():
            suggestions = _close(bare, known_functions())
        elif "column" in match.groupdict():
            suggestions = _columns_like(Problem(kind, bare), schema)
        return _rejected(reason.format(subject[:120]), suggestions)
    return _rejected("other:" + one_line(message, 120))


def _columns_like(problem: Problem, schema: Schema) -> list[str]:
    """``table.column`` names for a column that resolves to nothing (or to several), most likely first."""
    scope = [name.lower() for name in problem.tables]
    own = problem.table.lower()
    everything = [(table.name, column.name) for table in schema.tables for column in table.columns]

    def rank(entry: tuple[str, str]) -> int:
        table = entry[0].lower()
        return 0 if table == own else 1 if table in scope else 2

    exact = sorted((e for e in everything if e[1].lower() == problem.name.lower()), key=rank)
    if problem.kind == "ambiguous_column":
        exact = [e for e in exact if not scope or e[0].lower() in scope]
    suggestions = [f"{table}.{column}" for table, column in exact]
    for level in (0, 1, 2):
        names = {column.lower(): f"{table}.{column}" for table, column in everything if rank((table, column)) == level}
        suggestions += [names[close] for close in _close(problem.name.lower(), names)]
    return list(dict.fromkeys(suggestions))[:_MAX_SUGGESTIONS]


def _close(name: str, candidates: Iterable[str]) -> list[str]:
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    return [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)]


@functools.cache
def known_functions() -> frozenset[str]:
    """Lower-case names of the functions that this SQLite has."""
    connection = sqlite3.connect(":memory:")
    try:
        return frozenset(row[0].lower() for row in connection.execute("SELECT name FROM pragma_function_list"))
    finally:
        connection.close()


def _unknown_function(stream: list[Token], tree: Tree | None) -> str:
    """The first name that is called like a function and is none; "" without any, or without a tree to tell."""
    if tree is None:
        return ""
    called_otherwise = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    called_otherwise |= {alias.name.lower() for alias in tree.find_all(exp.TableAlias)}
    called_otherwise |= {
        table.this.name.lower() for table in tree.find_all(exp.Table) if not isinstance(table.this, exp.Identifier)
    }
    for name in _called(stream):
        if name.lower() not in known_functions() | called_otherwise | KEYWORDS:
            return name
    return ""


def _called(stream: list[Token]) -> Iterator[str]:
    for token, after in itertools.pairwise(stream):
        named = token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER) and token.text[:1].isalpha()
        if named and after.token_type == TokenType.L_PAREN and token.text.replace("_", "a").isalnum():
            yield token.text
