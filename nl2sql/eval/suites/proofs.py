"""Proofs that a neighbour answers as the gold does, on every database that respects the schema.

Assumed of such a database: declared keys are unique and never NULL in the primary key, foreign keys that hold in the
original hold, NOT NULL holds, numeric columns hold numbers. Each function gives the reason in words, or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import expressions as exp

from nl2sql.eval.suites.scopes import Facts, Ref, conjuncts

AGGREGATES = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)
COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
RANKS = (exp.Rank, exp.DenseRank, exp.RowNumber)
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
        node.find_ancestor(exp.Select) is select
        and node.find_ancestor(exp.Window) is None
        and not node.args.get("expressions")  # MAX(a, b) is no aggregate
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
    if isinstance(above, COMPARISONS) and not select.args.get("order") and len(select.expressions) == 1:
        return "a scalar subquery gives its first row"
    return "inside IN or EXISTS" if isinstance(above, (exp.In, exp.Exists)) else None


def counted_once(facts: Facts, node: exp.Expr) -> str | None:
    """COUNT(DISTINCT c) is COUNT(c): no value of c occurs twice within a group."""
    ref = facts.scope.ref(node)
    if ref is None:
        return None
    group = facts.scope.select.args.get("group")
    start = {ref} | {r for key in (group.expressions if group else ()) if (r := facts.scope.ref(key))}
    if ref[0] in facts.nullable_sources:  # NULLs are not counted, so that only rows with a partner matter
        facts = Facts(facts.scope, present=ref[0])
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
    test = count_test(facts, condition)
    if test and all(HOLDS[test[0]](count, test[1]) for count in range(test[2], max(test[1], test[2]) + 3)):
        return "every group passes"
    return None


def neither_is_null(facts: Facts, node: exp.Expr, old: Ref, new: Ref) -> str | None:
    """COUNT and IS NULL of two columns that are never NULL, or NULL only where an outer join fills their row."""
    if isinstance(node.parent, exp.Count) and facts.never_null(old) and facts.never_null(new):
        return "neither column is ever NULL"
    if not isinstance(node.parent, (exp.Count, exp.Is)) or old[0] != new[0] or old[0] not in facts.nullable_sources:
        return None
    equated = {inner for _, inner in facts.matched_by}
    if all(ref in equated or not facts.scope.table(ref).nullable[ref[1]] for ref in (old, new)):
        return "both columns are NULL only where no partner was found"
    return None


def same_equalities(old: Facts, new: Facts) -> str | None:
    """The joins equate the same columns, in another chain."""
    inner = not old.nullable_sources and len(old.equal) == len(new.equal) and old.unread == new.unread
    return "the same columns are joined" if inner and old.equal and old.classes() == new.classes() else None


def limit_does_not_show(facts: Facts, select: exp.Select) -> str | None:
    """Any LIMIT of at least one row, and none at all, give the same."""
    limit = select.args.get("limit")
    if limit is not None and not (isinstance(limit.expression, exp.Literal) and limit.expression.this not in ("0", "")):
        return None
    if select.args.get("offset"):
        return None
    if at_most_one_row(facts):
        return ONE_ROW
    above: exp.Expr | None = select.parent
    if isinstance(above, exp.Subquery):
        place = above.parent
        if isinstance(place, exp.Exists):
            return "inside EXISTS"
        if isinstance(place, COMPARISONS) or (isinstance(place, exp.Select) and above in place.expressions):
            return "a scalar subquery gives its first row"
    return "inside EXISTS" if isinstance(above, exp.Exists) else None


def closure(facts: Facts, keys: Sequence[exp.Expr]) -> set[Ref]:
    return facts.determined({ref for key in keys if (ref := facts.scope.ref(key))})


def refines(facts: Facts, keys: Sequence[exp.Expr], key: exp.Expr) -> str | None:
    """Grouping by ``keys`` and by ``keys`` with ``key`` is the same: ``key`` follows from the others."""
    ref = facts.scope.ref(key)
    if ref is None or not keys or not facts.plain:
        return None
    return "the grouping columns determine each other" if ref in closure(facts, keys) else None


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
    rank = any(_is_rank(side) for test in (old, new) for side in (test.this, test.expression))  # one is in the query
    first, second = count_test(facts, old, rank), count_test(facts, new, rank)
    if first is None or second is None:
        return None
    counts = range(first[2], max(first[1], second[1], first[2]) + 3)
    if all(HOLDS[first[0]](count, first[1]) == HOLDS[second[0]](count, second[1]) for count in counts):
        return "a count never takes the values between"
    return None


def count_test(facts: Facts | None, node: exp.Expr, rank: bool = False) -> tuple[type[exp.Expr], int, int] | None:
    """(operator, number, least possible count) of ``COUNT(...) op number``, either way round.

    ``rank``: the column in it is a place in a window.
    """
    operator = type(node)
    if operator not in HOLDS:
        return None
    left, right = node.this, node.expression
    if isinstance(right, exp.Count) or (rank and isinstance(right, exp.Column)):
        left, right, operator = right, left, MIRROR[operator]
    sign = 1
    if isinstance(right, exp.Neg):
        sign, right = -1, right.this
    rank = rank and isinstance(left, exp.Column)
    if not (isinstance(left, exp.Count) or rank) or not isinstance(right, exp.Literal) or not right.this.isdigit():
        return None
    if rank:
        return operator, sign * int(right.this), 1
    least = 0
    if facts is not None and facts.scope.select.args.get("group"):  # a group has a row
        ref = facts.scope.ref(argument(left))
        least = int(isinstance(left.this, exp.Star) or (ref is not None and facts.never_null(ref)))
    return operator, sign * int(right.this), least


def _is_rank(node: exp.Expr) -> bool:
    """A column of a derived table or of a WITH that is a place in a window: 1, 2, 3..."""
    if not isinstance(node, exp.Column):
        return False
    select = node.find_ancestor(exp.Select)
    if select is None:
        return False
    joins = select.args.get("joins") or []
    sources = [part.this for part in (select.args.get("from_"), *joins) if part is not None]
    named = [source for source in sources if not node.table or source.alias_or_name.lower() == node.table.lower()]
    if len(named) != 1 or any(join.side for join in joins):
        return False
    (source,) = named
    inner: exp.Expr | None = source.this if isinstance(source, exp.Subquery) else None
    above: exp.Expr | None = select
    while inner is None and above is not None and isinstance(source, exp.Table):
        given = {cte.alias.lower(): cte.this for cte in above.ctes} if isinstance(above, exp.Query) else {}
        inner = given.get(source.name.lower())
        above = above.parent
    if not isinstance(inner, exp.Select):
        return False
    shown = [item for item in inner.selects if item.alias.lower() == node.name.lower()]
    window = shown[0].unalias() if len(shown) == 1 else None
    return isinstance(window, exp.Window) and isinstance(window.this, RANKS)


def extreme(facts: Facts | None, old: exp.Expr, new: exp.Expr) -> str | None:
    """``c = (SELECT max(c) FROM t)`` is ``c >= ...``, and likewise for min."""
    best = _own_extreme(facts, old)
    if best is not None and {type(old), type(new)} == {exp.EQ, exp.GTE if isinstance(best, exp.Max) else exp.LTE}:
        return "no value is beyond the extreme"
    return None


def empty_text_is_least(facts: Facts | None, node: exp.Expr) -> str | None:
    """``c = (SELECT max(COALESCE(c, '')) FROM t)``, for text: empty is the greatest only where nothing else is."""
    select = node.find_ancestor(exp.Select)
    test = select.parent.parent if select is not None and isinstance(select.parent, exp.Subquery) else None
    if facts is None or not isinstance(node, exp.Max) or not isinstance(test, exp.EQ):
        return None
    return "there is no greater text either way" if _own_extreme(facts, test) is node else None


def _own_extreme(facts: Facts | None, test: exp.Expr) -> exp.Expr | None:
    """The MAX or MIN in ``c = (SELECT max(c) FROM t)``, where it is over all rows that the condition can see."""
    if facts is None:
        return None
    ref, inner = facts.scope.ref(test.this), test.expression
    select = inner.this if isinstance(inner, exp.Subquery) else None
    if ref is None or not isinstance(select, exp.Select) or len(select.expressions) != 1:
        return None
    if any(select.args.get(key) for key in ("joins", "group", "having", "limit", "offset")):
        return None
    if select.args.get("where"):  # whatever restricts the subquery has to restrict the rows around it as well
        outer, beside = facts.scope.select, facts.others.get(id(select))
        held = _bare(facts, outer.args["where"].this) if outer.args.get("where") else set()
        if beside is None or len(facts.scope.sources) != 1 or not _bare(beside, select.args["where"].this) <= held:
            return None
    best, source = select.expressions[0].unalias(), select.args.get("from_")
    if not isinstance(best, (exp.Max, exp.Min)) or not isinstance(best.this, exp.Column) or source is None:
        return None
    table = facts.scope.table(ref)
    same = source.this.name.lower() == table.name.lower() and best.this.name.lower() == table.names[ref[1]].lower()
    return best if same else None


def _bare(facts: Facts, condition: exp.Expr) -> set[str]:
    """The conjuncts as text that does not rest on aliases."""
    return {_text_without_aliases(facts, part) for part in conjuncts(condition)}


def _text_without_aliases(facts: Facts, part: exp.Expr) -> str:
    """Equal for conditions that mean the same of their rows; a text of its own where that is not plain.

    Columns are named by how many SELECTs up they belong. Every SELECT inside has one table.
    """
    alone = f"{id(part)}"
    copy = part.copy()
    for old, new in zip(list(part.walk()), list(copy.walk()), strict=True):
        if isinstance(old, exp.Select) and len(old.args.get("joins") or ()):
            return alone
        if isinstance(old, exp.Table):
            new.set("alias", None)
        if isinstance(old, exp.Column):
            select = old.find_ancestor(exp.Select)
            own = facts.others.get(id(select))
            found = own.scope.find(old) if own else None
            if own is None or found is None:
                return alone
            level, scope = 0, own.scope
            while scope is not found[0] and scope.outer is not None:
                level, scope = level + 1, scope.outer
            while scope is not facts.scope and scope.outer is not None:
                scope = scope.outer
            if scope is not facts.scope:
                return alone  # of a SELECT further out
            new.set("table", exp.to_identifier(f"up{level}"))
    return copy.sql("sqlite").lower()


def zero_fails_too(node: exp.Expr) -> str | None:
    """``HAVING SUM(c) > n`` drops groups of NULLs, and would drop them if their sum were 0."""
    test = node.parent
    if isinstance(node, exp.Sum) and isinstance(test, exp.Coalesce) and test.this is node:
        zero = [other.sql() for other in test.expressions] == ["0"]
        return "a sum of NULLs alone is 0 either way" if zero else None
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


def argument(item: exp.Expr) -> exp.Expr | None:
    inner = item.this
    if isinstance(inner, exp.Distinct) and len(inner.expressions) == 1:
        return inner.expressions[0]
    return inner if isinstance(inner, exp.Expr) else None
