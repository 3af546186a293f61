"""Training data for an adapter, from a benchmark's training questions.

    NL2SQL_BENCHMARKS=... python scripts/build_training_data.py --benchmark spider --split train --out training/spider

Writes ``groups.jsonl`` (a line per group of examples that share their schema text) and ``card.json`` (what it was made
of). ``--check NAME[:SPLIT]`` refuses to write what another benchmark is evaluated on; give it as often as needed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path

from training.leaks import asked_keys, leaks
from training.mixture import Shares, mixture

from nl2sql.benchmarks import load_benchmark, scorable
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.runs.run import Run


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--benchmark", default="packaged", help="packaged, a name in NL2SQL_BENCHMARKS, or a folder")
    parser.add_argument("--split", default="train")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="so many questions, the first ones of each database in turn")
    parser.add_argument("--rounds", type=int, default=Shares.rounds, help="passes over the questions, each worded anew")
    parser.add_argument("--write", type=float, default=Shares.write, help="share of the questions to be answered")
    parser.add_argument("--question", type=float, default=Shares.question, help="share of the answers to be read back")
    parser.add_argument("--repair", type=float, default=Shares.repair, help="repair examples per question and round")
    parser.add_argument("--act", type=int, default=Shares.act, help="transcripts of the loop")
    parser.add_argument("--plus", type=float, default=Shares.plus, help="share of the transcripts under react_plus")
    parser.add_argument("--draft", type=float, default=Shares.draft, help="share also asked beside an earlier query")
    parser.add_argument("--values", type=float, default=Shares.values, help="share of examples that show cell values")
    parser.add_argument("--paraphrase", type=float, default=Shares.paraphrase, help="chance of the other wording")
    parser.add_argument("--swap", type=float, default=Shares.swap, help="chance of another column or value")
    parser.add_argument("--vary", type=float, default=Shares.vary, help="share of schemas written in another way")
    parser.add_argument("--guided", type=float, default=Shares.guided, help="share of repairs that show guidance")
    parser.add_argument("--failures", type=Path, metavar="RUN", help="a run on the same questions: its own mistakes")
    parser.add_argument("--check", action="append", default=[], metavar="NAME[:SPLIT]", help="an evaluation set")
    options = parser.parse_args()
    try:
        return build(options)
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; {options.out}/groups.jsonl is as it was before", file=sys.stderr)
        return 130


def build(options: argparse.Namespace) -> int:
    if options.out.is_file():
        raise UsageError(f"--out {options.out} is a file; expected a folder")
    benchmark = load_benchmark(options.benchmark, split=options.split)
    questions = list(benchmark.questions)
    if options.limit:
        from nl2sql.benchmarks import draw_sample

        questions = draw_sample(questions, options.limit, options.seed)
    given = len(questions)
    checked = []
    for name in options.check:
        other, _, split = name.partition(":")
        loaded = load_benchmark(other, split=split or None)
        checked.append((name, loaded, [q for q in loaded.questions if scorable(q)]))
    found = leaks((benchmark, questions), checked)
    if found:
        for leak in found[:20]:
            print(f"leak ({leak.kind}): {leak.trained} is in {leak.evaluated}", file=sys.stderr)
        dropped = {leak.trained for leak in found}
        questions = [q for q in questions if q.id not in dropped and q.db_id not in dropped]
        print(f"{len(found)} leaks; what they concern is left out ({len(questions)} questions stay)", file=sys.stderr)
    if not questions:
        raise UsageError(f"nothing is left of {options.benchmark}:{options.split} to learn from")
    own = [field.name for field in fields(Shares) if hasattr(options, field.name)]
    shares = Shares(**{name: getattr(options, name) for name in own})
    failures = (
        {row["id"]: str(row["sql"] or "") for row in Run.load(options.failures).predictions()}
        if options.failures
        else {}
    )
    ids = {question.id for question in questions}
    if options.failures and not ids & set(failures):
        raise UsageError(f"--failures {options.failures} holds no answer to these questions: run them first")
    forbidden = {key for _, _, theirs in checked for question in theirs for key in asked_keys(question)}
    options.out.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    taught: set[str] = set()
    held_out: set[str] = set()
    unfinished = options.out / "groups.jsonl.part"  # an interrupted build must not look like training data
    with unfinished.open("w", encoding="utf-8") as file:
        for group in mixture(benchmark, questions, shares, options.seed, True, failures, forbidden):
            counts.update(f"{group.part} {example.task}" for example in group.examples)
            held_out.update(example.db_id for example in group.examples if group.part == "held_out")
            taught.update(example.id for example in group.examples if example.id in ids)
            shown = {"part": group.part, "round": group.round, "examples": [e.to_dict() for e in group.examples]}
            file.write(json.dumps(shown, ensure_ascii=False) + "\n")
    card = {
        "benchmark": options.benchmark,
        "split": options.split,
        "seed": options.seed,
        "questions": {
            "given": given,
            "leaking": given - len(questions),
            "in_examples": len(taught),
            # no rows, flagged by the benchmark, a gold that joins without a condition or cannot be parsed
            "not_usable": len(questions) - len(taught),
        },
        "shares": asdict(shares),
        "examples": dict(sorted(counts.items())),
        "answers_searched_for_failures": len(ids & set(failures)),
        "held_out_databases": sorted(held_out),
        "checked": options.check,
        "leaks_left_out": len(found),
    }
    unfinished.replace(options.out / "groups.jsonl")
    (options.out / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(card, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
