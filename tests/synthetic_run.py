"""Run folders written as a run of any size would leave them, without running one: for the size of reports."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nl2sql import __version__
from nl2sql.config import Config
from nl2sql.runs.folder import FORMAT
from nl2sql.runs.plan import RunSpec

WORDS = (Path(__file__).resolve().parents[1] / "data" / "questions.json").read_text(encoding="utf-8").split()
CAUSES = ("join_path", "filter_value", "projection", "invalid:unknown_column", "grouping_aggregate")
HOSTILE = "<script>alert(1)</script>"


def write_run(folder: Path, n: int, *, question: str | None = None, seed: int = 0) -> Path:
    """A finished run of ``n`` episodes of eight steps, with a control; ``question`` is the text of the first."""
    rng = random.Random(seed)
    folder.mkdir(parents=True)
    ids = [f"q{number:05}" for number in range(n)]
    plan = asdict(RunSpec(benchmark="synthetic", objects=("benchmark",)))
    (folder / "manifest.json").write_text(
        json.dumps(
            {
                "format": FORMAT,
                "key": "k",
                "plan": plan,
                "config": Config().model_dump(),
                "controller": {"name": "react"},
                "model": {"name": "synthetic"},
                "questions": ids,
                "fingerprints": {},
                "environment": {"nl2sql": __version__},
            }
        )
    )
    items: list[dict[str, Any]] = []
    with (folder / "traces.jsonl").open("w") as traces, (folder / "predictions.jsonl").open("w") as predictions:
        for number, id_ in enumerate(ids):
            item = _item(id_, number, rng)
            text = question if question is not None and number == 0 else _words(rng, 14)
            trace = _trace(item, text, rng)
            items.append(item)
            traces.write(json.dumps(trace) + "\n")
            names = ("id", "db_id", "question", "sql", "raw_sql", "error", "steps", "usage", "seconds", "finish", "key")
            predictions.write(json.dumps({name: trace[name] for name in names}) + "\n")
    (folder / "report.json").write_text(json.dumps(_report(items)))
    return folder


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def _item(id_: str, number: int, rng: random.Random) -> dict[str, Any]:
    right, ran = rng.random() < 0.6, rng.random() < 0.9
    return {
        "id": id_,
        "db_id": f"database_{number % 40:02}",
        "sql": f"SELECT {_words(rng, 18)}",
        "va": right or ran,
        "em": False,
        "ex": right,
        "ts": None,
        "error": None if right or ran else "no such column: t1.name",
        "hardness": rng.choice(("easy", "medium", "hard", "extra")),
        "cause": None if right else rng.choice(CAUSES),
        "ex_single_shot": rng.random() < 0.55,
    }


def _trace(item: dict[str, Any], question: str, rng: random.Random) -> dict[str, Any]:
    """About what a small model writes in eight steps: thoughts of forty words, an SQL of twenty, rows of three."""
    records: list[dict[str, Any]] = []
    for step in range(8):
        records.append({"step": step, "llm": f"Thought: {_words(rng, 40)}\nAction: validate_sql[{{}}]"})
        if step % 3 == 0:
            forced = {"forced_action": "repair_sql", "requested_action": "run_sql", "reason": "pending_repair:x"}
            records.append({"step": step, **forced})
            seen: Any = {"sql": f"SELECT {_words(rng, 20)}", "raw_sql": f"SELECT {_words(rng, 20)}"}
            records.append({"step": step, "action": "repair_sql", "args": {}, "observation": seen})
        else:
            seen = {"valid": False, "reason": f"unknown_column:{rng.choice(WORDS)}"}
            records.append({"step": step, "action": "validate_sql", "args": {}, "observation": seen})
    rows = [[rng.choice(WORDS), rng.randrange(10**6), rng.random()] for _ in range(10)]
    usage = {
        "prompt_tokens": rng.randrange(3000, 20000),
        "completion_tokens": rng.randrange(100, 900),
        "model_calls": 11,
    }
    return {
        "id": item["id"],
        "db_id": item["db_id"],
        "question": question,
        "sql": item["sql"],
        "raw_sql": item["sql"] + ";",
        "columns": ["name", "number", "share"],
        "rows": rows,
        "row_count": 10,
        "error": None,
        "finish": rng.choice(("finish", "vanilla", "last_sql")),
        "steps": 8,
        "usage": usage,
        "seconds": 1.5,
        "flags": {},
        "compliance": {"finish_without_run": False},
        "trace": records,
        "decision_log": [{"step": 0, "decision": "repair_sql", "reason": "ok", "status": "accept", "data": {}}],
        "key": "k",
    }


def _report(items: list[dict[str, Any]]) -> dict[str, Any]:
    share = sum(item["ex"] for item in items) / len(items)
    interval = {"value": share, "low": max(0.0, share - 0.02), "high": min(1.0, share + 0.02), "n": len(items)}
    metrics = {"VA": interval, "EM": interval, "EX[bag]": interval}
    usage = {"prompt_tokens": 9000 * len(items), "completion_tokens": 500 * len(items), "model_calls": len(items)}
    side = {"n": len(items), "metrics": metrics, "usage": {**usage, "seconds": 9.0}, "by_hardness": {"easy": metrics}}
    return {
        **side,
        "controller": "react",
        "benchmark": "synthetic",
        "model": "synthetic",
        "control": {"with_guardrails": {**side, "usage": {**side["usage"], "prompt_tokens": 300 * len(items)}}},
        "paired": {"EX[bag]": {"wins": 2, "losses": 1, "n": len(items), "p": 1.0, "p_databases": 1.0}},
        "counts": {"finish": {}, "steps": 0},
        "flips": {},
        "left_out": {},
        "warnings": [],
        "failures": {cause: sum(item["cause"] == cause for item in items) for cause in CAUSES},
        "items": items,
    }
