"""Neighbours of a gold query: the same query with one thing wrong, each tagged with its kind.

``neighbours(sql, source, seed=0)`` mutates the syntax tree. A neighbour that provably gives the same answer on every
database that respects the schema carries the proof in ``equivalent``; proofs are sound, not complete (``proofs.py``).
Whether a neighbour compiles is found out where it is executed (``arena.py``), and there a last proof is added: SQLite
compiles it to the very program of the gold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import expressions as exp
from sqlglot.errors import SqlglotError

from nl2sql.errors import UsageError
from nl2sql.suites import join_proofs, proofs
from nl2sql.suites.scopes import Facts, Ref, Scope, conjuncts, scopes_of
from nl2sql.suites.source import Source

WANTED = 56  # neighbours without a proof of equivalence, per gold; conditions are added until there are so many
MOST = 110
PER_SITE = 4  # columns tried in place of one column, values in place of one constant

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
COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
SWAPS: dict[type[exp.Expr], tuple[type[exp.Expr], ...]] = {
    exp.EQ: (exp.NEQ, exp.GTE, exp.LTE),
    exp.NEQ: (exp.EQ, exp.LT, exp.GT),
    exp.LT: (exp.LTE, exp.GT, exp.NEQ),
    exp.LTE: (exp.LT, exp.GTE, exp.EQ),
    exp.GT: (exp.GTE, exp.LT, exp.NEQ),
    exp.GTE: (exp.GT, exp.LTE, exp.EQ),
}
AGGREGATES = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)
SET_OPERATIONS = (exp.Union, exp.Intersect, exp.Except)


NULLS, TIES, REPEATS = ("NULLs",), ("ties",), ("repeats",)  # ... NULLs, values that occur twice, rows that nearly do


@dataclass(frozen=True)
class Neighbour:
    kind: str
    sql: str
    equivalent: str | None = None  # the proof, where the answer cannot differ
    touches: tuple[str, int, Any] | None = None  # table, column and what of it tells the two apart: a constant or ...


def parse_gold(sql: str, source: Source) -> exp.Query:
    """The tree of a gold; double-quoted text that names no column becomes a string, as SQLite reads it.

    Raises UsageError for what is not one query that sqlglot can read.
    """
    try:
        tree = sqlglot.parse_one(sql, read="sqlite")
    except (SqlglotError, RecursionError) as error:
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


def neighbours(sql: str, source: Source, *, seed: int = 0) -> list[Neighbour]:
    """Neighbours of ``sql``, no two with the same text, at most ``MOST`` that are not proven equivalent.

    Raises UsageError where the gold cannot be parsed.
    """
    mutator = _Mutator(parse_gold(sql, source), source, seed)
    return mutator.all()


class _Mutator:
    """Changes the tree in place, writes it down, and puts it back."""

    def __init__(self, tree: exp.Query, source: Source, seed: int) -> None:
        self.holder = exp.Paren(this=tree)  # so that the outermost query can be replaced as well
        self.source = source
        self.rng = random.Random(f"{seed}/{tree.sql('sqlite')}")
        self.scopes = scopes_of(tree, source)
        self.facts = {key: Facts(scope) for key, scope in self.scopes.items()}
        for known in self.facts.values():
            known.others = self.facts
        self.found: dict[str, Neighbour] = {self._text(): Neighbour("gold", "")}

    def _text(self) -> str:
        return self.holder.this.sql("sqlite")

    def all(self) -> list[Neighbour]:
        original = self._text()
        steps: tuple[Callable[[], Iterable[None]], ...] = (
            self._comparisons, self._connectives, self._conditions, self._constants, self._columns, self._distinct,
            self._joins, self._nulls, self._clauses, self._orders, self._limits, self._aggregates,
            self._set_operations, self._groups,
        )  # fmt: skip
        for step in steps:
            for _ in step():
                pass
            if self._text() != original:
                raise AssertionError(f"{step.__name__} did not put the query back: {self._text()}")
        self._top_up()
        found = [n for n in self.found.values() if n.kind != "gold"]
        proven = [n for n in found if n.equivalent]
        return _thinned([n for n in found if not n.equivalent], self.rng) + proven

    def _emit(self, kind: str, proof: str | None = None, touches: tuple[str, int, Any] | None = None) -> None:
        sql = self._text()
        known = self.found.get(sql)
        if known is None or (proof and not known.equivalent and known.kind != "gold"):
            self.found[sql] = Neighbour(kind, sql, proof, touches)

    def _try(
        self,
        kind: str,
        node: exp.Expr,
        new: exp.Expr,
        proof: str | None = None,
        touches: tuple[str, int, Any] | None = None,
    ) -> None:
        with put(node, new):
            self._emit(kind, proof, touches)

    def _touch(self, scope: Scope, ref: Ref | None, what: Any) -> tuple[str, int, Any] | None:
        return (scope.table(ref).name, ref[1], what) if ref else None

    def _nodes(self, *kinds: type[Any]) -> list[Any]:
        return list(self.holder.find_all(*kinds))

    def _scope(self, node: exp.Expr) -> Scope | None:
        select = node.find_ancestor(exp.Select)
        return self.scopes.get(id(select)) if select else None

    def _facts(self, node: exp.Expr) -> Facts | None:
        select = node.find_ancestor(exp.Select)
        return self.facts.get(id(select)) if select else None

    # ------------------------------------------------------------------------------------- conditions

    def _comparisons(self) -> Iterator[None]:
        for node in self._nodes(*COMPARISONS):
            if _in_on(node):
                continue
            for other in SWAPS[type(node)]:
                new = other(this=node.this.copy(), expression=node.expression.copy())
                proof = proofs.same_counts(self._facts(node), node, new) or proofs.extreme(self._facts(node), node, new)
                self._try("comparison", node, new, proof)
        for node in self._nodes(exp.Between):
            value, low, high = node.this, node.args["low"], node.args["high"]
            for left, right in ((exp.GT, exp.LTE), (exp.GTE, exp.LT)):
                new = exp.And(
                    this=left(this=value.copy(), expression=low.copy()),
                    expression=right(this=value.copy(), expression=high.copy()),
                )
                self._try("comparison", node, exp.Paren(this=new))
            self._try("comparison", node, exp.GTE(this=value.copy(), expression=low.copy()))
            self._try("comparison", node, exp.LTE(this=value.copy(), expression=high.copy()))
        for node in self._nodes(exp.Like, exp.In, exp.Between, exp.Exists):
            if isinstance(node.parent, exp.Not):
                self._try("comparison", node.parent, node.copy())
            else:
                self._try("comparison", node, exp.Not(this=node.copy()))
            if isinstance(node, exp.Like):
                self._try("comparison", node, exp.EQ(this=node.this.copy(), expression=node.expression.copy()))
        yield

    def _connectives(self) -> Iterator[None]:
        for node in self._nodes(exp.And, exp.Or):
            other = exp.Or if isinstance(node, exp.And) else exp.And
            new: exp.Expr = other(this=node.this.copy(), expression=node.expression.copy())
            if isinstance(node.parent, (exp.And, exp.Or, exp.Not)):
                new = exp.Paren(this=new)
            self._try("connective", node, new)
        yield

    def _conditions(self) -> Iterator[None]:
        """One of the conditions is forgotten."""
        for node in self._nodes(exp.And, exp.Or):
            proof = None
            self._try("clause", node, node.this.copy(), proof)
            self._try("clause", node, node.expression.copy(), proof)
        yield

    def _constants(self) -> Iterator[None]:
        for node in self._nodes(exp.Literal):
            if isinstance(node.parent, (exp.Limit, exp.Offset, exp.Ordered, exp.Group)) or node.parent is self.holder:
                continue
            if node.find_ancestor(exp.Select) is node.parent or isinstance(node.parent, (exp.Alias, exp.DataType)):
                continue
            touched, values = self._other_constants(node)
            for value in values:
                new = exp.Literal.string(value) if isinstance(value, str) else _number(value)
                above = node.parent
                with put(node, new):
                    proof = None
                    if isinstance(above, COMPARISONS):
                        old = above.copy()
                        old.set("expression" if above.expression is new else "this", node.copy())
                        proof = proofs.same_counts(self._facts(above), old, above)
                    self._emit("constant", proof, (*touched, value) if touched else None)
        yield

    def _other_constants(self, node: exp.Literal) -> tuple[tuple[str, int] | None, list[Any]]:
        """The column that the constant is compared with, and what could stand in its place."""
        touched = None
        values: list[Any] = []
        above = node.parent
        if not node.is_string:
            number = float(node.this) if any(c in node.this for c in ".eE") else int(node.this)
            values = [number + 1, number - 1]
        elif isinstance(above, exp.Like):
            pattern = node.this
            stripped = pattern.strip("%")
            values = [p for p in (stripped, "%" + stripped, stripped + "%", f"%{stripped}%") if p != pattern]
            if len(stripped) > 1:
                values.append(pattern.replace(stripped, stripped[:-1]))
                values.append(pattern.replace(stripped, stripped[1:]))
        elif len(node.this) > 1:
            values = [node.this[:-1]]
        scope = self._scope(node)
        sides = [above.this, above.args.get("expression"), *above.find_all(exp.Column)] if above else []
        for side in sides:
            found = scope.find(side) if scope and isinstance(side, exp.Column) else None
            if found:
                owner, alias, index = found
                touched = (owner.table((alias, index)).name, index)
                own = _own_values(owner, (alias, index))
                own = [v for v in own if isinstance(v, str) == node.is_string and not _same_value(v, node.this)]
                values += self.rng.sample(own, min(PER_SITE, len(own)))
                break
        return touched, list(dict.fromkeys(values))

    # ---------------------------------------------------------------------------------------- columns

    def _columns(self) -> Iterator[None]:
        for node in self._nodes(exp.Column):
            scope = self._scope(node)
            found = scope.find(node) if scope else None
            if not scope or found is None or isinstance(node.this, exp.Star):
                continue
            owner, alias, index = found
            ref = (alias, index)
            facts = self.facts[id(owner.select)]
            numeric = owner.table(ref).numeric[index]
            others = [o for o in owner.refs() if o != ref and owner.table(o).numeric[o[1]] == numeric]
            near = [o for o in others if o[0] == alias]
            far = [o for o in others if o[0] != alias]
            self.rng.shuffle(near)
            self.rng.shuffle(far)
            on = _in_on(node)
            group = node.parent if isinstance(node.parent, exp.Group) else None
            kind = "join" if on else "grouping" if group else "order" if node.find_ancestor(exp.Ordered) else "column"
            for other in (near[:PER_SITE] + far[:2])[: PER_SITE + 1]:
                proof = None
                if (
                    not on
                    and owner is scope
                    and not isinstance(_condition_of(node), exp.EQ)
                    and other in facts.same(ref)
                ):
                    proof = "the two columns are joined by an equality"
                if owner is scope:
                    proof = proof or proofs.neither_is_null(facts, node, ref, other)
                if on and owner is scope:
                    with put(node, self._qualified(owner, other, node)):
                        proof = proofs.same_equalities(facts, Facts(scope))
                if group is not None:
                    proof = proof or proofs.same_groups(facts, group, ref, other)
                self._try(kind, node, self._qualified(owner, other, node), proof)
        yield

    def _qualified(self, scope: Scope, ref: Ref, like: exp.Column) -> exp.Column:
        column = scope.column(ref)
        if like.table and not column.table:
            column.set("table", exp.to_identifier(scope.names[ref[0]]))
        return column

    # --------------------------------------------------------------------------------------- distinct

    def _distinct(self) -> Iterator[None]:
        for scope in self.scopes.values():
            select, facts = scope.select, self.facts[id(scope.select)]
            proof = proofs.no_duplicates(facts) or proofs.duplicates_do_not_show(select)
            old = select.args.get("distinct")
            first = next((table for table in scope.sources.values() if table is not None), None)
            with setting(select, "distinct", None if old else exp.Distinct()):
                self._emit("distinct", proof, (first.name, 0, REPEATS) if first else None)
            for node in scope.own(exp.Count):
                inner = node.this
                if isinstance(inner, exp.Distinct) and len(inner.expressions) == 1:
                    proof = proofs.counted_once(facts, inner.expressions[0])
                    touches = self._touch(scope, scope.ref(inner.expressions[0]), TIES)
                    self._try("distinct", inner, inner.expressions[0].copy(), proof, touches)
                elif not isinstance(inner, (exp.Star, exp.Distinct)):
                    proof = proofs.counted_once(facts, inner)
                    touches = self._touch(scope, scope.ref(inner), TIES)
                    self._try("distinct", inner, exp.Distinct(expressions=[inner.copy()]), proof, touches)
                elif isinstance(inner, exp.Star):
                    for ref in self._some_refs(scope, 2):
                        column = scope.column(ref)
                        once = proofs.counted_once(facts, column)
                        proof = once if once and facts.never_null(ref) else None
                        touches = self._touch(scope, ref, TIES)
                        self._try("distinct", inner, exp.Distinct(expressions=[column]), proof, touches)
            for node in scope.own((exp.Sum, exp.Avg)):  # type: ignore[arg-type]
                if not isinstance(node.this, exp.Distinct):
                    touches = self._touch(scope, scope.ref(node.this), TIES)
                    self._try("distinct", node.this, exp.Distinct(expressions=[node.this.copy()]), touches=touches)
        yield

    def _some_refs(self, scope: Scope, count: int) -> list[Ref]:
        refs = list(scope.refs())
        return self.rng.sample(refs, min(count, len(refs)))

    # ------------------------------------------------------------------------------------------ joins

    def _joins(self) -> Iterator[None]:
        for scope in self.scopes.values():
            select, facts = scope.select, self.facts[id(scope.select)]
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
                    self._emit("join", proof)
                    join.set("side", side or None)
                    join.set("kind", kind or None)
                for part in list(conjuncts(join.args["on"])):
                    if isinstance(part, exp.EQ) and part is not join.args["on"]:
                        self._try("join", part, exp.true())
                alias = join.this.alias_or_name.lower()
                used = any(c.table.lower() == alias for c in select.find_all(exp.Column) if not _within(c, join))
                rest = [j for j in joins if j is not join]
                if not used and len(scope.sources) > 1 and scope.sources.get(alias) is not None:
                    proof = join_proofs.join_is_idle(facts, scope, join)
                    with setting(select, "joins", rest):
                        self._emit("join", proof)
        yield

    # ------------------------------------------------------------------------------------------- null

    def _nulls(self) -> Iterator[None]:
        for node in self._nodes(exp.Is):
            if isinstance(node.parent, exp.Not):
                self._try("null", node.parent, node.copy())
            else:
                self._try("null", node, exp.Not(this=node.copy()))
        for scope in self.scopes.values():
            facts = self.facts[id(scope.select)]
            for node in scope.own(exp.Count):
                if isinstance(node.this, exp.Star):
                    for ref in self._some_refs(scope, 4):
                        proof = "the column is never NULL" if facts.never_null(ref) else None
                        self._try("null", node.this, scope.column(ref), proof, self._touch(scope, ref, NULLS))
                elif not isinstance(node.this, exp.Distinct):
                    ref_ = scope.ref(node.this)
                    proof = "the column is never NULL" if ref_ and facts.never_null(ref_) else None
                    self._try("null", node.this, exp.Star(), proof, self._touch(scope, ref_, NULLS))
            for node in scope.own((exp.Sum, exp.Avg, exp.Min, exp.Max)):  # type: ignore[arg-type]
                ref_ = scope.ref(node.this)
                if ref_:
                    zero = exp.Literal.number(0) if scope.table(ref_).numeric[ref_[1]] else exp.Literal.string("")
                    proof = "the column is never NULL" if facts.never_null(ref_) else proofs.zero_fails_too(node)
                    filled = exp.Coalesce(this=node.this.copy(), expressions=[zero])
                    self._try("null", node.this, filled, proof, self._touch(scope, ref_, NULLS))
            for ref in sorted({found for column in scope.own(exp.Column) if (found := scope.ref(column))}):
                proof = join_proofs.null_rows_do_not_show(facts, scope, ref)
                test = exp.Is(this=scope.column(ref), expression=exp.Null())
                self._with_condition("null", scope, exp.Not(this=test), proof, self._touch(scope, ref, NULLS))
        for node in self._nodes(exp.EQ, exp.NEQ, exp.GT, exp.LT, exp.GTE, exp.LTE, exp.Like):
            scope_ = self._scope(node)
            ref_ = scope_.ref(node.this) if scope_ else None
            if scope_ and ref_ and not _in_on(node) and isinstance(node.expression, exp.Literal):
                facts = self.facts[id(scope_.select)]
                blind = ref_[0] not in facts.nullable_sources and not scope_.table(ref_).nullable[ref_[1]]
                proof = "the column is never NULL" if blind else None
                test = exp.Is(this=node.this.copy(), expression=exp.Null())
                new = exp.Paren(this=exp.Or(this=node.copy(), expression=test))
                self._try("null", node, new, proof, self._touch(scope_, ref_, NULLS))
        yield

    def _with_condition(
        self,
        kind: str,
        scope: Scope,
        condition: exp.Expr,
        proof: str | None = None,
        touches: tuple[str, int, Any] | None = None,
    ) -> None:
        select = scope.select
        where = select.args.get("where")
        if where is None:
            with setting(select, "where", exp.Where(this=condition)):
                self._emit(kind, proof, touches)
        else:
            old = where.this
            left = exp.Paren(this=old.copy()) if isinstance(old, exp.Or) else old.copy()
            with setting(where, "this", exp.And(this=left, expression=condition)):
                self._emit(kind, proof, touches)

    # ---------------------------------------------------------------------------------------- clauses

    def _clauses(self) -> Iterator[None]:
        for query in self._nodes(exp.Select, *SET_OPERATIONS):
            for key in ("where", "having", "order", "limit", "group"):
                old = query.args.get(key)
                if old is None:
                    continue
                proof = None
                if isinstance(query, exp.Select):
                    facts = self.facts[id(query)]
                    if key == "order":
                        proof = proofs.order_does_not_show(facts, query)
                    elif key == "limit":
                        proof = proofs.limit_does_not_show(facts, query)
                    elif key == "having":
                        proof = proofs.always_holds(facts, old.this)
                with setting(query, key, None):
                    self._emit("order" if key == "order" else "limit" if key == "limit" else "clause", proof)
            if query.args.get("order") and query.args.get("limit"):
                order, limit = query.args["order"], query.args["limit"]
                query.set("order", None)
                with setting(query, "limit", None):
                    self._emit("clause")
                query.set("order", order)
                assert query.args["limit"] is limit
        yield

    def _orders(self) -> Iterator[None]:
        for node in self._nodes(exp.Ordered):
            query = node.find_ancestor(exp.Query)
            proof = None
            if isinstance(query, exp.Select) and node.find_ancestor(exp.Window) is None:
                proof = proofs.order_does_not_show(self.facts[id(query)], query)
            keys = node.parent.expressions if node.parent else []
            if isinstance(query, exp.Select):
                proof = proof or proofs.later_key_does_not_show(query, keys, node)
            falls = bool(node.args.get("desc"))
            with setting(node, "desc", not falls), setting(node, "nulls_first", falls):  # as SQLite sorts NULLs
                self._emit("order", proof)
            if len(keys) > 1 and node.parent is not None:
                with setting(node.parent, "expressions", [k for k in keys if k is not node]):
                    self._emit("order", proof)
        yield

    def _limits(self) -> Iterator[None]:
        for query in self._nodes(exp.Select, *SET_OPERATIONS):
            limit = query.args.get("limit")
            proof = None
            if isinstance(query, exp.Select):
                proof = proofs.limit_does_not_show(self.facts[id(query)], query)
            if limit is None:
                with setting(query, "limit", exp.Limit(expression=exp.Literal.number(1))):
                    self._emit("limit", proof)
                continue
            count = limit.expression
            if isinstance(count, exp.Literal) and count.this.isdigit():
                for number in (int(count.this) + 1, int(count.this) - 1, int(count.this) + 2):
                    if number > 0:
                        self._try("limit", count, exp.Literal.number(number), proof)
        yield

    # ------------------------------------------------------------------------- aggregates, sets, groups

    def _aggregates(self) -> Iterator[None]:
        for scope in self.scopes.values():
            facts = self.facts[id(scope.select)]
            for node in scope.own(AGGREGATES):  # type: ignore[arg-type]
                inner = node.this
                if isinstance(inner, exp.Star) or inner is None:
                    for ref in self._some_refs(scope, 3):
                        for other in (exp.Max, exp.Sum if scope.table(ref).numeric[ref[1]] else exp.Min):
                            self._try("aggregate", node, other(this=scope.column(ref)))
                    continue
                for swapped in AGGREGATES:
                    if not isinstance(node, swapped):
                        ref_ = scope.ref(inner)
                        numeric = bool(ref_ and scope.table(ref_).numeric[ref_[1]])
                        proof = proofs.groups_of_one(facts, node, swapped, numeric)
                        self._try("aggregate", node, swapped(this=inner.copy()), proof)
        yield

    def _set_operations(self) -> Iterator[None]:
        for node in self._nodes(*SET_OPERATIONS):
            for side in ("this", "expression"):
                branch = node.args[side]
                if not node.args.get("order") and not node.args.get("limit"):
                    self._try("set operation", node, branch.copy())
            for other in SET_OPERATIONS:
                for distinct in (True, False):
                    if (isinstance(node, other) and bool(node.args.get("distinct")) == distinct) or (
                        other is not exp.Union and not distinct
                    ):
                        continue
                    new = other(**{k: v for k, v in node.copy().args.items() if k != "distinct"}, distinct=distinct)
                    self._try("set operation", node, new)
            if isinstance(node, exp.Except):
                new = node.copy()
                left, right = new.this, new.expression
                new.set("this", right)
                new.set("expression", left)
                self._try("set operation", node, new)
        yield

    def _groups(self) -> Iterator[None]:
        for scope in self.scopes.values():
            group = scope.select.args.get("group")
            if group is None:
                continue
            facts = self.facts[id(scope.select)]
            keys = group.expressions
            if len(keys) > 1:
                for key in keys:
                    rest = [k for k in keys if k is not key]
                    with setting(group, "expressions", rest):
                        self._emit("grouping", proofs.refines(facts, rest, key))
            known = {scope.ref(key) for key in keys}
            for ref in self._some_refs(scope, PER_SITE):
                if ref in known:
                    continue
                column = scope.column(ref)
                proof = proofs.refines(facts, keys, column)
                with setting(group, "expressions", [*(k.copy() for k in keys), column]):
                    self._emit("grouping", proof)
            for ref in self._some_refs(scope, PER_SITE):
                if len(keys) == 1 and not isinstance(keys[0], exp.Column):
                    with setting(group, "expressions", [scope.column(ref)]):
                        self._emit("grouping")
        yield

    # ------------------------------------------------------------------------------------------ top up

    def _top_up(self) -> None:
        """Superfluous conditions on own values of the columns, until there are enough neighbours."""
        scopes = [scope for scope in self.scopes.values() if any(True for _ in scope.refs())]
        inside = {id(scope.select): self._restricted(scope) for scope in scopes}
        for attempt in range(500):
            if sum(not n.equivalent for n in self.found.values()) > WANTED or not scopes:
                return
            scope = self.rng.choice(scopes)
            ref = self.rng.choice(list(scope.refs()))
            numeric = scope.table(ref).numeric[ref[1]]
            if ref in self.facts[id(scope.select)].fixed or ref in inside[id(scope.select)]:
                continue  # what is fixed, or restricted through a function, would only be restricted twice
            value = self.rng.choice(_own_values(scope, ref) or ([1, 2, 5] if numeric else ["a", "b"]))
            if attempt > 80:  # few values: those beside them as well
                value = (
                    value + self.rng.randrange(-4, 5)
                    if numeric
                    else value[: self.rng.randrange(1, 9)] + self.rng.choice(" aemrz")
                )
            literal = exp.Literal.string(value) if isinstance(value, str) else _number(value)
            operator = self.rng.choice((exp.NEQ, exp.NEQ, exp.EQ, exp.GT, exp.LTE))
            condition = operator(this=scope.column(ref), expression=literal)
            touches = (scope.table(ref).name, ref[1], value)
            where = scope.select.args.get("where")
            if attempt > 120 and where is not None and attempt % 2:  # or it is one more way to qualify
                with setting(where, "this", exp.Or(this=where.this.copy(), expression=condition)):
                    self._emit("added condition", None, touches)
                continue
            proof = join_proofs.implied(scope, condition)
            self._with_condition("added condition", scope, condition, proof, touches)

    def _restricted(self, scope: Scope) -> set[Ref]:
        """Columns that WHERE compares by way of a function."""
        where = scope.select.args.get("where")
        functions = where.find_all(exp.Func) if where else ()
        return {ref for f in functions for column in f.find_all(exp.Column) if (ref := scope.ref(column))}


def _own_values(scope: Scope, ref: Ref) -> list[Any]:
    """Values of the column in the original that are of its type and can be written as a constant."""
    table = scope.table(ref)
    kind = (int, float) if table.numeric[ref[1]] else str
    values = dict.fromkeys(row[ref[1]] for row in table.rows[:60] if isinstance(row[ref[1]], kind))
    return [v for v in values if not isinstance(v, str) or (0 < len(v) < 60 and v.isprintable())]


def _same_value(value: Any, text: str) -> bool:
    try:
        return str(value) == text or (not isinstance(value, str) and float(value) == float(text))
    except ValueError:
        return False


def _number(value: float) -> exp.Expr:
    return exp.Neg(this=exp.Literal.number(-value)) if value < 0 else exp.Literal.number(value)


def _in_on(node: exp.Expr) -> bool:
    join = node.find_ancestor(exp.Join, exp.Select)
    return isinstance(join, exp.Join)


def _within(node: exp.Expr, ancestor: exp.Expr) -> bool:
    above: exp.Expr | None = node
    while above is not None:
        if above is ancestor:
            return True
        above = above.parent
    return False


def _condition_of(node: exp.Expr) -> exp.Expr | None:
    return node.find_ancestor(*COMPARISONS, exp.Select)


def _thinned(found: list[Neighbour], rng: random.Random) -> list[Neighbour]:
    """At most ``MOST``, the most numerous kinds thinned first."""
    by_kind: dict[str, list[Neighbour]] = {}
    for neighbour in found:
        by_kind.setdefault(neighbour.kind, []).append(neighbour)
    while sum(map(len, by_kind.values())) > MOST:
        largest = max(by_kind.values(), key=len)
        largest.pop(rng.randrange(len(largest)))
    kept = {n.sql for group in by_kind.values() for n in group}
    return [n for n in found if n.sql in kept]


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
