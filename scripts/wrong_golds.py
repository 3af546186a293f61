"""Ways to make a query wrong, by the cause that the wrong answer should be put down to (see ``measure_causes.py``).

A mutation changes a copy of the tree in place and says whether it found something to change, or returns another tree.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from sqlglot import exp

from nl2sql.databases.schema import Schema, Table

Tree = exp.Expr
Mutation = Callable[[Tree, Schema, random.Random], bool | Tree]


def sources(select: exp.Select, schema: Schema) -> dict[str, Table]:
    nodes = [select.args["from_"].this] if select.args.get("from_") else []
    nodes += [join.this for join in select.args.get("joins") or ()]
    found = {}
    for node in nodes:
        table = schema.table(node.name) if isinstance(node, exp.Table) else None
        if table is not None:
            found[(node.alias or node.name).lower()] = table
    return found


def table_of(column: exp.Column, schema: Schema) -> Table | None:
    select = column.find_ancestor(exp.Select)
    scope = sources(select, schema) if select is not None else {}
    if column.table:
        return scope.get(column.table.lower())
    return next(iter(scope.values())) if len(scope) == 1 else None


def rename(column: exp.Column, schema: Schema, rng: random.Random) -> bool:
    table = table_of(column, schema)
    others = [c.name for c in table.columns if c.name.lower() != column.name.lower()] if table else []
    if not others:
        return False
    column.set("this", exp.to_identifier(rng.choice(others), quoted=True))
    return True


def top(tree: Tree) -> exp.Select | None:
    while isinstance(tree, (exp.SetOperation, exp.Subquery)):
        tree = tree.this
    return tree if isinstance(tree, exp.Select) else None


def projected_column(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    select = top(tree)
    columns = [c for item in select.expressions for c in item.find_all(exp.Column)] if select else []
    columns = [column for column in columns if column.find_ancestor(exp.Select) is select]
    return bool(columns) and rename(rng.choice(columns), schema, rng)


def extra_column(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    select = top(tree)
    if select is None or isinstance(tree, exp.SetOperation) or select.args.get("distinct"):
        return False
    name, table = rng.choice(list(sources(select, schema).items()) or [("", None)])
    if table is None:
        return False
    column = exp.column(rng.choice(table.columns).name, table=name, quoted=True)
    select.append("expressions", column)
    return True


def missing_column(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    select = top(tree)
    if select is None or isinstance(tree, exp.SetOperation) or len(select.expressions) < 2:
        return False
    kept = list(select.expressions)
    kept.pop(rng.randrange(len(kept)))
    select.set("expressions", kept)
    return True


def constants(tree: Tree) -> list[exp.Literal]:
    return [
        node
        for node in tree.find_all(exp.Literal)
        if node.find_ancestor(exp.Where, exp.Having, exp.Limit, exp.Select) is not None
        and isinstance(node.find_ancestor(exp.Where, exp.Having, exp.Limit, exp.Select), (exp.Where, exp.Having))
    ]


def constant(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    found = constants(tree)
    if not found:
        return False
    node = rng.choice(found)
    if node.is_string:
        node.replace(
            exp.Literal.string(rng.choice([node.this[:-1], node.this + "a", node.this.swapcase(), "a", "%a%"]))
        )
    else:
        node.replace(exp.Literal.number(int(float(node.this)) + rng.choice([-2, -1, 1, 2, 10])))
    return True


def conditions(tree: Tree) -> list[Tree]:
    kinds = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
    return [n for n in tree.find_all(*kinds) if isinstance(n.expression, exp.Literal) and not n.find_ancestor(exp.Join)]


def operator(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    found = conditions(tree)
    if not found:
        return False
    node = rng.choice(found)
    kinds = [k for k in (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE) if k is not type(node)]
    node.replace(rng.choice(kinds)(this=node.this.copy(), expression=node.expression.copy()))
    return True


def filter_column(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    found = [n.this for n in conditions(tree) if isinstance(n.this, exp.Column) and n.find_ancestor(exp.Where)]
    return bool(found) and rename(rng.choice(found), schema, rng)


def dropped_where(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    joined = any(isinstance(n, exp.EQ) and isinstance(n.expression, exp.Column) for n in tree.find_all(exp.EQ))
    selects = [s for s in tree.find_all(exp.Select) if s.args.get("where")]
    selects = [s for s in selects if not s.args["where"].find(exp.Select) and (not joined or s.args.get("joins"))]
    if not selects:
        return False
    rng.choice(selects).set("where", None)
    return True


def dropped_condition(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    found = [n for n in tree.find_all(exp.And, exp.Or) if n.find_ancestor(exp.Where) and not n.find(exp.Select)]
    if not found:
        return False
    node = rng.choice(found)
    node.replace(rng.choice([node.this, node.expression]).copy())
    return True


def and_for_or(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    found = [n for n in tree.find_all(exp.And, exp.Or) if n.find_ancestor(exp.Where) and not n.find(exp.Select)]
    if not found:
        return False
    node = rng.choice(found)
    kind = exp.Or if isinstance(node, exp.And) else exp.And
    node.replace(kind(this=node.this.copy(), expression=node.expression.copy()))
    return True


def join_column(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    found = [c for join in tree.find_all(exp.Join) if join.args.get("on") for c in join.args["on"].find_all(exp.Column)]
    return bool(found) and rename(rng.choice(found), schema, rng)


def left_join(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    found = [join for join in tree.find_all(exp.Join) if join.args.get("on") and not join.side]
    if not found:
        return False
    rng.choice(found).set("side", "LEFT")
    return True


def joined_with_another(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    """One table more, joined over a foreign key."""
    select = top(tree)
    scope = sources(select, schema) if select else {}
    choices = []
    for name, table in scope.items():
        for key in table.foreign_keys:
            choices.append((name, key.columns[0], key.ref_table, key.ref_columns[0]))
        for other in schema.tables:
            for key in other.foreign_keys:
                if key.ref_table.lower() == table.name.lower():
                    choices.append((name, key.ref_columns[0], other.name, key.columns[0]))
    used = {table.name.lower() for table in scope.values()}
    choices = [choice for choice in choices if choice[2].lower() not in used]
    if not choices or select is None:
        return False
    name, column, other, other_column = rng.choice(choices)
    on = exp.EQ(
        this=exp.column(column, table=name, quoted=True),
        expression=exp.column(other_column, table="extra", quoted=True),
    )
    for node in select.find_all(exp.Column):  # stays clear of names that the new table has as well
        if not node.table and len(scope) == 1 and node.find_ancestor(exp.Select) is select:
            node.set("table", exp.to_identifier(name))
    select.append("joins", exp.Join(this=exp.to_table(other).as_("extra"), on=on))
    return True


def other_table(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    """Another table that has all the columns that are used of the one it stands for."""
    choices = []
    for node in tree.find_all(exp.Table):
        table = schema.table(node.name)
        if table is None:
            continue
        name = (node.alias or node.name).lower()
        select = node.find_ancestor(exp.Select)
        used = {
            c.name.lower()
            for c in (select.find_all(exp.Column) if select else ())
            if c.table.lower() == name or (not c.table and len(sources(select, schema)) == 1)
        }
        for other in schema.tables:
            if other is not table and used <= {c.name.lower() for c in other.columns}:
                choices.append((node, name, other.name))
    if not choices:
        return False
    node, name, other = rng.choice(choices)
    node.replace(exp.to_table(other).as_(name))
    return True


def aggregate(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    found = [n for n in tree.find_all(exp.AggFunc) if not n.find_ancestor(exp.Order) and not n.this.find(exp.Distinct)]
    found = [n for n in found if isinstance(n.this, exp.Column) and not n.this.is_star]
    if not found:
        return False
    node = rng.choice(found)
    kinds = [k for k in (exp.Max, exp.Min, exp.Avg, exp.Sum, exp.Count) if k is not type(node)]
    node.replace(rng.choice(kinds)(this=node.this.copy()))
    return True


def dropped_group(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    found = [s for s in tree.find_all(exp.Select) if s.args.get("group")]
    if not found:
        return False
    select = rng.choice(found)
    if not (select.args.get("having") or any(item.find(exp.AggFunc) for item in select.expressions)):
        return False  # it only removes duplicates there
    select.set("group", None)
    return True


def group_key(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    found = [s for s in tree.find_all(exp.Select) if s.args.get("group")]
    columns = [c for s in found for c in s.args["group"].find_all(exp.Column)]
    return bool(columns) and rename(rng.choice(columns), schema, rng)


def dropped_having(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    found = [s for s in tree.find_all(exp.Select) if s.args.get("having")]
    if not found:
        return False
    rng.choice(found).set("having", None)
    return True


def no_aggregate(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    select = top(tree)
    found = [n for item in (select.expressions if select else ()) for n in item.find_all(exp.AggFunc)]
    found = [n for n in found if isinstance(n.this, exp.Column) and not n.this.is_star]
    if not found:
        return False
    node = rng.choice(found)
    node.replace(node.this.copy())
    return True


def dropped_order(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    if not tree.args.get("order"):
        return False
    tree.set("order", None)
    return True


def direction(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    order = tree.args.get("order")
    if not order:
        return False
    key = rng.choice(order.expressions)
    key.set("desc", not key.args.get("desc"))
    key.set("nulls_first", not key.args.get("desc"))
    return True


def order_key(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    order = tree.args.get("order")
    columns = list(order.find_all(exp.Column)) if order else []
    return bool(columns) and rename(rng.choice(columns), schema, rng)


def dropped_limit(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    if not tree.args.get("limit"):
        return False
    tree.set("limit", None)
    return True


def limit(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    found = tree.args.get("limit")
    if found:
        found.set("expression", exp.Literal.number(int(found.expression.this) + 1))
    elif isinstance(tree, exp.Query):
        tree.set("limit", exp.Limit(expression=exp.Literal.number(rng.choice([1, 2, 3]))))
    return True


def distinct(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    select = top(tree)
    if select is None:
        return False
    select.set("distinct", None if select.args.get("distinct") else exp.Distinct())
    return True


def distinct_aggregate(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    found = [n for n in tree.find_all(exp.Count, exp.Sum, exp.Avg) if not n.find_ancestor(exp.Order)]
    found = [n for n in found if isinstance(n.this, (exp.Column, exp.Distinct)) and not n.this.is_star]
    if not found:
        return False
    node = rng.choice(found)
    inner = node.this
    if isinstance(inner, exp.Distinct):
        node.set("this", inner.expressions[0])
    else:
        node.set("this", exp.Distinct(expressions=[inner.copy()]))
    return True


def union_all(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    if not isinstance(tree, exp.Union):
        return False
    tree.set("distinct", not tree.args.get("distinct"))
    return True


def set_operation(tree: Tree, schema: Schema, rng: random.Random) -> Tree | bool:
    if not isinstance(tree, exp.SetOperation):
        return False
    kinds = [k for k in (exp.Union, exp.Intersect, exp.Except) if not isinstance(tree, k)]
    return rng.choice(kinds)(**{k: v for k, v in tree.args.items() if k in ("this", "expression", "distinct")})


def misspelt_table(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    node = rng.choice(list(tree.find_all(exp.Table)) or [None])
    if node is None:
        return False
    node.set("this", exp.to_identifier(node.name + "_x"))
    return True


def misspelt_column(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    columns = [c for c in tree.find_all(exp.Column) if not c.is_star and not c.this.args.get("quoted")]
    if not columns:
        return False
    node = rng.choice(columns)
    node.set("this", exp.to_identifier(node.name + "_x"))
    return True


def unprefixed(tree: Tree, schema: Schema, rng: random.Random) -> bool:
    columns = [c for c in tree.find_all(exp.Column) if c.table]
    shared = []
    for column in columns:
        select = column.find_ancestor(exp.Select)
        scope = sources(select, schema) if select else {}
        owners = [t for t in scope.values() if any(c.name.lower() == column.name.lower() for c in t.columns)]
        if len(owners) > 1:
            shared.append(column)
    if not shared:
        return False
    rng.choice(shared).set("table", None)
    return True


def cut(sql: str, rng: random.Random) -> str:
    return sql.rstrip("; )") + " WHERE ("


MUTATIONS: dict[str, list[Mutation]] = {
    "projection": [projected_column, extra_column, missing_column],
    "filter_value": [constant, operator, filter_column, dropped_where, dropped_condition, and_for_or],
    "join_path": [join_column, left_join, joined_with_another, other_table],
    "grouping_aggregate": [aggregate, no_aggregate, dropped_group, group_key, dropped_having],
    "order_limit": [dropped_order, direction, order_key, dropped_limit, limit],
    "duplicates": [distinct, distinct_aggregate, union_all],
    "other": [set_operation],
    "invalid:unknown_table": [misspelt_table],
    "invalid:unknown_column": [misspelt_column],
    "invalid:ambiguous": [unprefixed],
}


def mutated(tree: Tree, mutate: Mutation, schema: Schema, rng: random.Random) -> Tree | None:
    copy = tree.copy()
    try:
        done = mutate(copy, schema, rng)
    except (AttributeError, ValueError, KeyError, IndexError):  # a form that this mutation does not know
        return None
    return (done if isinstance(done, exp.Expr) else copy) if done else None
