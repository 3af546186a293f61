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

from sqlglot import parse_one
from sqlglot.errors import SqlglotError
from wrong_golds import MUTATIONS, cut, mutated

from nl2sql.benchmarks import load_benchmark, scorable
from nl2sql.databases.sqlite.pool import QueryPool
from nl2sql.eval import gold_order, results_match
from nl2sql.eval.causes import CAUSES, cause_of


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
