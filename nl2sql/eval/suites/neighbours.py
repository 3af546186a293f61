"""Neighbours of a gold query: the same query with one thing wrong, each tagged with its kind.

``neighbours_of(sql, source, seed=0)`` mutates the syntax tree (``mutations.py``). What
cannot show in the answer is not made where that is easy to see (``mutator``); some neighbours are equivalent all the
same. Whether one compiles is found out where it is executed (``arena.py``).

``SELECT name FROM shop WHERE sales > 10`` gives, among others, ``("comparison", "... WHERE sales >= 10")``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from sqlglot import expressions as exp
from sqlglot.errors import SqlglotError

from nl2sql.errors import UsageError
from nl2sql.eval.suites import mutations
from nl2sql.eval.suites.mutator import NULLS, REPEATS, TIES, Mutator, Neighbour, scopes_of
from nl2sql.eval.suites.source import SourceDatabase
from nl2sql.sql.parse import parse_bounded

MOST = 110  # neighbours per gold

KINDS = (
    "comparison",
    "column",
    "constant",
    "distinct",
    "join",
    "null",
    "clause",
    "connective",
    "order",
    "limit",
    "aggregate",
    "set operation",
    "grouping",
    "added condition",
)
MUTATIONS: tuple[Callable[[Mutator], None], ...] = (
    mutations.comparisons,
    mutations.connectives,
    mutations.conditions,
    mutations.constants,
    mutations.columns,
    mutations.distincts,
    mutations.joins,
    mutations.nulls,
    mutations.clauses,
    mutations.orders,
    mutations.limits,
    mutations.aggregates,
    mutations.set_operations,
    mutations.groups,
)

__all__ = ["KINDS", "NULLS", "REPEATS", "TIES", "Neighbour", "neighbours_of", "parse_gold"]


def parse_gold(sql: str, source: SourceDatabase) -> exp.Query:
    """The tree of a gold; double-quoted text that names no column becomes a string, as SQLite reads it.

    Raises UsageError for what is not one query that sqlglot can read.
    """
    try:
        tree = parse_bounded(sql)
    except SqlglotError as error:
        raise UsageError(f"no neighbours of a query that does not parse: {str(error).splitlines()[0]}") from None
    if not isinstance(tree, exp.Query):
        raise UsageError(f"no neighbours of {type(tree).__name__}; expected a SELECT")
    scopes = scopes_of(tree, source)
    for column in list(tree.find_all(exp.Column)):
        identifier = column.this
        if column.table or not isinstance(identifier, exp.Identifier) or not identifier.quoted:
            continue
        select = column.find_ancestor(exp.Select)
        scope = scopes.get(id(select)) if select else None
        known = any(name.lower() == column.name.lower() for s in scopes.values() for name in _aliases(s.select))
        if scope and not known and scope.find(column) is None and all(t is not None for t in scope.sources.values()):
            column.replace(exp.Literal.string(column.name))
    return tree


def _aliases(select: exp.Select) -> Iterator[str]:
    return (item.alias for item in select.expressions if item.alias)


def neighbours_of(sql: str, source: SourceDatabase, *, seed: int = 0) -> list[Neighbour]:
    """Neighbours of ``sql``, no two with the same text, at most ``MOST``.

    Raises UsageError where the gold cannot be parsed.
    """
    m = Mutator(parse_gold(sql, source), source, seed)
    original = m.text()
    for mutation in MUTATIONS:
        mutation(m)
        if m.text() != original:
            raise AssertionError(f"{mutation.__name__} did not put the query back: {m.text()}")
    mutations.top_up(m)
    return _thinned([n for n in m.neighbours.values() if n.kind != "gold"], m.rng)


def _thinned(variants: list[Neighbour], rng: random.Random) -> list[Neighbour]:
    """At most ``MOST``, the most numerous kinds thinned first."""
    by_kind: dict[str, list[Neighbour]] = {}
    for neighbour in variants:
        by_kind.setdefault(neighbour.kind, []).append(neighbour)
    while sum(map(len, by_kind.values())) > MOST:
        largest = max(by_kind.values(), key=len)
        largest.pop(rng.randrange(len(largest)))
    kept = {n.sql for group in by_kind.values() for n in group}
    return [n for n in variants if n.sql in kept]
