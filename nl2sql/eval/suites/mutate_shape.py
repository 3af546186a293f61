"""Mutations of a query's shape: columns, DISTINCT, joins, clauses, order, LIMIT, aggregates, set operations, groups."""

from __future__ import annotations

from sqlglot import expressions as exp

from nl2sql.eval.suites import mutator
from nl2sql.eval.suites.mutator import (
    AGGREGATES,
    PER_SITE,
    REPEATS,
    SET_OPERATIONS,
    TIES,
    Mutator,
    Ref,
    Scope,
    and_parts,
    condition_of,
    in_on,
    setting,
    within,
)


def columns(m: Mutator) -> None:
    for node in m.nodes(exp.Column):
        scope = m.scope_of(node)
        place = scope.find(node) if scope else None
        if not scope or place is None or isinstance(node.this, exp.Star):
            continue
        owner, alias, index = place
        ref = (alias, index)
        numeric = owner.table(ref).numeric[index]
        others = [o for o in owner.refs() if o != ref and owner.table(o).numeric[o[1]] == numeric]
        near = [o for o in others if o[0] == alias]
        far = [o for o in others if o[0] != alias]
        m.rng.shuffle(near)
        m.rng.shuffle(far)
        on = in_on(node)
        group = isinstance(node.parent, exp.Group)
        kind = "join" if on else "grouping" if group else "order" if node.find_ancestor(exp.Ordered) else "column"
        for other in (near[:PER_SITE] + far[:2])[: PER_SITE + 1]:
            if (
                on
                or owner is not scope
                or isinstance(condition_of(node), exp.EQ)
                or not mutator.equated(scope, ref, other)
            ):
                m.swap(kind, node, _qualified(owner, other, node))


def _qualified(scope: Scope, ref: Ref, like: exp.Column) -> exp.Column:
    column = scope.column(ref)
    if like.table and not column.table:
        column.set("table", exp.to_identifier(scope.names[ref[0]]))
    return column


def distincts(m: Mutator) -> None:
    for scope in m.scopes.values():
        select = scope.select
        first = next((table for table in scope.sources.values() if table is not None), None)
        if not mutator.distinct_is_idle(scope):
            with setting(select, "distinct", None if select.args.get("distinct") else exp.Distinct()):
                m.emit("distinct", (first.name, 0, REPEATS) if first else None)
        for node in scope.own(exp.Count):
            _distinct_counts(m, scope, node.this)
        for node in scope.own((exp.Sum, exp.Avg)):  # type: ignore[arg-type]
            if not isinstance(node.this, exp.Distinct):
                touches = m.touch(scope, scope.ref(node.this), TIES)
                m.swap("distinct", node.this, exp.Distinct(expressions=[node.this.copy()]), touches)


def _distinct_counts(m: Mutator, scope: Scope, counted: exp.Expr) -> None:
    """COUNT(DISTINCT c) for COUNT(c) and COUNT(*), and COUNT(c) for COUNT(DISTINCT c)."""
    if isinstance(counted, exp.Star):
        for ref in m.some_refs(scope, 2):
            column = scope.column(ref)
            if not (mutator.counted_once(scope, column) and mutator.never_null(scope, ref)):
                m.swap("distinct", counted, exp.Distinct(expressions=[column]), m.touch(scope, ref, TIES))
        return
    taken = isinstance(counted, exp.Distinct)
    if taken and len(counted.expressions) != 1:
        return
    inner = counted.expressions[0] if taken else counted
    if not mutator.counted_once(scope, inner):
        new = inner.copy() if taken else exp.Distinct(expressions=[inner.copy()])
        m.swap("distinct", counted, new, m.touch(scope, scope.ref(inner), TIES))


def joins(m: Mutator) -> None:
    for scope in m.scopes.values():
        select = scope.select
        joins = select.args.get("joins") or []
        for number, join in enumerate(joins):
            if not join.args.get("on") or (join.method or ""):
                continue
            side, kind = join.side, join.kind
            for new in ("", "LEFT", "RIGHT"):
                if new == (side or "").upper() or (new == "RIGHT" and (number or len(joins) > 1)):
                    continue
                if not (side and new) and mutator.outer_join_is_idle(scope, join, new or side.upper()):
                    continue
                join.set("side", new or None)
                join.set("kind", None)
                m.emit("join")
                join.set("side", side or None)
                join.set("kind", kind or None)
            for part in list(and_parts(join.args["on"])):
                if isinstance(part, exp.EQ) and part is not join.args["on"]:
                    m.swap("join", part, exp.true())
            alias = join.this.alias_or_name.lower()
            used = any(_belongs(m, c, scope, alias) for c in select.find_all(exp.Column) if not within(c, join))
            rest = [j for j in joins if j is not join]
            if not used and len(scope.sources) > 1 and scope.sources.get(alias) is not None:
                with setting(select, "joins", rest):
                    m.emit("join")


