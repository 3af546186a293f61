"""Mutations of a query: its shape (columns, joins, clauses, groups) and its conditions (constants, NULLs, ANDs)."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from sqlglot import expressions as exp

from nl2sql.eval.suites import mutator
from nl2sql.eval.suites.mutator import (
    AGGREGATES,
    COMPARISONS,
    NULLS,
    PER_SITE,
    REPEATS,
    SET_OPERATIONS,
    TIES,
    Mutator,
    Ref,
    Scope,
    and_parts,
    condition_of,
    constant_value,
    in_on,
    number,
    own_values,
    same_value,
    setting,
    within,
)

# -------------------------------------------------------------------------------------------- shape


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
        for at, join in enumerate(joins):
            if not join.args.get("on") or (join.method or ""):
                continue
            side, kind = join.side, join.kind
            for new in ("", "LEFT", "RIGHT"):
                if new == (side or "").upper() or (new == "RIGHT" and (at or len(joins) > 1)):
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


# --------------------------------------------------------------------------------------- conditions
# ``WHERE a > 10`` becomes ``WHERE a >= 10``, ``WHERE a < 10``, ``WHERE a <> 10``, ``WHERE a > 11``,
# ...

WANTED = 56  # neighbours per gold; conditions are added until there are so many
SWAPS: dict[type[exp.Expr], tuple[type[exp.Expr], ...]] = {
    exp.EQ: (exp.NEQ, exp.GTE, exp.LTE),
    exp.NEQ: (exp.EQ, exp.LT, exp.GT),
    exp.LT: (exp.LTE, exp.GT, exp.NEQ),
    exp.LTE: (exp.LT, exp.GTE, exp.EQ),
    exp.GT: (exp.GTE, exp.LT, exp.NEQ),
    exp.GTE: (exp.GT, exp.LTE, exp.EQ),
}


def comparisons(m: Mutator) -> None:
    for node in m.nodes(*COMPARISONS):
        if in_on(node):
            continue
        for other in SWAPS[type(node)]:
            new = other(this=node.this.copy(), expression=node.expression.copy())
            m.swap("comparison", node, new, _beside(m, node.this, node.expression))
    for node in m.nodes(exp.Between):
        value, low, high = node.this, node.args["low"], node.args["high"]
        below, above = _beside(m, value, low), _beside(m, value, high)
        for left, right in ((exp.GT, exp.LTE), (exp.GTE, exp.LT)):
            new = exp.And(
                this=left(this=value.copy(), expression=low.copy()),
                expression=right(this=value.copy(), expression=high.copy()),
            )
            m.swap("comparison", node, exp.Paren(this=new), touches=below if left is exp.GT else above)
        m.swap("comparison", node, exp.GTE(this=value.copy(), expression=low.copy()), touches=above)
        m.swap("comparison", node, exp.LTE(this=value.copy(), expression=high.copy()), touches=below)
    for node in m.nodes(exp.Like, exp.In, exp.Between, exp.Exists):
        if isinstance(node.parent, exp.Not):
            m.swap("comparison", node.parent, node.copy())
        elif node.args.get("negate"):  # how sqlglot notes NOT LIKE
            with setting(node, "negate", None):
                m.emit("comparison")
        else:
            m.swap("comparison", node, exp.Not(this=node.copy()))
        if isinstance(node, exp.Like):
            m.swap("comparison", node, exp.EQ(this=node.this.copy(), expression=node.expression.copy()))


def _beside(m: Mutator, column: exp.Expr, constant: exp.Expr) -> tuple[str, int, Any] | None:
    """The column of a comparison and the constant at which it turns."""
    scope = m.scope_of(column)
    place = scope.find(column) if scope and isinstance(column, exp.Column) else None
    value = constant_value(constant)
    if place is None or value is None:
        return None
    return place[0].table((place[1], place[2])).name, place[2], value


def connectives(m: Mutator) -> None:
    for node in m.nodes(exp.And, exp.Or):
        other = exp.Or if isinstance(node, exp.And) else exp.And
        new: exp.Expr = other(this=node.this.copy(), expression=node.expression.copy())
        if isinstance(node.parent, (exp.And, exp.Or, exp.Not)):
            new = exp.Paren(this=new)
        m.swap("connective", node, new)


def conditions(m: Mutator) -> None:
    """One of the conditions is forgotten."""
    for node in m.nodes(exp.And, exp.Or):
        m.swap("clause", node, node.this.copy())
        m.swap("clause", node, node.expression.copy())


def constants(m: Mutator) -> None:
    for node in m.nodes(exp.Literal):
        if isinstance(node.parent, (exp.Limit, exp.Offset, exp.Ordered, exp.Group)) or node.parent is m.holder:
            continue
        if node.find_ancestor(exp.Select) is node.parent or isinstance(node.parent, (exp.Alias, exp.DataType)):
            continue
        touched, values = _other_constants(m, node)
        for value in values:
            new = exp.Literal.string(value) if isinstance(value, str) else number(value)
            m.swap("constant", node, new, (*touched, value) if touched else None)


def _other_constants(m: Mutator, node: exp.Literal) -> tuple[tuple[str, int] | None, list[Any]]:
    """The column that the constant is compared with, and what could stand in its place."""
    touched = None
    values: list[Any] = []
    above = node.parent
    if not node.is_string:
        value = constant_value(node)
        values = [value + 1, value - 1] if isinstance(value, int) or math.isfinite(value or math.inf) else []
    elif isinstance(above, exp.Like):
        pattern = node.this
        stripped = pattern.strip("%")
        values = [p for p in (stripped, "%" + stripped, stripped + "%", f"%{stripped}%") if p != pattern]
        if len(stripped) > 1:
            values.append(pattern.replace(stripped, stripped[:-1]))
            values.append(pattern.replace(stripped, stripped[1:]))
    elif len(node.this) > 1:
        values = [node.this[:-1]]
    scope = m.scope_of(node)
    sides = [above.this, above.args.get("expression"), *above.find_all(exp.Column)] if above else []
    for side in sides:
        place = scope.find(side) if scope and isinstance(side, exp.Column) else None
        if place:
            owner, alias, index = place
            touched = (owner.table((alias, index)).name, index)
            own = own_values(owner, (alias, index))
            own = [v for v in own if isinstance(v, str) == node.is_string and not same_value(v, node.this)]
            values += m.rng.sample(own, min(PER_SITE, len(own)))
            break
    return touched, list(dict.fromkeys(values))


def nulls(m: Mutator) -> None:
    for node in m.nodes(exp.Is):
        if isinstance(node.parent, exp.Not):
            m.swap("null", node.parent, node.copy())
        else:
            m.swap("null", node, exp.Not(this=node.copy()))
    for scope in m.scopes.values():
        _null_counts(m, scope)
        for node in scope.own((exp.Sum, exp.Avg, exp.Min, exp.Max)):  # type: ignore[arg-type]
            ref = scope.ref(node.this)
            if ref and not mutator.never_null(scope, ref):
                zero = exp.Literal.number(0) if scope.table(ref).numeric[ref[1]] else exp.Literal.string("")
                filled = exp.Coalesce(this=node.this.copy(), expressions=[zero])
                m.swap("null", node.this, filled, m.touch(scope, ref, NULLS))
        for ref in sorted({own for column in scope.own(exp.Column) if (own := scope.ref(column))}):
            if not mutator.never_null(scope, ref) and not mutator.nulls_ignored(scope, ref):
                test = exp.Is(this=scope.column(ref), expression=exp.Null())
                m.with_condition("null", scope, exp.Not(this=test), m.touch(scope, ref, NULLS))
    for node in m.nodes(exp.EQ, exp.NEQ, exp.GT, exp.LT, exp.GTE, exp.LTE, exp.Like):
        owner = m.scope_of(node)
        ref = owner.ref(node.this) if owner else None
        if not owner or not ref or in_on(node) or not isinstance(node.expression, exp.Literal):
            continue
        if mutator.null_before_conditions(owner, ref) and not mutator.nulls_ignored(owner, ref):
            test = exp.Is(this=node.this.copy(), expression=exp.Null())
            new = exp.Paren(this=exp.Or(this=node.copy(), expression=test))
            m.swap("null", node, new, m.touch(owner, ref, NULLS))


def _null_counts(m: Mutator, scope: Scope) -> None:
    """COUNT(*) for COUNT of a column, and the reverse."""
    for node in scope.own(exp.Count):
        if isinstance(node.this, exp.Star):
            for ref in m.some_refs(scope, 4):
                if not mutator.never_null(scope, ref):
                    m.swap("null", node.this, scope.column(ref), m.touch(scope, ref, NULLS))
        elif not isinstance(node.this, exp.Distinct):
            ref_ = scope.ref(node.this)
            if ref_ is None or not mutator.never_null(scope, ref_):
                m.swap("null", node.this, exp.Star(), m.touch(scope, ref_, NULLS))


def top_up(m: Mutator) -> None:
    """Superfluous conditions on own values of the columns, until there are enough neighbours."""
    scopes = [scope for scope in m.scopes.values() if any(True for _ in scope.refs())]
    inside = {id(scope.select): _restricted(scope) | mutator.fixed(scope) for scope in scopes}
    apart = Counter[tuple[str, int]]()  # "is not" this or that value: few per column, as of every other mutation
    for attempt in range(500):  # small tables may not have as many values as are wanted
        if len(m.neighbours) > WANTED or not scopes:
            return
        scope = m.rng.choice(scopes)
        ref = m.rng.choice(list(scope.refs()))
        numeric = scope.table(ref).numeric[ref[1]]
        if ref in inside[id(scope.select)]:
            continue  # what is fixed, or restricted through a function, would only be restricted twice
        operator = m.rng.choice((exp.NEQ, exp.NEQ, exp.EQ, exp.GT, exp.LTE))  # "is not" twice as often
        if operator is exp.NEQ and apart[scope.table(ref).name, ref[1]] >= PER_SITE:
            operator = m.rng.choice((exp.EQ, exp.GT, exp.LTE))
        value = m.rng.choice(own_values(scope, ref) or ([1, 2, 5] if numeric else ["a", "b"]))
        if attempt > 80:  # few values: those beside them as well
            value = (
                value + m.rng.randrange(-4, 5) if numeric else value[: m.rng.randrange(1, 9)] + m.rng.choice(" aemrz")
            )
        literal = exp.Literal.string(value) if isinstance(value, str) else number(value)
        apart[scope.table(ref).name, ref[1]] += operator is exp.NEQ
        condition = operator(this=scope.column(ref), expression=literal)
        touches = (scope.table(ref).name, ref[1], value)
        where = scope.select.args.get("where")
        if attempt > 120 and where is not None and attempt % 2:  # or it is one more way to qualify
            with setting(where, "this", exp.Or(this=where.this.copy(), expression=condition)):
                m.emit("added condition", touches)
            continue
        m.with_condition("added condition", scope, condition, touches)


def _restricted(scope: Scope) -> set[Ref]:
    """Columns that WHERE compares by way of a function."""
    where = scope.select.args.get("where")
    functions = where.find_all(exp.Func) if where else ()
    return {ref for f in functions for column in f.find_all(exp.Column) if (ref := scope.ref(column))}
