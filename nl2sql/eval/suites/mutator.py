"""The tree that every mutation changes for a moment, with its SELECTs, and the place where neighbours are noted.

A mutation changes the tree in place, writes it down (``emit``), and puts it back (``put``, ``setting``).

>>> constant_value(exp.Neg(this=exp.Literal.number(3)))
-3
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlglot import expressions as exp

from nl2sql.eval.suites.scopes import Ref, Scope, scopes_of
from nl2sql.eval.suites.source import SourceDatabase

PER_SITE = 4  # columns tried in place of one column, values in place of one constant
COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
SET_OPERATIONS = (exp.Union, exp.Intersect, exp.Except)

NULLS, TIES, REPEATS = ("NULLs",), ("ties",), ("repeats",)  # ... NULLs, values that occur twice, rows that nearly do


@dataclass(frozen=True)
class Neighbour:
    kind: str
    sql: str
    touches: tuple[str, int, Any] | None = None  # table, column and what of it tells the two apart: a constant or ...


class Mutator:
    """The tree of a gold, and the neighbours found so far by their text."""

    def __init__(self, tree: exp.Query, source: SourceDatabase, seed: int) -> None:
        self.holder = exp.Paren(this=tree)  # so that the outermost query can be replaced as well
        self.source = source
        self.rng = random.Random(f"{seed}/{tree.sql('sqlite')}")
        self.scopes = scopes_of(tree, source)
        self.neighbours: dict[str, Neighbour] = {self.text(): Neighbour("gold", "")}

    def text(self) -> str:
        return self.holder.this.sql("sqlite")

    def emit(self, kind: str, touches: tuple[str, int, Any] | None = None) -> None:
        sql = self.text()
        self.neighbours.setdefault(sql, Neighbour(kind, sql, touches))

    def swap(
        self,
        kind: str,
        node: exp.Expr,
        new: exp.Expr,
        touches: tuple[str, int, Any] | None = None,
    ) -> None:
        with put(node, new):
            self.emit(kind, touches)

    def touch(self, scope: Scope, ref: Ref | None, what: Any) -> tuple[str, int, Any] | None:
        return (scope.table(ref).name, ref[1], what) if ref else None

    def nodes(self, *kinds: type[Any]) -> list[Any]:
        return list(self.holder.find_all(*kinds))

    def scope_of(self, node: exp.Expr) -> Scope | None:
        select = node.find_ancestor(exp.Select)
        return self.scopes.get(id(select)) if select else None

    def with_condition(
        self,
        kind: str,
        scope: Scope,
        condition: exp.Expr,
        touches: tuple[str, int, Any] | None = None,
    ) -> None:
        select = scope.select
        where = select.args.get("where")
        if where is None:
            with setting(select, "where", exp.Where(this=condition)):
                self.emit(kind, touches)
        else:
            old = where.this
            left = exp.Paren(this=old.copy()) if isinstance(old, exp.Or) else old.copy()
            with setting(where, "this", exp.And(this=left, expression=condition)):
                self.emit(kind, touches)

    def some_refs(self, scope: Scope, count: int) -> list[Ref]:
        refs = list(scope.refs())
        return self.rng.sample(refs, min(count, len(refs)))


@contextmanager
def put(node: exp.Expr, new: exp.Expr) -> Iterator[None]:
    """``new`` in the place of ``node`` for a while."""
    node.replace(new)
    try:
        yield
    finally:
        new.replace(node)


@contextmanager
def setting(node: exp.Expr, key: str, value: Any) -> Iterator[None]:
    """Another value of one argument of ``node`` for a while."""
    old = node.args.get(key)
    node.set(key, value)
    try:
        yield
    finally:
        node.set(key, old)


def in_on(node: exp.Expr) -> bool:
    join = node.find_ancestor(exp.Join, exp.Select)
    return isinstance(join, exp.Join)


def within(node: exp.Expr, ancestor: exp.Expr) -> bool:
    above: exp.Expr | None = node
    while above is not None:
        if above is ancestor:
            return True
        above = above.parent
    return False


def condition_of(node: exp.Expr) -> exp.Expr | None:
    return node.find_ancestor(*COMPARISONS, exp.Select)


def own_values(scope: Scope, ref: Ref) -> list[Any]:
    """Values of the column in the original that are of its type and can be written as a constant."""
    table = scope.table(ref)
    kind = (int, float) if table.numeric[ref[1]] else str
    values = dict.fromkeys(row[ref[1]] for row in table.rows[:60] if isinstance(row[ref[1]], kind))
    return [v for v in values if not isinstance(v, str) or (0 < len(v) < 60 and v.isprintable())]


def same_value(value: Any, text: str) -> bool:
    try:
        return str(value) == text or (not isinstance(value, str) and float(value) == float(text))
    except ValueError:
        return False


def number(value: float) -> exp.Expr:
    return exp.Neg(this=exp.Literal.number(-value)) if value < 0 else exp.Literal.number(value)


def constant_value(node: Any) -> Any:
    """The value of a constant as it is written in SQL; None for anything else."""
    sign = 1
    while isinstance(node, (exp.Neg, exp.Paren)):
        sign = -sign if isinstance(node, exp.Neg) else sign
        node = node.this
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return node.this
    for kind in (int, float):
        try:
            return sign * kind(node.this)
        except ValueError:
            continue
    return None
