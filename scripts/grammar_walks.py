"""What a model that knows nothing but the golds' word pairs writes under the SELECT grammar, and what SQLite says.

    python scripts/grammar_walks.py packaged --walks 40
    python scripts/grammar_walks.py spider --databases 20 --walks 10 --show 3

Every token is drawn by how often it follows the one before in the benchmark's golds (in the style of the training data:
full table names, no aliases), among those that the grammar allows. So queries look like a small model's, but nothing
except the grammar ties their columns to their tables. Prints the share that SQLite can prepare, and the complaints.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
from training.sql_style import in_style

from nl2sql.agents.grammars.select import select_grammar
from nl2sql.benchmarks import load_benchmark
from nl2sql.errors import DatabaseError
from nl2sql.interfaces import Benchmark
from nl2sql.models.constrained import Constrainer
from nl2sql.models.embedded import pull

LONGEST = 200  # tokens; --constrain cuts at 256
RARE = 1e-3  # the weight of a token never seen behind the one before, for all of them together


def main() -> None:
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("--split")
    parser.add_argument("--databases", type=int, default=0, metavar="N", help="the first N; default: all")
    parser.add_argument("--walks", type=int, default=20, metavar="N", help="queries for every database")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0, metavar="N", help="N queries of every complaint")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(pull("smollm2-135m"))
    split = "all" if options.benchmark == "packaged" and options.split is None else options.split
    benchmark = load_benchmark(options.benchmark, split=split)
    found, complaints = walks(benchmark, tokenizer, options)
    if options.json:
        print(json.dumps({"benchmark": options.benchmark, **found}))
        return
    print(", ".join(f"{name} {value}" for name, value in found.items()))
    for kind, examples in sorted(complaints.items(), key=lambda item: -len(item[1])):
        print(f"  {len(examples):4d}  {kind}")
        for example in examples[: options.show]:
            print(f"        {example}")


def walks(benchmark: Benchmark, tokenizer: Any, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Counts and times; complaints by kind, each with its database and query."""
    constrainer = Constrainer(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    complaints: dict[str, list[str]] = defaultdict(list)
    seconds: list[float] = []
    count = prepared = 0
    db_ids = list(dict.fromkeys(question.db_id for question in benchmark.questions))
    for db_id in db_ids[: options.databases or None]:
        try:
            database = benchmark.database(db_id)
            schema = database.schema()
        except DatabaseError:  # a benchmark may lack a file
            continue
        follows = _followers(benchmark, db_id, tokenizer)
        chosen = random.Random(f"{options.seed} {db_id}")
        for _ in range(options.walks):
            sql = _walk(constrainer, schema, follows, tokenizer, chosen, seconds)
            count += 1
            result = None if sql is None else database.explain(sql)
            if result is not None and result.success:
                prepared += 1
            else:
                kind = "no end" if result is None else result.error_kind or "other"
                complaints[kind].append(f"{db_id}: {sql} -- {result.error if result else ''}")
    found = {"walks": count, "prepared": f"{prepared / max(1, count):.1%}", "mask_us": _spread(seconds)}
    return found, complaints


def _spread(seconds: list[float]) -> dict[str, int]:
    shares = {"median": 50, "p90": 90, "p99": 99}
    return {name: round(1e6 * float(np.percentile(seconds, share))) for name, share in shares.items()}


def _followers(benchmark: Benchmark, db_id: str, tokenizer: Any) -> dict[int, Counter[int]]:
    """How often a token follows another in the golds over a database; the end is the end-of-turn token."""
    schema = benchmark.database(db_id).schema()
    follows: dict[int, Counter[int]] = defaultdict(Counter)
    for question in benchmark.questions:
        if question.db_id == db_id:
            for gold in question.gold:
                sql = (in_style(gold, schema) or gold).removeprefix("SELECT")
                ids = [-1, *tokenizer(sql, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
                for before, after in pairwise(ids):
                    follows[before][after] += 1
    return follows


def _walk(
    constrainer: Constrainer,
    schema: Any,
    follows: dict[int, Counter[int]],
    tokenizer: Any,
    chosen: random.Random,
    seconds: list[float],
) -> str | None:
    """A query, or None when it does not end; the seconds of its masks are added to ``seconds``."""
    state, before = constrainer.start(select_grammar(schema)), -1
    ids: list[int] = []
    while len(ids) < LONGEST:
        began = time.thread_time()
        allowed = ~state._forbidden()
        seconds.append(time.thread_time() - began)
        weights = allowed * (RARE / max(1, int(allowed.sum())))
        for token, seen in follows[before].items():
            weights[token] += seen * allowed[token]
        sums = np.cumsum(weights)
        before = int(np.searchsorted(sums, chosen.random() * sums[-1], side="right"))
        if before == tokenizer.eos_token_id:
            return "SELECT" + str(tokenizer.decode(ids))
        state.consume(before)
        ids.append(before)
    return None


if __name__ == "__main__":
    main()
