"""The process that builds and checks suites: generation, mutation and, in the sandbox, execution.

Started by ``run_tasks`` as a ``FramedChild``. The process cannot grow any file (RLIMIT_FSIZE is 0): databases go
back as bytes.

Requests: ``{"source": key, "data": SourceDatabase or null}`` (data once per source), and with it ``"task"``: "build"
(``golds``, ``n``, ``seed``) or "check" (``golds``, ``files``, ``seed``).
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from nl2sql.databases.sqlite.process import reply, requests
from nl2sql.databases.sqlite.worker import restrict_process
from nl2sql.eval.suites.distil import Gold, Workplace, distil, gold_result, read_gold
from nl2sql.eval.suites.source import SourceDatabase
from nl2sql.interfaces import RunResult
from nl2sql.sql.parse import SLIPS

LARGEST_FILE = 256 * 2**20


def main() -> None:
    """Answer requests until the socket closes."""
    restrict_process()
    known: dict[str, Workplace] = {}
    for request in requests():
        key = request["source"]
        if request["data"] is not None:
            known.clear()  # tasks come database by database
            known[key] = Workplace(SourceDatabase.from_json(request["data"]))
        try:
            response = TASKS[request["task"]](known[key], request)
        except (sqlite3.Error, OSError, MemoryError, AssertionError, ArithmeticError, *SLIPS) as error:
            response = {"error": f"{type(error).__name__}: {error}"[:500]}
        reply(response)


def build_images(place: Workplace, request: dict[str, Any]) -> dict[str, Any]:
    """A suite for the golds: images, and what they kill."""
    started = time.perf_counter()
    made = distil(place.source, request["golds"], request["n"], request["seed"], place)
    return {
        "images": made.images,
        "candidates": made.candidates,
        "seconds": time.perf_counter() - started,
        "golds": [
            _entry(gold, {k for a, k in made.killed if a == g}, len(made.images)) for g, gold in enumerate(made.golds)
        ],
    }


def check_files(place: Workplace, request: dict[str, Any]) -> dict[str, Any]:
    """Which neighbours the given databases kill, judged as TS judges: one gold, one column assignment for all."""
    images = []
    for name in request["files"]:
        file = Path(name)
        if file.stat().st_size > LARGEST_FILE:
            return {"error": f"{file} is larger than {LARGEST_FILE >> 20} MB"}
        images.append(file.read_bytes())
    entries = []
    for sql in request["golds"]:
        gold = read_gold(sql, place, request["seed"])
        if gold.problem:
            entries.append(_entry(gold, set(), 0))
            continue
        alive = set(range(len(gold.live)))
        ours: list[RunResult] = []
        theirs: dict[int, list[RunResult]] = {k: [] for k in alive}
        for image in images:
            result = gold_result(gold, place, image)
            if result is None:
                continue
            ours.append(result)
            for k in sorted(alive):
                other = place.arena.run(gold.live[k].sql)
                if gold.judge.same(result, other):
                    theirs[k].append(other)
                else:
                    alive.discard(k)
        if len(ours) > 1:
            alive = {k for k in alive if gold.judge.same_everywhere(ours, theirs[k])}
        entries.append(_entry(gold, set(range(len(gold.live))) - alive, len(ours)))
    return {"golds": entries}


TASKS = {"build": build_images, "check": check_files}


def _entry(gold: Gold, killed: set[int], usable: int) -> dict[str, Any]:
    """A gold as data: its neighbours by fate. ``usable``: databases that say something about it."""
    return {
        "sql": gold.sql,
        "problem": gold.problem,
        "usable": usable,
        "killed": [[n.kind, n.sql] for k, n in enumerate(gold.live) if k in killed],
        "survivors": [[n.kind, n.sql] for k, n in enumerate(gold.live) if k not in killed],
    }