def _belongs(m: Mutator, column: exp.Column, scope: Scope, alias: str) -> bool:
    if column.table:
        return column.table.lower() == alias
    own = m.scope_of(column)
    place = own.find(column) if own else None
    return place is not None and place[0] is scope and place[1] == alias


def clauses(m: Mutator) -> None:
    for query in m.nodes(exp.Select, *SET_OPERATIONS):
        for key in ("where", "having", "order", "limit", "group"):
            idle_here = key in ("order", "limit") and _is_idle(m, query, key)
            if query.args.get(key) is not None and not idle_here:
                with setting(query, key, None):
                    m.emit(key if key in ("order", "limit") else "clause")
        if query.args.get("order") and query.args.get("limit") and not _is_idle(m, query, "limit"):
            with setting(query, "order", None), setting(query, "limit", None):
                m.emit("clause")


def orders(m: Mutator) -> None:
    for node in m.nodes(exp.Ordered):
        if _is_idle(m, node.find_ancestor(exp.Query, exp.Window), "order"):
            continue
        keys = node.parent.expressions if node.parent else []
        falls = bool(node.args.get("desc"))
        with setting(node, "desc", not falls), setting(node, "nulls_first", falls):  # as SQLite sorts NULLs
            m.emit("order")
        if len(keys) > 1 and node.parent is not None:
            with setting(node.parent, "expressions", [k for k in keys if k is not node]):
                m.emit("order")


def limits(m: Mutator) -> None:
    for query in m.nodes(exp.Select, *SET_OPERATIONS):
        limit = query.args.get("limit")
        if _is_idle(m, query, "limit"):
            continue
        if limit is None:
            with setting(query, "limit", exp.Limit(expression=exp.Literal.number(1))):
                m.emit("limit")
            continue
        count = limit.expression
        if isinstance(count, exp.Literal) and count.this.isdigit():
            for number in (int(count.this) + 1, int(count.this) - 1, int(count.this) + 2):
                if number > 0:
                    m.swap("limit", count, exp.Literal.number(number))


def _is_idle(m: Mutator, query: exp.Expr | None, clause: str) -> bool:
    """Order and LIMIT where there is at most one row, and the LIMIT that there may be lets it pass."""
    if not isinstance(query, exp.Select):
        return False
    limit = query.args.get("limit") if clause == "limit" else None
    passes = limit is None or (isinstance(limit.expression, exp.Literal) and limit.expression.this != "0")
    return passes and mutator.one_row(m.scopes[id(query)])


def aggregates(m: Mutator) -> None:
    for scope in m.scopes.values():
        for node in scope.own(AGGREGATES):  # type: ignore[arg-type]
            inner = node.this
            if isinstance(inner, exp.Star) or inner is None:
                for ref in m.some_refs(scope, 3):
                    for other in (exp.Max, exp.Sum if scope.table(ref).numeric[ref[1]] else exp.Min):
                        m.swap("aggregate", node, other(this=scope.column(ref)))
                continue
            for swapped in AGGREGATES:
                if not isinstance(node, swapped):
                    m.swap("aggregate", node, swapped(this=inner.copy()))


def set_operations(m: Mutator) -> None:
    for node in m.nodes(*SET_OPERATIONS):
        for side in ("this", "expression"):
            branch = node.args[side]
            if not node.args.get("order") and not node.args.get("limit"):
                m.swap("set operation", node, branch.copy())
        for other in SET_OPERATIONS:
            for distinct in (True, False):
                if (isinstance(node, other) and bool(node.args.get("distinct")) == distinct) or (
                    other is not exp.Union and not distinct
                ):
                    continue
                new = other(**{k: v for k, v in node.copy().args.items() if k != "distinct"}, distinct=distinct)
                m.swap("set operation", node, new)
        if isinstance(node, exp.Except):
            new = node.copy()
            left, right = new.this, new.expression
            new.set("this", right)
            new.set("expression", left)
            m.swap("set operation", node, new)


def groups(m: Mutator) -> None:
    for scope in m.scopes.values():
        group = scope.select.args.get("group")
        if group is None:
            continue
        keys = group.expressions
        if len(keys) > 1:
            for key in keys:
                rest = [k for k in keys if k is not key]
                ref = scope.ref(key)
                if ref is None or not mutator.key_is_idle(scope, rest, ref):
                    with setting(group, "expressions", rest):
                        m.emit("grouping")
        known = {scope.ref(key) for key in keys}
        for ref in m.some_refs(scope, PER_SITE):
            if ref in known or mutator.key_is_idle(scope, keys, ref):
                continue
            with setting(group, "expressions", [*(k.copy() for k in keys), scope.column(ref)]):
                m.emit("grouping")
        for ref in m.some_refs(scope, PER_SITE):
            if len(keys) == 1 and not isinstance(keys[0], exp.Column):
                with setting(group, "expressions", [scope.column(ref)]):
                    m.emit("grouping")
