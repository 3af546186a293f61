"""Neighbours of a gold query: the same query with one thing wrong, each tagged with its kind.

``neighbours_of(sql, source, seed=0)`` mutates the syntax tree: its shape (columns, joins, clauses, groups) and its
conditions (constants, NULLs, ANDs). Some neighbours mean what the gold means. Whether one compiles is found out where
it is executed (``distil.py``).

``SELECT name FROM shop WHERE sales > 10`` gives, among others, ``("comparison", "... WHERE sales >= 10")``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from sqlglot import expressions as exp

from nl2sql.eval.suites.arena import SourceDatabase
from nl2sql.eval.suites.mutator import (
    AGGREGATES,
    COMPARISONS,
    PER_SITE,
    SET_OPERATIONS,
    Mutator,
    Neighbour,
    Ref,
    Scope,
    and_parts,
    constant_value,
    literal,
    own_values,
    parse_gold,
    setting,
)

MOST = 110  # neighbours per gold
WANTED = 56  # conditions are added until there are so many
INSTEAD: dict[type[exp.Expr], tuple[str, tuple[type[exp.Expr], ...]]] = {  # kind, and what stands in its place
    exp.EQ: ("comparison", (exp.NEQ, exp.GTE, exp.LTE)),
    exp.NEQ: ("comparison", (exp.EQ, exp.LT, exp.GT)),
    exp.LT: ("comparison", (exp.LTE, exp.GT, exp.NEQ)),
    exp.LTE: ("comparison", (exp.LT, exp.GTE, exp.EQ)),
    exp.GT: ("comparison", (exp.GTE, exp.LT, exp.NEQ)),
    exp.GTE: ("comparison", (exp.GT, exp.LTE, exp.EQ)),
    exp.Like: ("comparison", (exp.EQ,)),
    exp.And: ("connective", (exp.Or,)),
    exp.Or: ("connective", (exp.And,)),
    **{kind: ("aggregate", tuple(k for k in AGGREGATES if k is not kind)) for kind in AGGREGATES},
}
KINDS_IN = {exp.Join: "join", exp.Group: "grouping", exp.Ordered: "order"}  # of a column that stands in one


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
    top_up(m)
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


# -------------------------------------------------------------------------------------- single nodes


def operators(m: Mutator) -> None:
    """Another comparison, connective or aggregate; one side of AND and OR; NOT put in or taken out."""
    for node in m.nodes(*INSTEAD, exp.In, exp.Between, exp.Exists, exp.Is):
        if isinstance(node, COMPARISONS) and isinstance(node.find_ancestor(exp.Join, exp.Select), exp.Join):
            continue
        kind, others = INSTEAD.get(type(node), ("null" if isinstance(node, exp.Is) else "comparison", ()))
        parts = {key: node.args[key] for key in ("this", "expression") if node.args.get(key) is not None}
        for other in others if not isinstance(node.this, exp.Star) else ():
            new: exp.Expr = other(**{key: part.copy() for key, part in parts.items()})
            inside = isinstance(node, exp.Connector) and isinstance(node.parent, (exp.Connector, exp.Not))
            m.swap(kind, node, exp.Paren(this=new) if inside else new, m.touch(node.this, node.args.get("expression")))
        if isinstance(node, exp.Connector):
            for part in parts.values():
                m.swap("clause", node, part.copy())
        elif isinstance(node, (exp.Like, exp.In, exp.Between, exp.Exists, exp.Is)):
            if node.args.get("negate"):  # how sqlglot notes NOT LIKE
                with setting(node, "negate", None):
                    m.emit(kind)
            elif isinstance(node.parent, exp.Not):
                m.swap(kind, node.parent, node.copy())
            else:
                m.swap(kind, node, exp.Not(this=node.copy()))


def ranges(m: Mutator) -> None:
    """BETWEEN without one of its ends, or without one of its bounds."""
    for node in m.nodes(exp.Between):
        value, low, high = node.this, node.args["low"], node.args["high"]
        for above, below, touched in ((exp.GTE, exp.LT, high), (exp.GT, exp.LTE, low)):
            sides = above(this=value.copy(), expression=low.copy()), below(this=value.copy(), expression=high.copy())
            new = exp.Paren(this=exp.And(this=sides[0], expression=sides[1]))
            m.swap("comparison", node, new, m.touch(value, touched))
        m.swap("comparison", node, exp.GTE(this=value.copy(), expression=low.copy()), m.touch(value, high))
        m.swap("comparison", node, exp.LTE(this=value.copy(), expression=high.copy()), m.touch(value, low))


def columns(m: Mutator) -> None:
    for node in m.nodes(exp.Column):
        scope = m.scope_of(node)
        place = scope.find(node) if scope else None
        if place is None or isinstance(node.this, exp.Star):
            continue
        owner, ref = place[0], place[1:]
        numeric = owner.table(ref).numeric[ref[1]]
        others = [o for o in owner.refs() if o != ref and owner.table(o).numeric[o[1]] == numeric]
        m.rng.shuffle(others)
        near, far = ([o for o in others if (o[0] == ref[0]) is same] for same in (True, False))
        kind = KINDS_IN.get(type(node.find_ancestor(*KINDS_IN, exp.Select)), "column")
        for other in (near[:PER_SITE] + far[:2])[: PER_SITE + 1]:
            m.swap(kind, node, owner.column(other, qualified=bool(node.table)))


def constants(m: Mutator) -> None:
    for node in m.nodes(exp.Literal):
        above = node.parent
        if isinstance(above, (exp.Limit, exp.Offset, exp.Ordered, exp.Group, exp.Alias, exp.DataType, exp.Select)):
            continue
        values: list[Any] = []
        if not node.is_string:
            value = constant_value(node)
            values = [value + 1, value - 1] if isinstance(value, int) or math.isfinite(value or math.inf) else []
        elif isinstance(above, exp.Like):
            core = node.this.strip("%")
            values = [core, "%" + core, core + "%", f"%{core}%"]
            values += [node.this.replace(core, part) for part in (core[:-1], core[1:]) if part]
        elif len(node.this) > 1:
            values = [node.this[:-1]]
        beside = above.find_all(exp.Column) if above else ()
        place = next((found for column in beside if (found := m.place(column))), None)
        if place:
            own = [v for v in own_values(*place) if isinstance(v, str) == node.is_string]
            values += m.rng.sample(own, min(PER_SITE, len(own)))
        for value in dict.fromkeys(values):
            touched = (place[0].table(place[1]).name, place[1][1], value) if place else None
            m.swap("constant", node, literal(value), touched)


def set_operations(m: Mutator) -> None:
    """One of the branches alone, another operation, and the branches of EXCEPT the other way round."""
    for node in m.nodes(*SET_OPERATIONS):
        left, right = node.this, node.expression
        if not node.args.get("order") and not node.args.get("limit"):
            for branch in (left, right):
                m.swap("set operation", node, branch.copy())
        forms = [(exp.Union, True), (exp.Union, False), (exp.Intersect, True), (exp.Except, True)]
        rest = {key: value for key, value in node.copy().args.items() if key not in ("distinct", "this", "expression")}
        for other, distinct in forms:
            m.swap("set operation", node, other(this=left.copy(), expression=right.copy(), distinct=distinct, **rest))
        if isinstance(node, exp.Except):
            turned = exp.Except(this=right.copy(), expression=left.copy(), distinct=True, **rest)
            m.swap("set operation", node, turned)


# ------------------------------------------------------------------------------------- whole SELECTs


def clauses(m: Mutator) -> None:
    """A clause is forgotten; the order falls for rising; another LIMIT."""
    for query in m.nodes(exp.Select, *SET_OPERATIONS):
        for key in ("where", "having", "order", "limit", "group"):
            if query.args.get(key) is not None:
                with setting(query, key, None):
                    m.emit(key if key in ("order", "limit") else "clause")
        limit = query.args.get("limit")
        if limit and query.args.get("order"):
            with setting(query, "order", None), setting(query, "limit", None):
                m.emit("clause")
        count = constant_value(limit.expression) if limit else 0
        for other in (count + by for by in ((1, -1, 2) if limit else (1,))) if isinstance(count, int) else ():
            if other > 0:
                with setting(query, "limit", exp.Limit(expression=literal(other))):
                    m.emit("limit")
    for node in m.nodes(exp.Ordered):
        falls = bool(node.args.get("desc"))
        with setting(node, "desc", not falls), setting(node, "nulls_first", falls):  # as SQLite sorts NULLs
            m.emit("order")
        _without_one(m, "order", node.parent)


def _without_one(m: Mutator, kind: str, parent: Any) -> None:
    """The keys of ORDER BY or GROUP BY without one of them."""
    keys = parent.expressions
    for key in keys if len(keys) > 1 else ():
        with setting(parent, "expressions", [k for k in keys if k is not key]):
            m.emit(kind)


def groups(m: Mutator) -> None:
    for scope in m.scopes.values():
        group = scope.select.args.get("group")
        if group is None:
            continue
        _without_one(m, "grouping", group)
        keys = group.expressions
        known = {scope.ref(key) for key in keys}
        for ref in m.some_refs(scope, PER_SITE):
            computed = len(keys) == 1 and not isinstance(keys[0], exp.Column)
            for before in ([key.copy() for key in keys], *([[]] if computed else ())):
                if ref not in known:
                    with setting(group, "expressions", [*before, scope.column(ref)]):
                        m.emit("grouping")


def joins(m: Mutator) -> None:
    """Another side; a condition less; a join that nothing else needs dropped."""
    for scope in m.scopes.values():
        joins = scope.select.args.get("joins") or []
        for at, join in enumerate(joins):
            if not join.args.get("on") or join.method:
                continue
            for side in ("", "LEFT", "RIGHT"):
                if side != join.side.upper() and not (side == "RIGHT" and (at or len(joins) > 1)):
                    with setting(join, "side", side or None), setting(join, "kind", None):
                        m.emit("join")
            for part in list(and_parts(join.args["on"])):
                if isinstance(part, exp.EQ) and part is not join.args["on"]:
                    m.swap("join", part, exp.true())
            with setting(scope.select, "joins", [j for j in joins if j is not join]):
                m.emit("join")


def distincts(m: Mutator) -> None:
    for scope in m.scopes.values():
        with setting(scope.select, "distinct", None if scope.select.args.get("distinct") else exp.Distinct()):
            m.emit("distinct")
        for node in scope.own(exp.Count, exp.Sum, exp.Avg):
            inner = node.this
            if isinstance(inner, exp.Distinct):
                if len(inner.expressions) == 1 and isinstance(node, exp.Count):
                    m.swap("distinct", inner, inner.expressions[0].copy())
                continue
            star = isinstance(inner, exp.Star)
            for counted in [scope.column(ref) for ref in m.some_refs(scope, 2)] if star else [inner.copy()]:
                m.swap("distinct", inner, exp.Distinct(expressions=[counted]))


def nulls(m: Mutator) -> None:
    """COUNT(*) for COUNT of a column and the reverse, COALESCE, IS NOT NULL, NULLs let through a comparison."""
    for scope in m.scopes.values():
        for node in scope.own(*AGGREGATES):
            ref = scope.ref(node.this)
            if isinstance(node.this, exp.Star):
                for other in m.some_refs(scope, 4):
                    m.swap("null", node.this, scope.column(other))
                    for kind in (exp.Max, exp.Sum if scope.table(other).numeric[other[1]] else exp.Min):
                        m.swap("aggregate", node, kind(this=scope.column(other)))
            elif isinstance(node, exp.Count) and not isinstance(node.this, exp.Distinct):
                m.swap("null", node.this, exp.Star())
            elif ref and scope.may_be_null(ref):
                zero = literal(0 if scope.table(ref).numeric[ref[1]] else "")
                m.swap("null", node.this, exp.Coalesce(this=node.this.copy(), expressions=[zero]))
        for ref in sorted({own for column in scope.own(exp.Column) if (own := scope.ref(column))}):
            if scope.may_be_null(ref):
                m.with_condition("null", scope, exp.Not(this=exp.Is(this=scope.column(ref), expression=exp.Null())))
        for node in scope.own(*COMPARISONS, exp.Like):
            ref = scope.ref(node.this)
            if ref and scope.may_be_null(ref) and isinstance(node.expression, exp.Literal):
                test = exp.Is(this=node.this.copy(), expression=exp.Null())
                m.swap("null", node, exp.Paren(this=exp.Or(this=node.copy(), expression=test)))


MUTATIONS: tuple[Callable[[Mutator], None], ...] = (operators, ranges, constants, columns, distincts, joins, nulls)
MUTATIONS += (clauses, set_operations, groups)


def top_up(m: Mutator) -> None:
    """Superfluous conditions on own values of the columns, until there are enough neighbours."""
    scopes = [(scope, refs) for scope in m.scopes.values() if (refs := list(scope.refs()))]
    for attempt in range(500 if scopes else 0):  # small tables may not have as many values as are wanted
        if len(m.neighbours) > WANTED:
            return
        scope, refs = m.rng.choice(scopes)
        ref = m.rng.choice(refs)
        if ref in _restricted(scope):
            continue  # it would only be restricted twice
        numeric = scope.table(ref).numeric[ref[1]]
        operator = m.rng.choice((exp.NEQ, exp.NEQ, exp.EQ, exp.GT, exp.LTE))  # "is not" twice as often
        value = m.rng.choice(own_values(scope, ref) or ([1, 2, 5] if numeric else ["a", "b"]))
        if attempt > 80:  # few values: those beside them as well
            cut = value[: m.rng.randrange(1, 9)] + m.rng.choice(" aemrz") if isinstance(value, str) else ""
            value = cut or value + m.rng.randrange(-4, 5)
        condition = operator(this=scope.column(ref), expression=literal(value))
        m.with_condition("added condition", scope, condition, (scope.table(ref).name, ref[1], value))


def _restricted(scope: Scope) -> set[Ref]:
    """Columns that WHERE equates with a constant, or compares by way of a function."""
    where = scope.select.args.get("where")
    if where is None:
        return set()
    parts = [part.this for part in and_parts(where.this) if isinstance(part, exp.EQ)]
    columns = [*parts, *(column for f in where.find_all(exp.Func) for column in f.find_all(exp.Column))]
    return {ref for column in columns if (ref := scope.ref(column))}
