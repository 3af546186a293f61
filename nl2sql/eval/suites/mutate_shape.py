"""Mutations of a query's shape: columns, DISTINCT, joins, clauses, order, LIMIT, aggregates, set operations, groups."""

from __future__ import annotations

from sqlglot import expressions as exp

from nl2sql.eval.suites import join_proofs, proofs
from nl2sql.eval.suites.mutator import (
    AGGREGATES,
    PER_SITE,
    REPEATS,
    SET_OPERATIONS,
    TIES,
    Mutator,
    condition_of,
    in_on,
    put,
    setting,
    within,
)
from nl2sql.eval.suites.scopes import Facts, Ref, Scope, conjuncts


def columns(m: Mutator) -> None:
    for node in m.nodes(exp.Column):
        scope = m.scope_of(node)
        found = scope.find(node) if scope else None
        if not scope or found is None or isinstance(node.this, exp.Star):
            continue
        owner, alias, index = found
        ref = (alias, index)
        facts = m.facts[id(owner.select)]
        numeric = owner.table(ref).numeric[index]
        others = [o for o in owner.refs() if o != ref and owner.table(o).numeric[o[1]] == numeric]
        near = [o for o in others if o[0] == alias]
        far = [o for o in others if o[0] != alias]
        m.rng.shuffle(near)
        m.rng.shuffle(far)
        on = in_on(node)
        group = node.parent if isinstance(node.parent, exp.Group) else None
        ordered = node.find_ancestor(exp.Ordered, exp.Window, exp.Select)
        kind = "join" if on else "grouping" if group else "order" if node.find_ancestor(exp.Ordered) else "column"
        for other in (near[:PER_SITE] + far[:2])[: PER_SITE + 1]:
            proof = None
            if not on and owner is scope and not isinstance(condition_of(node), exp.EQ) and other in facts.same(ref):
                proof = "the two columns are joined by an equality"
            if owner is scope:
                proof = proof or proofs.neither_is_null(facts, node, ref, other)
            if on and owner is scope:
                with put(node, _qualified(m, owner, other, node)):
                    proof = proofs.same_equalities(facts, Facts(scope))
            if group is not None:
                proof = proof or proofs.same_groups(facts, group, ref, other)
            if (
                isinstance(ordered, exp.Ordered)
                and owner is scope
                and isinstance(ordered.find_ancestor(exp.Query), exp.Select)
            ):
                proof = proof or proofs.order_does_not_show(facts, scope.select)
            m.swap(kind, node, _qualified(m, owner, other, node), proof)


def _qualified(m: Mutator, scope: Scope, ref: Ref, like: exp.Column) -> exp.Column:
    column = scope.column(ref)
    if like.table and not column.table:
        column.set("table", exp.to_identifier(scope.names[ref[0]]))
    return column


def distinct(m: Mutator) -> None:
    for scope in m.scopes.values():
        select, facts = scope.select, m.facts[id(scope.select)]
        proof = proofs.no_duplicates(facts) or proofs.duplicates_do_not_show(select)
        old = select.args.get("distinct")
        first = next((table for table in scope.sources.values() if table is not None), None)
        with setting(select, "distinct", None if old else exp.Distinct()):
            m.emit("distinct", proof, (first.name, 0, REPEATS) if first else None)
        for node in scope.own(exp.Count):
            inner = node.this
            if isinstance(inner, exp.Distinct) and len(inner.expressions) == 1:
                proof = proofs.counted_once(facts, inner.expressions[0])
                touches = m.touch(scope, scope.ref(inner.expressions[0]), TIES)
                m.swap("distinct", inner, inner.expressions[0].copy(), proof, touches)
            elif not isinstance(inner, (exp.Star, exp.Distinct)):
                proof = proofs.counted_once(facts, inner)
                touches = m.touch(scope, scope.ref(inner), TIES)
                m.swap("distinct", inner, exp.Distinct(expressions=[inner.copy()]), proof, touches)
            elif isinstance(inner, exp.Star):
                for ref in m.some_refs(scope, 2):
                    column = scope.column(ref)
                    once = proofs.counted_once(facts, column)
                    proof = once if once and facts.never_null(ref) else None
                    touches = m.touch(scope, ref, TIES)
                    m.swap("distinct", inner, exp.Distinct(expressions=[column]), proof, touches)
        for node in scope.own((exp.Sum, exp.Avg)):  # type: ignore[arg-type]
            if not isinstance(node.this, exp.Distinct):
                touches = m.touch(scope, scope.ref(node.this), TIES)
                m.swap("distinct", node.this, exp.Distinct(expressions=[node.this.copy()]), touches=touches)


def joins(m: Mutator) -> None:
    for scope in m.scopes.values():
        select, facts = scope.select, m.facts[id(scope.select)]
        joins = select.args.get("joins") or []
        for number, join in enumerate(joins):
            if not join.args.get("on") or (join.method or ""):
                continue
            side, kind = join.side, join.kind
            for new in ("", "LEFT", "RIGHT"):
                if new == (side or "").upper() or (new == "RIGHT" and (number or len(joins) > 1)):
                    continue
                proof = join_proofs.outer_rows_do_not_show(scope, facts, join, new) if side == "" else None
                if side and not new:
                    proof = join_proofs.outer_rows_do_not_show(scope, facts, join, side.upper())
                join.set("side", new or None)
                join.set("kind", None)
                m.emit("join", proof)
                join.set("side", side or None)
                join.set("kind", kind or None)
            for part in list(conjuncts(join.args["on"])):
                if isinstance(part, exp.EQ) and part is not join.args["on"]:
                    m.swap("join", part, exp.true())
            alias = join.this.alias_or_name.lower()
            used = any(_belongs(m, c, scope, alias) for c in select.find_all(exp.Column) if not within(c, join))
            rest = [j for j in joins if j is not join]
            if not used and len(scope.sources) > 1 and scope.sources.get(alias) is not None:
                proof = join_proofs.join_is_idle(facts, scope, join)
                with setting(select, "joins", rest):
                    m.emit("join", proof)


