"""Mutations of conditions: comparisons, AND and OR, constants, NULLs, and conditions that are superfluous."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from sqlglot import expressions as exp

from nl2sql.eval.suites import join_proofs, proofs
from nl2sql.eval.suites.mutator import (
    COMPARISONS,
    NULLS,
    PER_SITE,
    Mutator,
    in_on,
    number,
    own_values,
    put,
    same_value,
    setting,
    written,
)
from nl2sql.eval.suites.scopes import Ref, Scope, conjuncts

WANTED = 56  # neighbours without a proof of equivalence, per gold; conditions are added until there are so many
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
            proof = proofs.same_counts(m.facts_of(node), node, new) or proofs.extreme(m.facts_of(node), node, new)
            m.swap("comparison", node, new, proof, _beside(m, node.this, node.expression))
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
    found = scope.find(column) if scope and isinstance(column, exp.Column) else None
    value = written(constant)
    if found is None or value is None:
        return None
    return found[0].table((found[1], found[2])).name, found[2], value


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
        proof = None
        m.swap("clause", node, node.this.copy(), proof)
        m.swap("clause", node, node.expression.copy(), proof)


def constants(m: Mutator) -> None:
    for node in m.nodes(exp.Literal):
        if isinstance(node.parent, (exp.Limit, exp.Offset, exp.Ordered, exp.Group)) or node.parent is m.holder:
            continue
        if node.find_ancestor(exp.Select) is node.parent or isinstance(node.parent, (exp.Alias, exp.DataType)):
            continue
        touched, values = _other_constants(m, node)
        for value in values:
            new = exp.Literal.string(value) if isinstance(value, str) else number(value)
            above = node.parent
            with put(node, new):
                proof = None
                if isinstance(above, COMPARISONS):
                    old = above.copy()
                    old.set("expression" if above.expression is new else "this", node.copy())
                    proof = proofs.same_counts(m.facts_of(above), old, above)
                m.emit("constant", proof, (*touched, value) if touched else None)


def _other_constants(m: Mutator, node: exp.Literal) -> tuple[tuple[str, int] | None, list[Any]]:
    """The column that the constant is compared with, and what could stand in its place."""
    touched = None
    values: list[Any] = []
    above = node.parent
    if not node.is_string:
        value = written(node)
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
        found = scope.find(side) if scope and isinstance(side, exp.Column) else None
        if found:
            owner, alias, index = found
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
        facts = m.facts[id(scope.select)]
        for node in scope.own(exp.Count):
            if isinstance(node.this, exp.Star):
                for ref in m.some_refs(scope, 4):
                    proof = "the column is never NULL" if facts.never_null(ref) else None
                    m.swap("null", node.this, scope.column(ref), proof, m.touch(scope, ref, NULLS))
            elif not isinstance(node.this, exp.Distinct):
                ref_ = scope.ref(node.this)
                proof = "the column is never NULL" if ref_ and facts.never_null(ref_) else None
                m.swap("null", node.this, exp.Star(), proof, m.touch(scope, ref_, NULLS))
        for node in scope.own((exp.Sum, exp.Avg, exp.Min, exp.Max)):  # type: ignore[arg-type]
            ref_ = scope.ref(node.this)
            if ref_:
                zero = exp.Literal.number(0) if scope.table(ref_).numeric[ref_[1]] else exp.Literal.string("")
                proof = "the column is never NULL" if facts.never_null(ref_) else proofs.zero_fails_too(node)
                if not scope.table(ref_).numeric[ref_[1]]:
                    proof = proof or proofs.empty_text_is_least(m.facts_of(scope.select), node)
                filled = exp.Coalesce(this=node.this.copy(), expressions=[zero])
                m.swap("null", node.this, filled, proof, m.touch(scope, ref_, NULLS))
        for ref in sorted({found for column in scope.own(exp.Column) if (found := scope.ref(column))}):
            proof = join_proofs.null_rows_do_not_show(facts, scope, ref)
            test = exp.Is(this=scope.column(ref), expression=exp.Null())
            m.with_condition("null", scope, exp.Not(this=test), proof, m.touch(scope, ref, NULLS))
    for node in m.nodes(exp.EQ, exp.NEQ, exp.GT, exp.LT, exp.GTE, exp.LTE, exp.Like):
        scope_ = m.scope_of(node)
        ref_ = scope_.ref(node.this) if scope_ else None
        if scope_ and ref_ and not in_on(node) and isinstance(node.expression, exp.Literal):
            facts = m.facts[id(scope_.select)]
            blind = ref_[0] not in facts.nullable_sources and not scope_.table(ref_).nullable[ref_[1]]
            where = scope_.select.args.get("where")
            if not blind and where and any(part is node for part in conjuncts(where.this)):
                proof = join_proofs.rows_of_nulls_do_not_show(facts, scope_, ref_)
            else:
                proof = "the column is never NULL" if blind else None
            test = exp.Is(this=node.this.copy(), expression=exp.Null())
            new = exp.Paren(this=exp.Or(this=node.copy(), expression=test))
            m.swap("null", node, new, proof, m.touch(scope_, ref_, NULLS))


def top_up(m: Mutator) -> None:
    """Superfluous conditions on own values of the columns, until there are enough neighbours."""
    scopes = [scope for scope in m.scopes.values() if any(True for _ in scope.refs())]
    inside = {id(scope.select): _restricted(m, scope) for scope in scopes}
    apart = Counter[tuple[str, int]]()  # "is not" this or that value: few per column, as of every other mutation
    for attempt in range(500):
        if sum(not n.equivalent for n in m.found.values()) > WANTED or not scopes:
            return
        scope = m.rng.choice(scopes)
        ref = m.rng.choice(list(scope.refs()))
        numeric = scope.table(ref).numeric[ref[1]]
        if ref in m.facts[id(scope.select)].fixed or ref in inside[id(scope.select)]:
            continue  # what is fixed, or restricted through a function, would only be restricted twice
        operator = m.rng.choice((exp.NEQ, exp.NEQ, exp.EQ, exp.GT, exp.LTE))
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
                m.emit("added condition", None, touches)
            continue
        proof = join_proofs.implied(scope, condition)
        m.with_condition("added condition", scope, condition, proof, touches)


def _restricted(m: Mutator, scope: Scope) -> set[Ref]:
    """Columns that WHERE compares by way of a function."""
    where = scope.select.args.get("where")
    functions = where.find_all(exp.Func) if where else ()
    return {ref for f in functions for column in f.find_all(exp.Column) if (ref := scope.ref(column))}
