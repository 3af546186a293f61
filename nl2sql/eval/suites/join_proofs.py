"""Proofs about outer joins, NULLs and implied conditions; what is assumed of a database: ``proofs.py``."""

from __future__ import annotations

import re
from typing import Any

from sqlglot import expressions as exp

from nl2sql.eval.suites.proofs import AGGREGATES, HOLDS, argument, closure, count_test
from nl2sql.eval.suites.scopes import Facts, Ref, Scope, conjuncts


def outer_rows_do_not_show(scope: Scope, facts: Facts, join: exp.Join, side: str) -> str | None:
    """INNER and ``side`` JOIN give the same: no row lacks a partner, or such rows are dropped or ignored anyway."""
    select = scope.select
    first = select.args["from_"].this.alias_or_name.lower()
    joined = join.this.alias_or_name.lower()
    lonely = first if side == "RIGHT" else joined
    if scope.sources.get(lonely) is None:
        return None
    parts = list(conjuncts(join.args.get("on")))
    if any(ref[0] == lonely for ref in _rejected_elsewhere(facts, join)):
        return "rows without a partner fail a condition"
    if len(parts) == 1 and _always_refers(scope, facts, parts[0], lonely):
        return "a foreign key that is never NULL always finds its partner"
    inner = [item.unalias() for item in select.expressions]
    only_lonely = all((ref := scope.ref(item)) is not None and ref[0] == lonely for item in inner)
    if not select.args.get("group") and not select.args.get("having"):
        ignored = all(isinstance(item, AGGREGATES) and _all_from(scope, argument(item), lonely) for item in inner)
        if inner and ignored:
            return "aggregates ignore the NULLs of rows without a partner"
        if inner and only_lonely and not select.args.get("limit"):
            if _in_plain_in(select):
                return "a NULL more in an IN list"
            if len(inner) == 1 and no_null_opposite(select, facts):
                return "the other operand of the set operation has no NULL"
    if _groups_fail(scope, lonely, facts):
        return "groups without a partner fail HAVING"
    return None


def _rejecting_aggregates(scope: Scope) -> set[Ref]:
    """Columns over which HAVING compares an aggregate such that groups that hold only NULLs there fail."""
    having = scope.select.args.get("having")
    found = set()
    for part in conjuncts(having.this if having else None):
        if type(part) not in HOLDS:
            continue
        for side in (part.this, part.expression):
            if isinstance(side, (exp.Sum, exp.Avg, exp.Min, exp.Max)) and (ref := scope.ref(argument(side))):
                found.add(ref)
        test = count_test(None, part)
        count = part.this if isinstance(part.this, exp.Count) else part.expression
        if test and not HOLDS[test[0]](0, test[1]) and (ref := scope.ref(argument(count))):
            found.add(ref)
    return found


def _groups_fail(scope: Scope, lonely: str, facts: Facts) -> bool:
    """Rows without a partner form groups of their own or do not change a group, and HAVING drops the new groups."""
    select = scope.select
    group = select.args.get("group")
    if group is None or len(scope.sources) != 2 or select.args.get("distinct"):
        return False
    keys = {ref for key in group.expressions if (ref := scope.ref(key))}
    rejecting = _rejecting_aggregates(scope)
    fails = any(ref[0] == lonely for ref in rejecting)
    other = next((alias for alias in scope.sources if alias != lonely), None)
    table = scope.sources[other] if other is not None else None
    if any(key[0] == lonely and not scope.table(key).nullable[key[1]] for key in keys):
        return fails  # their own groups: the key is NULL there and nowhere else
    if table is not None and any({(other, c) for c in key} <= keys for key in table.unique):
        # their own groups, of a single row each
        having = select.args.get("having")
        for part in conjuncts(having.this if having else None):
            test = count_test(None, part)
            count = part.this if isinstance(part.this, exp.Count) else part.expression
            if test and isinstance(count.this, exp.Star) and not HOLDS[test[0]](1, test[1]):
                return True
        return fails
    # they may join groups with partners, where aggregates over the NULLs do not notice them
    aggregates = [node for node in scope.own(AGGREGATES) if node.find_ancestor(exp.Where) is None]  # type: ignore[arg-type]
    if any((ref := scope.ref(argument(node))) is None or ref[0] != lonely for node in aggregates):
        return False
    parts = [*select.expressions, *([select.args["order"]] if select.args.get("order") else [])]
    columns = [c for part in parts for c in part.find_all(exp.Column) if c.find_ancestor(*AGGREGATES) is None]
    return fails and all(scope.ref(column) in keys for column in columns)


