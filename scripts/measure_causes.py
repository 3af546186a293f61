"""How often is the cause of a wrong answer named right? Golds of a benchmark are made wrong in one known way each.

    NL2SQL_BENCHMARKS=FOLDER python scripts/measure_causes.py --benchmark spider --split train --golds 600 [--json]

Every mutant whose result differs from the gold's counts. One that returns no rows where the gold has some is an
``empty_result`` by definition, whatever was done to it, and is listed apart. ``--pairs`` makes two mutations at a time
and counts how often one of the two is named. The mutations know nothing of the rules they measure.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from nl2sql.benchmarks import load_benchmark, scorable
from nl2sql.eval import gold_order, results_match
from nl2sql.eval.causes import CAUSES, cause_of
from nl2sql.query_runner import QueryPool
from nl2sql.schema import Schema, Table

Tree = exp.Expr
Mutation = Callable[[Tree, Schema, random.Random], Iterator[None]]  # changes the tree in place; one change per yield


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


MUTATIONS: dict[str, list[Callable[..., bool | Tree]]] = {
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


def mutated(tree: Tree, mutate: Callable[..., bool | Tree], schema: Schema, rng: random.Random) -> Tree | None:
    copy = tree.copy()
    try:
        done = mutate(copy, schema, rng)
    except (AttributeError, ValueError, KeyError, IndexError):  # a form that this mutation does not know
        return None
    return (done if isinstance(done, exp.Expr) else copy) if done else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", default="spider")
    parser.add_argument("--split")
    parser.add_argument("--golds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=["odd", "even"], help="every second database only")
    parser.add_argument("--pairs", action="store_true", help="two mutations at a time")
    parser.add_argument("--no-schema", action="store_true")
    parser.add_argument("--show", type=int, default=0, help="print so many wrongly named mutants per kind")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    benchmark = load_benchmark(args.benchmark, split=args.split)
    questions = [q for q in benchmark.questions if scorable(q)]
    databases = sorted({q.db_id for q in questions})
    if args.part:
        kept = set(databases[args.part == "odd" :: 2])
        questions = [q for q in questions if q.db_id in kept]
    questions = sorted(rng.sample(questions, min(args.golds, len(questions))), key=lambda q: q.db_id)
    kinds = [(cause, mutate) for cause, mutations in MUTATIONS.items() for mutate in mutations]
    named: dict[str, Counter[str]] = defaultdict(Counter)
    by_mutation: dict[str, Counter[bool]] = defaultdict(Counter)
    empty: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    pairs: Counter[str] = Counter()
    with QueryPool(1) as pool:
        for question in questions:
            database = benchmark.database(question.db_id)
            path, schema = database.path, database.schema()
            try:
                tree = parse_one(question.gold[0], read="sqlite")
            except SqlglotError:
                continue
            gold = pool.run(path, question.gold[0], timeout_s=5, max_rows=20_000)
            if not gold.success or gold.truncated:
                continue
            variants: list[tuple[tuple[str, ...], str, str]] = []
            for cause, mutate in kinds:
                made = mutated(tree, mutate, schema, rng)
                if made is None:
                    continue
                expected = (cause,)
                if args.pairs:
                    other_cause, other = rng.choice([k for k in kinds if k[0] != cause and "invalid" not in k[0]])
                    made = mutated(made, other, schema, rng)
                    if made is None or "invalid" in cause:
                        continue
                    expected = (cause, other_cause)
                variants.append((expected, mutate.__name__, made.sql(dialect="sqlite")))
            if not args.pairs and rng.random() < 0.2:
                variants.append((("invalid:syntax",), "cut", cut(question.gold[0], rng)))
            for expected, name, sql in variants:
                predicted = pool.run(path, sql, timeout_s=5, max_rows=20_000)
                invalid = expected[0].startswith("invalid")
                if predicted.truncated or predicted.success == invalid:
                    continue
                if not invalid and results_match(gold, predicted, **gold_order(question.gold[0], gold)):
                    continue
                found = cause_of(question, sql, gold, predicted, question.gold[0], None if args.no_schema else schema)
                if found == "empty_result":
                    empty[expected[0]] += 1
                    continue
                if args.pairs:
                    pairs["one of the two" if found in expected else str(found)] += 1
                    continue
                named[expected[0]][str(found)] += 1
                by_mutation[name][found == expected[0]] += 1
                if found != expected[0] and shown[name] < args.show:
                    shown[name] += 1
                    print(f"{name}: {found}\n  {question.db_id}: {question.gold[0]}\n  {sql}")
    if args.json:
        print(json.dumps({"named": named, "empty": empty, "pairs": pairs}))
        return
    if args.pairs:
        print(dict(pairs), f"{pairs['one of the two'] / max(1, sum(pairs.values())):.1%}")
        return
    columns = [cause for cause in CAUSES if any(row[cause] for row in named.values())]
    print(f"{len(questions)} golds, {sum(sum(row.values()) for row in named.values())} wrong mutants")
    print(f"{'made':24}{'n':>6}{'right':>8}{'empty':>7}  named")
    for cause in MUTATIONS | {"invalid:syntax": []}:
        row = named[cause]
        total = sum(row.values())
        listed = ", ".join(f"{column} {row[column]}" for column in columns if row[column])
        print(f"{cause:24}{total:>6}{row[cause] / max(1, total):>8.1%}{empty[cause]:>7}  {listed}")
    for name, counts in sorted(by_mutation.items(), key=lambda item: item[1][True] / sum(item[1].values())):
        print(f"  {name:24}{sum(counts.values()):>6}{counts[True] / sum(counts.values()):>8.1%}")


if __name__ == "__main__":
    main()
