"""Make data/vizql.json: structured queries for the packaged questions, each with the rows of the SQL gold.

    python scripts/derive_vizql.py               write the file, and print counts and left-outs by reason
    python scripts/derive_vizql.py --check       exit 1 unless the committed file is what would be written
    python scripts/derive_vizql.py --left-out    every question without a structured query, and why

Each SQL gold is read, written as a structured query over the data source that ``vizql.infer`` gives for its database,
validated, compiled and executed. It is kept where its rows are those of the SQL, by the rule ``bag``, on the packaged
database and on its perturbed replicas. No model.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from vizql_golds.proof import LeftOut, Prover

from nl2sql.benchmarks.packaged import load_packaged
from nl2sql.interfaces import Question

FILE = Path(__file__).resolve().parents[1] / "data" / "vizql.json"


def derived(db_ids: Sequence[str] = ()) -> tuple[list[dict[str, Any]], list[tuple[Question, str]]]:
    """The records of the file, and the questions that are left out with their reasons, of these databases or all."""
    benchmark = load_packaged()
    provers: dict[str, Prover] = {}
    records: list[dict[str, Any]] = []
    left_out: list[tuple[Question, str]] = []
    for question in benchmark.questions:
        if db_ids and question.db_id not in db_ids:
            continue
        if question.db_id not in provers:
            provers[question.db_id] = Prover(benchmark.database(question.db_id))
        try:
            query = provers[question.db_id].prove(question.gold[0])
        except LeftOut as reason:
            left_out.append((question, str(reason)))
        else:
            records.append({"id": question.id, "split": question.split, "query": query})
    return records, left_out


def to_text(records: Sequence[dict[str, Any]]) -> str:
    """The file: a JSON list, one object per line."""
    return "[\n" + ",\n".join(json.dumps(record, ensure_ascii=False) for record in records) + "\n]\n"


def counts(records: Sequence[dict[str, Any]], left_out: Sequence[tuple[Question, str]]) -> str:
    """How many questions have a query, by split, and why the others have none."""
    splits = Counter(record["split"] for record in records)
    shown = ", ".join(f"{count} {split}" for split, count in splits.items())
    lines = [f"{len(records)} of {len(records) + len(left_out)} questions have a structured query: {shown}", ""]
    reasons = Counter(reason for _, reason in left_out)
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return "\n".join([*lines, "| left out for | questions |", "|---|--:|", *(f"| {r} | {n} |" for r, n in ranked)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    parser.add_argument("--left-out", action="store_true", help="name the questions that are left out, write nothing")
    arguments = parser.parse_args()
    records, left_out = derived()
    text = to_text(records)
    if arguments.check:
        same = FILE.exists() and FILE.read_bytes() == text.encode()
        print("data/vizql.json is what would be written" if same else "differs: data/vizql.json")
        return 0 if same else 1
    if arguments.left_out:
        print("\n".join(f"{question.id}: {reason}" for question, reason in left_out))
        return 0
    FILE.write_text(text, encoding="utf-8", newline="\n")
    print(counts(records, left_out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
