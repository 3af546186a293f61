"""Which table and column a column reference of a query means, and what follows from keys and equalities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlglot import expressions as exp

from nl2sql.eval.suites.source import Source, TableSource

Ref: TypeAlias = tuple[str, int]  # alias in lower case, number of the column

REJECTING = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Like, exp.In, exp.Between)
STRICT = (
    *(exp.Cast, exp.Lower, exp.Upper, exp.Length, exp.Abs, exp.Substring, exp.TimeToStr, exp.TsOrDsToTimestamp),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Paren),
)


@dataclass
class Scope:
    """One SELECT: its sources by alias (None for a derived table), and the SELECT around it."""

    select: exp.Select
    sources: dict[str, TableSource | None]
    outer: Scope | None = None
    names: dict[str, str] = field(default_factory=dict)  # lower-case alias -> as written

    def find(self, column: exp.Column) -> tuple[Scope, str, int] | None:
        """The scope, alias and column number of a reference; None where it is not a column of a plain table."""
        name, alias = column.name.lower(), column.table.lower()
        for key, table in self.sources.items():
            if table is not None and (not alias or alias == key) and name in table.position:
                return self, key, table.position[name]
        return self.outer.find(column) if self.outer else None

    def ref(self, node: Any) -> Ref | None:
        """The reference as a column of this very SELECT."""
        if not isinstance(node, exp.Column):
            return None
        found = self.find(node)
        return (found[1], found[2]) if found and found[0] is self else None

    def table(self, ref: Ref) -> TableSource:
        table = self.sources[ref[0]]
        assert table is not None, ref
        return table

    def column(self, ref: Ref) -> exp.Column:
        """A column node for ``ref``, qualified where there are several sources."""
        table = self.table(ref)
        qualifier = exp.to_identifier(self.names[ref[0]]) if len(self.sources) > 1 else None
        return exp.Column(this=exp.to_identifier(table.names[ref[1]]), table=qualifier)

    def refs(self) -> Iterator[Ref]:
        for alias, table in self.sources.items():
            if table is not None:
                yield from ((alias, index) for index in range(len(table.names)))

    def own(self, kind: type[Any]) -> Iterator[Any]:
        """Nodes of a kind that belong to this SELECT and not to one inside it."""
        for node in self.select.find_all(kind):
            if node is not self.select and node.find_ancestor(exp.Select) is self.select:
                yield node


def scopes_of(tree: exp.Expr, source: Source) -> dict[int, Scope]:
    """Scopes by ``id`` of their SELECT node."""
    found: dict[int, Scope] = {}
    for select in tree.find_all(exp.Select):
        sources: dict[str, TableSource | None] = {}
        names: dict[str, str] = {}
        parts = [select.args["from_"].this] if select.args.get("from_") else []
        parts += [join.this for join in select.args.get("joins") or []]
        for part in parts:
            alias = part.alias_or_name
            sources[alias.lower()] = source.by_name.get(part.name.lower()) if isinstance(part, exp.Table) else None
            names[alias.lower()] = alias
        above = select.find_ancestor(exp.Select)
        found[id(select)] = Scope(select, sources, found.get(id(above)) if above else None, names)
    return found


def conjuncts(node: exp.Expr | None) -> Iterator[exp.Expr]:
    """The parts of a condition that all have to hold."""
    if node is None:
        return
    if isinstance(node, exp.Paren):
        yield from conjuncts(node.this)
    elif isinstance(node, exp.And):
        yield from conjuncts(node.this)
        yield from conjuncts(node.expression)
    else:
        yield node


def is_outer(join: exp.Join) -> bool:
    return (join.side or "").upper() in ("LEFT", "RIGHT", "FULL")


class Facts:
    """What keys, NOT NULLs, joins and conditions of one SELECT prove. Sound, not complete.

    ``present``: an alias whose rows alone are looked at, without those that an outer join fills with NULLs.
    """

    def __init__(self, scope: Scope, present: str = "") -> None:
        self.scope = scope
        self.others: dict[int, Facts] = {}  # of all SELECTs of the query, by ``id``
        select = scope.select
        joins: list[exp.Join] = select.args.get("joins") or []
        self.nullable_sources: set[str] = set()
        self.equal: list[tuple[Ref, Ref]] = []  # both ways
        self.fixed: set[Ref] = set()
        self.rejected: set[Ref] = set()  # no row with a NULL here survives
        self.one_way: list[tuple[Ref, Ref]] = []  # the second follows from the first
        self.matched_by: list[tuple[Ref, Ref]] = []  # ... by a LEFT JOIN: it is equal, or its whole row is NULL
        self.unread: set[str] = set()  # conditions that are not simple equalities, as text
        self.plain = all(table is not None for table in scope.sources.values()) and not any(
            j.args.get("using") or (j.method or "").upper() == "NATURAL" for j in joins
        )
        held: list[exp.Expr] = []
        seen = {select.args["from_"].this.alias_or_name.lower()} if select.args.get("from_") else set()
        for join in joins:
            alias = join.this.alias_or_name.lower()
            side = (join.side or "").upper()
            parts = list(conjuncts(join.args.get("on")))
            if side == "LEFT" and alias == present:
                side = ""
            if side in ("LEFT", "FULL"):
                self.nullable_sources.add(alias)
                if side == "LEFT" and len(parts) == 1:
                    self._match(parts[0], alias)
            if side in ("RIGHT", "FULL"):
                self.nullable_sources |= seen
                held = []  # rows of the other side need not pass the joins before
            if not side:
                held += parts
            else:
                self.unread |= {part.sql("sqlite").lower() for part in parts}
            seen.add(alias)
        held += conjuncts(select.args["where"].this if select.args.get("where") else None)
        for part in held:
            self._learn(part)

    def _pair(self, node: exp.Expr) -> tuple[Ref, Ref, bool] | None:
        """Columns that an equality compares, and whether both are of one type; else the second is the number."""
        if not isinstance(node, exp.EQ):
            return None
        left, right = self.scope.ref(node.this), self.scope.ref(node.expression)
        if left is None or right is None:
            return None
        one, other = self.scope.table(left), self.scope.table(right)
        if one.collated or other.collated:
            return None
        numeric = one.numeric[left[1]], other.numeric[right[1]]
        if numeric[0] != numeric[1]:
            return (right, left, False) if numeric[0] else (left, right, False)
        return left, right, True

    def _match(self, node: exp.Expr, alias: str) -> None:
        """The condition of a LEFT JOIN: what it equates in ``alias`` follows from what is outside."""
        pair = self._pair(node)
        if pair and pair[2]:
            inner, outer = pair[:2] if pair[0][0] == alias else (pair[1], pair[0])
            if inner[0] == alias != outer[0]:
                self.one_way.append((outer, inner))
                self.matched_by.append((outer, inner))

    def _learn(self, node: exp.Expr) -> None:
        self.rejected |= self._rejects(node)
        pair = self._pair(node)
        if pair and pair[2]:
            self.equal.append(pair[:2])
        else:
            self.unread.add(node.sql("sqlite").lower())
        if pair and not pair[2]:
            self.one_way.append(pair[:2])  # text is turned into a number: this way only
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null) and (ref := self.scope.ref(node.this)):
            self.fixed.add(ref)
        if not isinstance(node, exp.EQ):
            return
        for side, other in ((node.this, node.expression), (node.expression, node.this)):
            ref = self.scope.ref(side)
            if ref and isinstance(other, exp.Literal) and other.is_string != self.scope.table(ref).numeric[ref[1]]:
                self.fixed |= set() if self.scope.table(ref).collated else {ref}

    def _rejects(self, node: exp.Expr) -> set[Ref]:
        """Columns whose NULL makes the condition fail."""
        if isinstance(node, exp.Paren):
            return self._rejects(node.this)
        if isinstance(node, exp.And):
            return self._rejects(node.this) | self._rejects(node.expression)
        if isinstance(node, exp.Or):
            return self._rejects(node.this) & self._rejects(node.expression)
        if isinstance(node, exp.Not) and isinstance(node.this, exp.Is) and isinstance(node.this.expression, exp.Null):
            ref = self.scope.ref(node.this.this)
            return {ref} if ref else set()
        inner = node.this if isinstance(node, exp.Not) else node
        if not isinstance(inner, REJECTING):
            return set()
        if isinstance(node, exp.Not) and isinstance(inner, exp.In) and inner.args.get("query"):
            return set()  # NULL NOT IN (an empty list) holds
        return self._strict(inner.this) | self._strict(inner.args.get("expression"))

    def _strict(self, node: Any) -> set[Ref]:
        """Columns whose NULL makes an expression NULL."""
        if isinstance(node, STRICT):
            inner = node.expression if isinstance(node.args.get("expression"), exp.Expr) else None
            return self._strict(node.this) | (self._strict(inner) if isinstance(node, exp.Binary) else set())
        ref = self.scope.ref(node)
        return {ref} if ref else set()

    def never_null(self, ref: Ref) -> bool:
        """No row that survives has NULL in this column."""
        if ref in self.rejected:
            return True
        return ref[0] not in self.nullable_sources and not self.scope.table(ref).nullable[ref[1]]

    def same(self, ref: Ref) -> set[Ref]:
        """Columns that hold an equal value in every row."""
        found = {ref}
        while True:
            more = {b for pair in self.equal for a, b in (pair, pair[::-1]) if a in found} - found
            if not more:
                return found
            found |= more

    def classes(self) -> set[frozenset[Ref]]:
        """Columns that are equal to each other, as sets."""
        return {frozenset(self.same(ref)) for pair in self.equal for ref in pair}

    def determined(self, start: Iterable[Ref]) -> set[Ref]:
        """Columns whose value follows from those of ``start`` (and from the conditions)."""
        found = set(start) | self.fixed
        known: set[str] = set()
        while True:
            before = len(found) + len(known)
            for a, b in self.equal:
                found |= {a, b} if a in found or b in found else set()
            found |= {b for a, b in self.one_way if a in found}
            for alias, table in self.scope.sources.items():
                if table is None or alias in known:
                    continue
                matched = {b for a, b in self.one_way if b[0] == alias and a in found}
                for key in table.unique:
                    refs = {(alias, index) for index in key}
                    if refs <= found and all(
                        not table.nullable[r[1]] or r in self.rejected or r in matched for r in refs
                    ):
                        if alias in self.nullable_sources and not refs <= matched:
                            continue  # the all-NULL row has no key
                        known.add(alias)
                        found |= {(alias, index) for index in range(len(table.names))}
                        break
            if len(found) + len(known) == before:
                self._known = known
                return found

    def all_determined(self, start: Iterable[Ref]) -> bool:
        """At most one row for each combination of values of ``start``."""
        self.determined(start)
        return self.plain and set(self.scope.sources) <= self._known