def implied(scope: Scope, condition: exp.Expr) -> str | None:
    """A condition on a column and a constant that follows from those that are there already."""
    where = scope.select.args.get("where")
    ref = scope.ref(condition.this)
    if ref is None or scope.table(ref).collated:
        return None
    numbers = scope.table(ref).numeric[ref[1]]
    constants: set[Any] = set()
    new = _predicate(scope, condition, ref, numbers, constants)
    old = [_predicate(scope, part, ref, numbers, constants) for part in conjuncts(where.this if where else None)]
    held = [test for test in old if test is not None]
    if new is None or not held:
        return None
    # places in the order: even ones lie between the constants, odd ones are the constants
    place = {value: 2 * index + 1 for index, value in enumerate(sorted(constants))}
    for at in range(2 * len(constants) + 1):
        if all(test(at, place) for test in held) and not new(at, place):
            return None
    return "the condition follows from others"


def _predicate(scope: Scope, node: exp.Expr, ref: Ref, numbers: bool, constants: set[Any]) -> Any:
    """A condition on one column as a function of a place in the order of constants; None where it is more than that."""
    if isinstance(node, exp.Paren):
        return _predicate(scope, node.this, ref, numbers, constants)
    if isinstance(node, (exp.And, exp.Or)):
        left = _predicate(scope, node.this, ref, numbers, constants)
        right = _predicate(scope, node.expression, ref, numbers, constants)
        if left is None or right is None:
            return None
        if isinstance(node, exp.And):
            return lambda at, place: left(at, place) and right(at, place)
        return lambda at, place: left(at, place) or right(at, place)
    if scope.ref(node.this) != ref:
        return None
    if type(node) in HOLDS:
        value = _typed(node.expression, numbers)
        if value is None:
            return None
        constants.add(value)
        return lambda at, place: HOLDS[type(node)](at, place[value])
    if isinstance(node, exp.Between):
        low, high = _typed(node.args["low"], numbers), _typed(node.args["high"], numbers)
        if low is None or high is None:
            return None
        constants |= {low, high}
        return lambda at, place: place[low] <= at <= place[high]
    if isinstance(node, exp.Like) and node.args.get("negate"):
        return None
    if isinstance(node, exp.Like) and isinstance(node.expression, exp.Literal) and not numbers:
        prefix = node.expression.this[:-1]
        if node.expression.this.endswith("%") and prefix and not re.search(r"[%_a-zA-Z]", prefix):
            end = prefix + chr(0x10FFFF)  # without letters, case does not matter, and the matches lie together
            constants |= {prefix, end}
            return lambda at, place: place[prefix] <= at < place[end]
        pattern = re.escape(node.expression.this.lower()).replace("%", ".*").replace("_", ".")
        fits = re.compile(pattern, re.DOTALL)
        return lambda at, place: (
            at % 2 == 0 or any(p == at and fits.fullmatch(str(value).lower()) for value, p in place.items())
        )
    if isinstance(node, exp.In) and node.expressions:
        values = [_typed(item, numbers) for item in node.expressions]
        if None in values:
            return None
        constants |= set(values)
        return lambda at, place: at in {place[value] for value in values}
    return None


def _typed(node: Any, numbers: bool) -> Any:
    """The value of a constant as SQLite compares it with a column of that type; None where that is not plain."""
    sign, node = (-1, node.this) if isinstance(node, exp.Neg) else (1, node)
    if not isinstance(node, exp.Literal):
        return None
    if numbers:
        plain = re.fullmatch(r"\d+(\.\d+)?", node.this)
        return sign * float(node.this) if plain else None
    return node.this if node.is_string else None


def _all_from(scope: Scope, node: exp.Expr | None, alias: str) -> bool:
    """A column of ``alias``, or arithmetic over such: NULL wherever the whole row is."""
    if isinstance(node, (exp.Add, exp.Sub, exp.Mul, exp.Div)):
        sides = [side for side in (node.this, node.expression) if not isinstance(side, exp.Literal)]
        return bool(sides) and all(_all_from(scope, side, alias) for side in sides)
    if isinstance(node, exp.Paren):
        return _all_from(scope, node.this, alias)
    ref = scope.ref(node)
    return ref is not None and ref[0] == alias


def _in_plain_in(select: exp.Select) -> bool:
    """Inside ``x IN (SELECT ...)`` of a condition without NOT: one NULL more in the list changes nothing."""
    above: exp.Expr | None = select.parent
    while isinstance(above, (exp.Union, exp.Intersect, exp.Except)) and not above.args.get("limit"):
        above = above.parent  # one NULL more in an operand: at most one more in the whole, or one less
    if isinstance(above, exp.Subquery):
        above = above.parent
    if not isinstance(above, exp.In):
        return False
    node: exp.Expr | None = above.parent
    while isinstance(node, (exp.And, exp.Or, exp.Paren)):
        node = node.parent
    return isinstance(node, exp.Where)


def _rejected_elsewhere(facts: Facts, join: exp.Join) -> set[Ref]:
    """Columns whose NULLs are rejected by WHERE or by another inner join, not by the join itself."""
    scope = facts.scope
    if not join.side:
        sides = join.args.get("on")
        join.set("on", None)
        try:
            return Facts(scope).rejected
        finally:
            join.set("on", sides)
    return facts.rejected


