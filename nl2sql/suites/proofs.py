"""Proofs that a neighbour answers as the gold does, on every database that respects the schema.

Assumed of such a database: declared keys are unique and never NULL in the primary key, foreign keys that hold in the
original hold, NOT NULL holds, numeric columns hold numbers. Each function gives the reason in words, or None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqlglot import expressions as exp

from nl2sql.suites.scopes import Facts, Ref, Scope, conjuncts

AGGREGATES = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)
ONE_ROW = "there is at most one row"
MIRROR: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.EQ: exp.EQ,
    exp.NEQ: exp.NEQ,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}
HOLDS: dict[type[exp.Expr], Any] = {
    exp.EQ: lambda a, b: a == b,
    exp.NEQ: lambda a, b: a != b,
    exp.LT: lambda a, b: a < b,
    exp.LTE: lambda a, b: a <= b,
    exp.GT: lambda a, b: a > b,
    exp.GTE: lambda a, b: a >= b,
}


def _plain_aggregate(select: exp.Select) -> bool:
    """The outermost level aggregates without GROUP BY: exactly one row."""
    return not select.args.get("group") and any(
        node.find_ancestor(exp.Select) is select and node.find_ancestor(exp.Window) is None
        for item in select.expressions
        for node in item.find_all(*AGGREGATES)
    )


def _projected(facts: Facts) -> set[Ref]:
    scope = facts.scope
    found: set[Ref] = set()
    for item in scope.select.expressions:
        inner = item.unalias()
        if isinstance(inner, exp.Star):
            found |= set(scope.refs())
        elif isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star):
            found |= {ref for ref in scope.refs() if ref[0] == inner.table.lower()}
        elif ref := scope.ref(inner):
            found.add(ref)
    return found


def at_most_one_row(facts: Facts) -> bool:
    select = facts.scope.select
    return _plain_aggregate(select) or facts.all_determined(())


def no_duplicates(facts: Facts) -> str | None:
    """DISTINCT changes nothing: the projection holds a key of the rows or of the groups."""
    select = facts.scope.select
    if at_most_one_row(facts):
        return ONE_ROW
    shown = _projected(facts)
    if _first_row_only(facts, select, shown):
        return "the first row is the same with and without duplicates"
    group = select.args.get("group")
    if group is not None and group.expressions:
        follows = facts.determined(shown)
        texts = {item.unalias().sql("sqlite").lower() for item in select.expressions}
        names = {item.alias.lower() for item in select.expressions if item.alias}
        if all(
            facts.scope.ref(key) in follows or key.sql("sqlite").lower() in texts | names for key in group.expressions
        ):
            return "the projection holds the grouping columns"
        return None
    return "the projection holds a key" if facts.all_determined(shown) else None


def _first_row_only(facts: Facts, select: exp.Select, shown: set[Ref]) -> bool:
    """LIMIT 1 after an order by what is shown: equal rows have equal keys."""
    limit, order = select.args.get("limit"), select.args.get("order")
    if limit is None or limit.expression.sql() != "1" or select.args.get("offset") or order is None:
        return False
    texts = {item.unalias().sql("sqlite").lower() for item in select.expressions}
    texts |= {item.alias.lower() for item in select.expressions if item.alias}
    return all(
        facts.scope.ref(key.this) in shown or key.this.sql("sqlite").lower() in texts for key in order.expressions
    )


def duplicates_do_not_show(select: exp.Select) -> str | None:
    """A subquery whose duplicates cannot be seen from outside."""
    if select.args.get("limit"):
        return None
    above: exp.Expr | None = select.parent
    if isinstance(above, (exp.Union, exp.Intersect, exp.Except)) and above.args.get("distinct"):
        return "an operand of a set operation"
    if isinstance(above, exp.Subquery):
        above = above.parent
    return "inside IN or EXISTS" if isinstance(above, (exp.In, exp.Exists)) else None


def counted_once(facts: Facts, node: exp.Expr) -> str | None:
    """COUNT(DISTINCT c) is COUNT(c): no value of c occurs twice within a group."""
    ref = facts.scope.ref(node)
    if ref is None:
        return None
    group = facts.scope.select.args.get("group")
    start = {ref} | {r for key in (group.expressions if group else ()) if (r := facts.scope.ref(key))}
    return "a key is counted" if facts.all_determined(start) else None


def order_does_not_show(facts: Facts, select: exp.Select) -> str | None:
    if at_most_one_row(facts):
        return ONE_ROW
    above: exp.Expr | None = select.parent.parent if isinstance(select.parent, exp.Subquery) else select.parent
    if isinstance(above, (exp.In, exp.Exists)) and not select.args.get("limit"):
        return "inside IN or EXISTS"
    return None


def later_key_does_not_show(select: exp.Select, keys: Sequence[exp.Expr], key: exp.Expr) -> str | None:
    """Rows that are equal in the keys before show the same, so that their order cannot be seen."""
    before = {k.this.sql("sqlite").lower() for k in keys[: next(i for i, k in enumerate(keys) if k is key)]}
    names = {item.alias.lower() for item in select.expressions if item.alias} & before
    shown = [item for item in select.expressions if item.alias.lower() not in names or not item.alias]
    if before and all(item.unalias().sql("sqlite").lower() in before for item in shown):
        return "rows that differ in this key only look the same"
    return None


def always_holds(facts: Facts, condition: exp.Expr) -> str | None:
    """A comparison of COUNT that every group passes."""
    test = _count_test(facts, condition)
    if test and all(HOLDS[test[0]](count, test[1]) for count in range(test[2], max(test[1], test[2]) + 3)):
        return "every group passes"
    return None


def neither_is_null(facts: Facts, node: exp.Expr, old: Ref, new: Ref) -> str | None:
    """COUNT of two columns that are never NULL; IS NULL of two that are NULL only where an outer join fills them."""
    if isinstance(node.parent, exp.Count) and facts.never_null(old) and facts.never_null(new):
        return "neither column is ever NULL"
    filled = old[0] == new[0] and old[0] in facts.nullable_sources and isinstance(node.parent, exp.Is)
    if filled and not any(facts.scope.table(ref).nullable[ref[1]] for ref in (old, new)):
        return "both columns are NULL only where no partner was found"
    return None


def same_equalities(old: Facts, new: Facts) -> str | None:
    """The joins equate the same columns, in another chain."""
    inner = not old.nullable_sources and len(old.equal) == len(new.equal) and set(old.one_way) == set(new.one_way)
    return "the same columns are joined" if inner and old.equal and old.classes() == new.classes() else None


def limit_does_not_show(facts: Facts, select: exp.Select) -> str | None:
    """Any LIMIT of at least one row, and none at all, give the same."""
    if at_most_one_row(facts):
        return ONE_ROW
    above: exp.Expr | None = select.parent
    if isinstance(above, exp.Subquery):
        place = above.parent
        if isinstance(place, exp.Exists):
            return "inside EXISTS"
        if isinstance(place, (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)) or (
            isinstance(place, exp.Select) and above in place.expressions
        ):
            return "a scalar subquery gives its first row"
    return "inside EXISTS" if isinstance(above, exp.Exists) else None


def _closure(facts: Facts, keys: Sequence[exp.Expr]) -> set[Ref]:
    return facts.determined({ref for key in keys if (ref := facts.scope.ref(key))})


def refines(facts: Facts, keys: Sequence[exp.Expr], key: exp.Expr) -> str | None:
    """Grouping by ``keys`` and by ``keys`` with ``key`` is the same: ``key`` follows from the others."""
    ref = facts.scope.ref(key)
    if ref is None or not keys or not facts.plain:
        return None
    return "the grouping columns determine each other" if ref in _closure(facts, keys) else None


def same_groups(facts: Facts, group: exp.Group, old: Ref, new: Ref) -> str | None:
    if not facts.plain:
        return None
    others = {ref for key in group.expressions if (ref := facts.scope.ref(key)) and ref != old}
    if new in facts.determined(others | {old}) and old in facts.determined(others | {new}):
        return "the grouping columns determine each other"
    return None


def groups_of_one(facts: Facts, node: exp.Expr, other: type[exp.Expr], numeric: bool) -> str | None:
    """SUM, AVG, MIN and MAX of a single row are the same."""
    if isinstance(node, exp.Count) or other is exp.Count or isinstance(node.this, exp.Distinct):
        return None
    if not numeric and not (isinstance(node, (exp.Min, exp.Max)) and other in (exp.Min, exp.Max)):
        return None
    group = facts.scope.select.args.get("group")
    keys = group.expressions if group else ()
    return "every group has one row" if facts.all_determined(r for k in keys if (r := facts.scope.ref(k))) else None


def same_counts(facts: Facts | None, old: exp.Expr, new: exp.Expr) -> str | None:
    """Two comparisons of COUNT with a whole number that hold for the same counts."""
    first, second = _count_test(facts, old), _count_test(facts, new)
    if first is None or second is None:
        return None
    counts = range(first[2], max(first[1], second[1], first[2]) + 3)
    if all(HOLDS[first[0]](count, first[1]) == HOLDS[second[0]](count, second[1]) for count in counts):
        return "a count never takes the values between"
    return None


def _count_test(facts: Facts | None, node: exp.Expr) -> tuple[type[exp.Expr], int, int] | None:
    """(operator, number, least possible count) of ``COUNT(...) op number``, either way round."""
    operator = type(node)
    if operator not in HOLDS:
        return None
    left, right = node.this, node.expression
    if isinstance(right, exp.Count):
        left, right, operator = right, left, MIRROR[operator]
    sign = 1
    if isinstance(right, exp.Neg):
        sign, right = -1, right.this
    if not isinstance(left, exp.Count) or not isinstance(right, exp.Literal) or not right.this.isdigit():
        return None
    least = 0
    if facts is not None and facts.scope.select.args.get("group"):  # a group has a row
        ref = facts.scope.ref(_argument(left))
        least = int(isinstance(left.this, exp.Star) or (ref is not None and facts.never_null(ref)))
    return operator, sign * int(right.this), least


def extreme(facts: Facts | None, old: exp.Expr, new: exp.Expr) -> str | None:
    """``c = (SELECT max(c) FROM t)`` is ``c >= ...``, and likewise for min."""
    if facts is None:
        return None
    ref, inner = facts.scope.ref(old.this), old.expression
    select = inner.find(exp.Select) if isinstance(inner, exp.Subquery) else None
    if ref is None or select is None or len(select.expressions) != 1:
        return None
    if any(select.args.get(key) for key in ("joins", "group", "having", "limit", "offset")):
        return None
    if select.args.get("where"):  # whatever restricts the subquery has to restrict the rows around it as well
        outer = facts.scope.select
        held = _bare(outer.args["where"].this) if outer.args.get("where") else set()
        if len(facts.scope.sources) != 1 or not _bare(select.args["where"].this) <= held:
            return None
    best, source = select.expressions[0].unalias(), select.args.get("from_")
    if not isinstance(best, (exp.Max, exp.Min)) or not isinstance(best.this, exp.Column) or source is None:
        return None
    table = facts.scope.table(ref)
    same = source.this.name.lower() == table.name.lower() and best.this.name.lower() == table.names[ref[1]].lower()
    never = exp.GT if isinstance(best, exp.Max) else exp.LT
    alike = {exp.EQ, exp.GTE if never is exp.GT else exp.LTE}
    if same and {type(old), type(new)} == alike:
        return "no value is beyond the extreme"
    return None


def _bare(condition: exp.Expr) -> set[str]:
    """The conjuncts as text, without table names."""
    texts = set()
    for part in conjuncts(condition):
        part = part.copy()
        for column in part.find_all(exp.Column):
            column.set("table", None)
        texts.add(part.sql("sqlite").lower() if part.find(exp.Subquery) is None else f"{id(part)}")
    return texts


def zero_fails_too(node: exp.Expr) -> str | None:
    """``HAVING SUM(c) > n`` drops groups of NULLs, and would drop them if their sum were 0."""
    test = node.parent
    if not isinstance(node, exp.Sum) or type(test) not in HOLDS or test is None:
        return None
    left, right, operator = test.this, test.expression, type(test)
    if right is node:
        left, right, operator = right, left, MIRROR[operator]
    above = test.parent
    while isinstance(above, exp.And):
        above = above.parent
    if left is not node or not isinstance(right, exp.Literal) or right.is_string or not isinstance(above, exp.Having):
        return None
    return None if HOLDS[operator](0.0, float(right.this)) else "HAVING drops groups of NULLs either way"


# ----------------------------------------------------------------------------------------------------- outer joins


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
        ignored = all(isinstance(item, AGGREGATES) and _all_from(scope, _argument(item), lonely) for item in inner)
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
            if isinstance(side, (exp.Sum, exp.Avg, exp.Min, exp.Max)) and (ref := scope.ref(_argument(side))):
                found.add(ref)
        test = _count_test(None, part)
        count = part.this if isinstance(part.this, exp.Count) else part.expression
        if test and not HOLDS[test[0]](0, test[1]) and (ref := scope.ref(_argument(count))):
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
            test = _count_test(None, part)
            count = part.this if isinstance(part.this, exp.Count) else part.expression
            if test and isinstance(count.this, exp.Star) and not HOLDS[test[0]](1, test[1]):
                return True
        return fails
    # they may join groups with partners, where aggregates over the NULLs do not notice them
    aggregates = [node for node in scope.own(AGGREGATES) if node.find_ancestor(exp.Where) is None]  # type: ignore[arg-type]
    if any((ref := scope.ref(_argument(node))) is None or ref[0] != lonely for node in aggregates):
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


def _argument(item: exp.Expr) -> exp.Expr | None:
    inner = item.this
    if isinstance(inner, exp.Distinct) and len(inner.expressions) == 1:
        return inner.expressions[0]
    return inner if isinstance(inner, exp.Expr) else None


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
    select = scope.select
    inner = [item.unalias() for item in select.expressions]
    if not select.args.get("group") and not select.args.get("having") and inner:
        if all(isinstance(i, AGGREGATES) and scope.ref(_argument(i)) == ref for i in inner):
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
    if group is None or any(scope.ref(_argument(node)) != ref for node in aggregates):
        return False
    follows = _closure(facts, group.expressions)
    parts = [*select.expressions, *([select.args["order"]] if select.args.get("order") else [])]
    columns = [c for part in parts for c in part.find_all(exp.Column) if c.find_ancestor(*AGGREGATES) is None]
    return all(scope.ref(column) in follows for column in columns)
