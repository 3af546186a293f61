"""How often follow-up questions are recognised, and stand-alone ones left alone.

    python scripts/session_detection.py --benchmark spider --split train --cases 2000
    python scripts/session_detection.py --benchmark packaged-dialogues --split dev

A benchmark of single questions: each case is a question behind up to three random earlier ones of its database, with
their golds; counted is how many reach the controller byte for byte. A benchmark of dialogues: precision and recall over
all turns but the first, by dialogue; what a turn is says its ``kind``. Exits with 1 where the bounds are missed (99.0%;
precision 0.97 and recall 0.9). ``--edits`` also applies the edits of each short follow-up to the earlier golds and
counts those that give the gold's rows (EX[bag]). ``--misses`` prints what went wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from tqdm.auto import tqdm

from nl2sql.benchmarks import load_benchmark, scorable
from nl2sql.errors import Nl2SqlError
from nl2sql.eval.rules import gold_order, results_match
from nl2sql.eval.stats import clustered_interval, percent
from nl2sql.interfaces import Benchmark, Database, Question, Turn
from nl2sql.sessions.detection import evidence_of
from nl2sql.sessions.edits import edited
from nl2sql.sessions.resolution import MOST_WORDS, turn_meant
from nl2sql.sql.words import words

UNCHANGED, PRECISION, RECALL = 0.99, 0.97, 0.9
NO_EDIT = "(none)"
STANDS_ALONE = ("first", "topic_change", "stand_alone_with_cue", "independent")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", default="packaged-dialogues")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--cases", type=int, default=2000, help="of a benchmark of single questions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--edits", action="store_true")
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        benchmark = load_benchmark(options.benchmark, split=options.split)
        dialogues = any(question.history for question in benchmark.questions)
        report = of_dialogues(benchmark, options) if dialogues else of_single(benchmark, options)
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    misses = report.pop("misses")
    print(json.dumps(report, indent=1) if options.json else "\n".join(f"{k}: {v}" for k, v in report.items()))
    if options.misses:
        print(*misses, sep="\n")
    return 0 if report["reached"] else 1


def of_single(benchmark: Benchmark, options: argparse.Namespace) -> dict[str, Any]:
    """Stand-alone questions, each behind up to three others of its database."""
    draw = random.Random(options.seed)
    by_database = defaultdict(list)
    known = [question for question in benchmark.questions if scorable(question) and question.gold]
    for question in known:
        by_database[question.db_id].append(question)
    cases = draw.sample(known, min(options.cases, len(known)))
    misses = []
    for question in tqdm(cases, disable=None):
        others = [other for other in by_database[question.db_id] if other.id != question.id]
        earlier = draw.sample(others, min(len(others), draw.randint(1, 3)))
        history = tuple(Turn(other.text, sql=other.gold[0]) for other in earlier)
        if signs := evidence_of(question.text, history, benchmark.database(question.db_id)):
            misses.append(f"{question.text} {[sign.to_dict() for sign in signs]}")
    kept = [True] * (len(cases) - len(misses)) + [False] * len(misses)
    share = sum(kept) / max(1, len(kept))
    return {"cases": len(cases), "unchanged": round(share, 4), "reached": share >= UNCHANGED, "misses": misses}


def of_dialogues(benchmark: Benchmark, options: argparse.Namespace) -> dict[str, Any]:
    """Later turns of dialogues behind their gold history."""
    later = [question for question in benchmark.questions if question.history]
    misses, hits = [], []
    correct: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for question in tqdm(later, disable=None):
        database, kind = benchmark.database(question.db_id), str(question.meta["kind"])
        signs = evidence_of(question.text, question.history, database)
        follows = kind not in STANDS_ALONE
        hits.append((follows, bool(signs), question.meta["interaction_id"]))
        if follows != bool(signs):
            misses.append(f"{kind}: {question.text} {[sign.to_dict() for sign in signs]}")
        if options.edits and signs and len(words(question.text)) <= MOST_WORDS:
            made = edit_is_right(question, database)
            total[kind] += made != NO_EDIT
            correct[kind] += made is None
            misses += [] if made is None else [f"{kind}: {question.text}\n    gold {question.gold[0]}\n    edit {made}"]
    precision = share_of([(h[0], h[2]) for h in hits if h[1]])
    recall = share_of([(h[1], h[2]) for h in hits if h[0]])
    by_kind: dict[str, list[bool]] = defaultdict(list)
    for question, hit in zip(later, hits, strict=True):
        by_kind[str(question.meta["kind"])].append(hit[0] == hit[1])
    told = {f"  told {kind}": f"{sum(those)} of {len(those)}" for kind, those in sorted(by_kind.items())}
    report = {"later turns": len(later), "precision": precision[1], "recall": recall[1], **told}
    if options.edits:
        report["edits right"] = f"{sum(correct.values())} of {sum(total.values())}"
        report |= {f"  {kind}": f"{correct[kind]} of {count}" for kind, count in sorted(total.items())}
    return {**report, "reached": precision[0] >= PRECISION and recall[0] >= RECALL, "misses": misses}


def share_of(hits: Sequence[tuple[bool, object]]) -> tuple[float, str]:
    """A share, and the same as text with its interval, clustered by dialogue."""
    values = [hit for hit, _ in hits]
    interval = clustered_interval(values, [cluster for _, cluster in hits])
    return sum(values) / max(1, len(values)), f"{percent(interval.to_dict())} (n={len(values)})"


def edit_is_right(question: Question, database: Database) -> str | None:
    """None where the likeliest edit of the earlier gold gives the rows of a gold; else the edit."""
    signs = evidence_of(question.text, question.history, database)
    turn, back = turn_meant(question.text, question.history, signs)
    edits = edited(question.text, turn, database, reaching_back=back)
    if not edits:
        return NO_EDIT
    made = database.run(edits[0][0])
    wanted = [(gold, database.run(gold)) for gold in question.gold]
    same = any(results_match(rows, made, **gold_order(gold, rows)) for gold, rows in wanted)
    return None if same else edits[0][0]


if __name__ == "__main__":
    sys.exit(main())