def _belongs(m: Mutator, column: exp.Column, scope: Scope, alias: str) -> bool:
    if column.table:
        return column.table.lower() == alias
    own = m.scope_of(column)
    found = own.find(column) if own else None
    return found is not None and found[0] is scope and found[1] == alias


def clauses(m: Mutator) -> None:
    for query in m.nodes(exp.Select, *SET_OPERATIONS):
        for key in ("where", "having", "order", "limit", "group"):
            old = query.args.get(key)
            if old is None:
                continue
            proof = None
            if isinstance(query, exp.Select):
                facts = m.facts[id(query)]
                if key == "order":
                    proof = proofs.order_does_not_show(facts, query)
                elif key == "limit":
                    proof = proofs.limit_does_not_show(facts, query)
                elif key == "having":
                    proof = proofs.always_holds(facts, old.this)
            with setting(query, key, None):
                m.emit("order" if key == "order" else "limit" if key == "limit" else "clause", proof)
        if query.args.get("order") and query.args.get("limit"):
            order, limit = query.args["order"], query.args["limit"]
            proof = None
            if isinstance(query, exp.Select):
                facts = m.facts[id(query)]
                proof = proofs.order_does_not_show(facts, query) and proofs.limit_does_not_show(facts, query)
            query.set("order", None)
            with setting(query, "limit", None):
                m.emit("clause", proof)
            query.set("order", order)
            assert query.args["limit"] is limit


def orders(m: Mutator) -> None:
    for node in m.nodes(exp.Ordered):
        query = node.find_ancestor(exp.Query)
        proof = None
        if isinstance(query, exp.Select) and node.find_ancestor(exp.Window) is None:
            proof = proofs.order_does_not_show(m.facts[id(query)], query)
        keys = node.parent.expressions if node.parent else []
        if isinstance(query, exp.Select):
            proof = proof or proofs.later_key_does_not_show(query, keys, node)
        falls = bool(node.args.get("desc"))
        with setting(node, "desc", not falls), setting(node, "nulls_first", falls):  # as SQLite sorts NULLs
            m.emit("order", proof)
        if len(keys) > 1 and node.parent is not None:
            with setting(node.parent, "expressions", [k for k in keys if k is not node]):
                m.emit("order", proof)


def limits(m: Mutator) -> None:
    for query in m.nodes(exp.Select, *SET_OPERATIONS):
        limit = query.args.get("limit")
        proof = None
        if isinstance(query, exp.Select):
            proof = proofs.limit_does_not_show(m.facts[id(query)], query)
        if limit is None:
            with setting(query, "limit", exp.Limit(expression=exp.Literal.number(1))):
                m.emit("limit", proof)
            continue
        count = limit.expression
        if isinstance(count, exp.Literal) and count.this.isdigit():
            for number in (int(count.this) + 1, int(count.this) - 1, int(count.this) + 2):
                if number > 0:
                    m.swap("limit", count, exp.Literal.number(number), proof)


def aggregates(m: Mutator) -> None:
    for scope in m.scopes.values():
        facts = m.facts[id(scope.select)]
        for node in scope.own(AGGREGATES):  # type: ignore[arg-type]
            inner = node.this
            if isinstance(inner, exp.Star) or inner is None:
                for ref in m.some_refs(scope, 3):
                    for other in (exp.Max, exp.Sum if scope.table(ref).numeric[ref[1]] else exp.Min):
                        m.swap("aggregate", node, other(this=scope.column(ref)))
                continue
            for swapped in AGGREGATES:
                if not isinstance(node, swapped):
                    ref_ = scope.ref(inner)
                    numeric = bool(ref_ and scope.table(ref_).numeric[ref_[1]])
                    proof = proofs.groups_of_one(facts, node, swapped, numeric)
                    m.swap("aggregate", node, swapped(this=inner.copy()), proof)


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
        facts = m.facts[id(scope.select)]
        keys = group.expressions
        if len(keys) > 1:
            for key in keys:
                rest = [k for k in keys if k is not key]
                with setting(group, "expressions", rest):
                    m.emit("grouping", proofs.refines(facts, rest, key))
        known = {scope.ref(key) for key in keys}
        for ref in m.some_refs(scope, PER_SITE):
            if ref in known:
                continue
            column = scope.column(ref)
            proof = proofs.refines(facts, keys, column)
            with setting(group, "expressions", [*(k.copy() for k in keys), column]):
                m.emit("grouping", proof)
        for ref in m.some_refs(scope, PER_SITE):
            if len(keys) == 1 and not isinstance(keys[0], exp.Column):
                with setting(group, "expressions", [scope.column(ref)]):
                    m.emit("grouping")
