"""How the engine's cost grows: with episodes at once, steps of an episode, and the size of the schema."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_bench import variants
from engine_bench.transcripts import Call, Episode, truncated
from nl2sql.models.embedded import pull
from nl2sql.models.load import set_threads

EPISODES, STEPS, COLUMNS = (1, 4, 16, 64), (2, 4, 8), (10, 100, 300)
CACHE_BYTES = 4 * 10**9
_SYSTEM, _PER_COLUMN, _PER_STEP, _NEW = 290, 6, 60, 40  # tokens, about those of recorded transcripts


def run(args: argparse.Namespace) -> None:
    """Measure, print the tables, draw them to ``args.growth``."""
    set_threads()
    model = variants.load(str(pull(args.model)), args.dtype)
    tables = {
        "episodes": [_line(model, n, made(n, 4, 30), args) for n in EPISODES],
        "steps": [_line(model, n, truncated(made(16, 8, 30), n), args) for n in STEPS],
        "columns": [_line(model, n, made(16, 4, n), args) for n in COLUMNS],
        "cache limit (MB)": [
            _line(model, limit, made(16, 4, 100), args, cache=limit * 10**6) for limit in (4000, 1500, 700)
        ],
    }
    _draw(tables, Path(args.growth))
    if args.json:
        print(json.dumps(tables))
        return
    for name, lines in tables.items():
        print(f"\n{name:>16}   seconds   s/episode   prefilled   cache MB")
        for line in lines:
            print(
                f"{line['x']:>16}{line['seconds']:>10.1f}{line['per_episode']:>12.2f}{line['prefilled']:>12,}"
                f"{line['cache_mb']:>11.0f}"
            )
    print(f"\ndrawn: {args.growth}")


def made(episodes: int, steps: int, columns: int) -> list[Episode]:
    """Transcripts of random words: a common system prompt, a schema of their own, ``steps`` calls that grow."""
    common = _words(0, _SYSTEM)
    found = []
    for n in range(episodes):
        prompt = common + _words(n + 1, columns * _PER_COLUMN)
        calls: Episode = []
        for step in range(steps):
            answer = _words(1000 * (n + 1) + step, _NEW)
            calls.append(Call(prompt, answer))
            prompt = prompt + answer + _words(2000 * (n + 1) + step, _PER_STEP)
        found.append(calls)
    return found


def _words(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(1000, 20000), k=count)


def _line(
    model: Any, x: int, episodes: Sequence[Episode], args: argparse.Namespace, cache: int = CACHE_BYTES
) -> dict[str, Any]:
    found = variants.engine(model, episodes, args.batch_size, cache)
    print(f"{x}: {found.seconds:.1f} s", file=sys.stderr, flush=True)  # it takes minutes
    return {
        "x": x,
        "seconds": round(found.seconds, 2),
        "per_episode": round(found.seconds / len(episodes), 3),
        "prefilled": found.prefilled,
        "cache_mb": round(found.cache_bytes / 1e6),
    }


def _draw(tables: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(tables), figsize=(4 * len(tables), 3), constrained_layout=True)
    for axis, (name, lines) in zip(axes, tables.items(), strict=True):
        axis.plot([line["x"] for line in lines], [line["per_episode"] for line in lines], marker="o")
        axis.set_xlabel(name)
        axis.set_ylabel("seconds per episode")
        axis.set_ylim(bottom=0)
    figure.savefig(path, dpi=120)
