"""Memory of a long evaluation: does what the process holds, or what a question costs, grow with the questions?

    python scripts/bench_memory.py [--questions 300] [--n 24] [--batch-size 32] [--figure FILE.png] [--json]

Carries out the model card's cell ``question`` (24 candidates of four views, each read back) on packaged
questions, without the response cache, and prints for every ten questions: seconds a question, the memory that
the process holds, what of it the C library keeps free, and what the engine counts as keys and values. Exit code
1 where it holds more than ``--limit-gb``. docs/engine.md quotes its output.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nl2sql import evaluate
from nl2sql.config import build_config
from nl2sql.models import load_model

SAMPLE_S = 0.5
STEP = 10  # questions of a line


@dataclass
class Sample:
    """What was held at one moment. Memory in MB."""

    seconds: float
    questions: int
    rss: float
    engine: float  # keys and values, as the engine counts them
    kept: float  # free memory that malloc has not given back


class Watch:
    """Samples this process on a thread of its own, while the block runs."""

    def __init__(self, model: Any, folder: Path) -> None:
        self.samples: list[Sample] = []
        self._model, self._folder = model, folder
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._began = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        told = 0
        while not self._end.wait(SAMPLE_S):
            self.samples.append(now := self._sample())
            if now.questions >= told + STEP:
                told = now.questions
                print(f"{told} questions: {now.rss:.0f} MB held, {now.engine:.0f} MB counted", file=sys.stderr)

    def _sample(self) -> Sample:
        seconds = time.perf_counter() - self._began
        engine = self._model.cache_bytes / 1e6
        return Sample(seconds, _lines(self._folder / "predictions.jsonl"), _rss_mb(), engine, _kept_mb())


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _rss_mb() -> float:
    match = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(match[1]) * 1024 / 1e6 if match else 0.0


class _MallInfo(ctypes.Structure):
    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


def _kept_mb() -> float:
    """Free memory in all of malloc's arenas; 0 where the C library does not tell."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0.0
    mallinfo.restype = _MallInfo
    return float(mallinfo().fordblks) / 1e6


def table(samples: list[Sample], step: int = STEP) -> list[dict[str, float]]:
    """A line per ``step`` questions: seconds a question, and the most that was held meanwhile."""
    lines: list[dict[str, float]] = []
    before = 0
    began = 0.0
    for target in range(step, samples[-1].questions + 1, step):
        upto = next(at for at, sample in enumerate(samples) if sample.questions >= target)
        part = samples[before : upto + 1]
        most = {name: round(max(getattr(sample, name) for sample in part)) for name in ("rss", "engine", "kept")}
        lines.append({"questions": target, "seconds": round((part[-1].seconds - began) / step, 2), **most})
        before, began = upto, part[-1].seconds
    return lines


def draw(lines: list[dict[str, float]], path: Path) -> None:
    """Memory, and seconds a question, over the questions."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (memory, pace) = pyplot.subplots(1, 2, figsize=(9, 3), constrained_layout=True)
    at = [line["questions"] for line in lines]
    for name, label in (("rss", "held by the process"), ("engine", "counted by the engine")):
        memory.plot(at, [line[name] / 1000 for line in lines], label=label)
    memory.set(xlabel="questions", ylabel="GB", ylim=(0, None))
    memory.legend()
    pace.plot(at, [line["seconds"] for line in lines], marker=".")
    pace.set(xlabel="questions", ylabel="seconds a question", ylim=(0, None))
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--n", type=int, default=24, help="candidates of a question")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--benchmark", default="packaged")
    parser.add_argument("--split", default=None, help="default: all questions")
    parser.add_argument("--limit-gb", type=float, default=6.0, help="exit code 1 where the process holds more")
    parser.add_argument("--figure", type=Path, metavar="FILE.png")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    split = args.split or ("all" if args.benchmark == "packaged" else None)
    read_back = {"choose": "question", "n": args.n, "views": min(4, args.n), "length_penalty": 0}
    limits = {"react": {"max_new_tokens": 128}, "schema_text": {"values": 4}, "eval": {"replicas": 0}}
    config = build_config({"constrain": "plain", "candidates": read_back, **limits})
    model = load_model("smollm2-135m", dtype=args.dtype, batch_size=args.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        with Watch(model, out) as watch:
            options: dict[str, Any] = {"split": split, "limit": args.questions, "control": False, "cache": False}
            evaluate(args.benchmark, model, "candidates", config=config, out=out, progress=False, **options)
    lines = table(watch.samples)
    most = max(sample.rss for sample in watch.samples)
    if args.figure:
        draw(lines, args.figure)
    if args.json:
        print(json.dumps({"peak_mb": most, "lines": lines, "samples": [asdict(sample) for sample in watch.samples]}))
    else:
        print("questions  s/question  held MB  engine MB  free in malloc MB")
        for line in lines:
            print("{questions:>9}{seconds:>12.2f}{rss:>9.0f}{engine:>11.0f}{kept:>19.0f}".format(**line))
        print(f"{most / 1000:.2f} GB at most; at most {args.limit_gb:g} are allowed")
    return int(most > args.limit_gb * 1000)


if __name__ == "__main__":
    sys.exit(main())