def _always_refers(scope: Scope, facts: Facts, node: exp.Expr, parent_alias: str) -> bool:
    """``node`` equates a never-NULL foreign key with the columns of ``parent_alias`` that it refers to."""
    if not isinstance(node, exp.EQ):
        return False
    left, right = scope.ref(node.this), scope.ref(node.expression)
    if left is None or right is None:
        return False
    child, parent = (left, right) if right[0] == parent_alias else (right, left)
    if parent[0] != parent_alias or child[0] == parent_alias or child[0] in facts.nullable_sources:
        return False
    table = scope.table(child)
    if table.nullable[child[1]]:
        return False
    name = scope.table(parent).name
    return any(
        key.columns == (child[1],) and key.parent == name and key.parent_columns == (parent[1],)
        for key in table.foreign_keys
    )


def join_is_idle(facts: Facts, scope: Scope, join: exp.Join) -> str | None:
    """A joined parent that is used nowhere: each row has exactly one partner."""
    alias = join.this.alias_or_name.lower()
    parts = list(conjuncts(join.args.get("on")))
    if len(parts) != 1 or any(isinstance(i.unalias(), exp.Star) for i in scope.select.expressions):
        return None
    if not isinstance(parts[0], exp.EQ):
        return None
    left, right = scope.ref(parts[0].this), scope.ref(parts[0].expression)
    if left is None or right is None:
        return None
    child, parent = (left, right) if right[0] == alias else (right, left)
    if not any(key == (parent[1],) for key in scope.table(parent).unique):
        return None
    outer = (join.side or "").upper() == "LEFT"
    if outer or _always_refers(scope, facts, parts[0], alias):
        return "each row has exactly one partner"
    # a foreign key that may be NULL, but whose NULLs other conditions drop
    if child in _rejected_elsewhere(facts, join):
        refers = any(
            key.columns == (child[1],) and key.parent == scope.table(parent).name and key.parent_columns == (parent[1],)
            for key in scope.table(child).foreign_keys
        )
        return "each row has exactly one partner" if refers and not facts.nullable_sources else None
    return None


def null_rows_do_not_show(facts: Facts, scope: Scope, ref: Ref) -> str | None:
    """``ref IS NOT NULL`` changes nothing."""
    if facts.never_null(ref):
        return "the column is never NULL"
    return rows_of_nulls_do_not_show(facts, scope, ref)


def rows_of_nulls_do_not_show(facts: Facts, scope: Scope, ref: Ref) -> str | None:
    """Rows with NULL in ``ref`` may come or go."""
    select = scope.select
    inner = [item.unalias() for item in select.expressions]
    if not select.args.get("group") and not select.args.get("having") and inner:
        if all(isinstance(i, AGGREGATES) and scope.ref(argument(i)) == ref for i in inner):
            return "aggregates ignore NULLs"
        if all(scope.ref(i) == ref for i in inner) and not select.args.get("limit") and _in_plain_in(select):
            return "a NULL more in an IN list"
    if (
        len(inner) == 1
        and scope.ref(inner[0]) == ref
        and not select.args.get("limit")
        and no_null_opposite(select, facts)
    ):
        return "the other operand of the set operation has no NULL"
    if ref in _rejecting_aggregates(scope) and _only_over(scope, facts, ref):
        return "aggregates ignore NULLs, and groups of NULLs fail HAVING"
    return None


def no_null_opposite(select: exp.Select, facts: Facts) -> bool:
    """In ``x EXCEPT select`` and in INTERSECT: the other operand shows one column, which is never NULL."""
    above = select.parent
    if isinstance(above, exp.Except) and above.expression is select:
        other = above.this
    elif isinstance(above, exp.Intersect):
        other = above.expression if above.this is select else above.this
    else:
        return False
    if not isinstance(other, exp.Select) or len(other.expressions) != 1 or other.args.get("group"):
        return False
    beside = facts.others.get(id(other))
    ref = beside.scope.ref(other.expressions[0].unalias()) if beside else None
    return beside is not None and ref is not None and beside.never_null(ref)


def _only_over(scope: Scope, facts: Facts, ref: Ref) -> bool:
    """Every aggregate is over ``ref``, and what else is shown or sorted by follows from the grouping columns."""
    select = scope.select
    group = select.args.get("group")
    aggregates = [node for node in scope.own(AGGREGATES) if node.find_ancestor(exp.Where) is None]  # type: ignore[arg-type]
    if group is None or any(scope.ref(argument(node)) != ref for node in aggregates):
        return False
    follows = closure(facts, group.expressions)
    parts = [*select.expressions, *([select.args["order"]] if select.args.get("order") else [])]
    columns = [c for part in parts for c in part.find_all(exp.Column) if c.find_ancestor(*AGGREGATES) is None]
    return all(scope.ref(column) in follows for column in columns)
