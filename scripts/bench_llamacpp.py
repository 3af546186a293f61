"""Which engine when: our slots on torch beside llama.cpp, on the same recorded loops and the same cores.

    NL2SQL_BENCHMARKS=... python scripts/bench_llamacpp.py --model qwen2.5-coder-0.5b [--engines llamacpp] [--rows 1,8]

The loop is recorded once, with the model's own engine (kept in --transcripts). Then each engine computes the same
prompts, as token ids, and exactly as many new tokens, greedily, with 1, 8 and 24 rows at once; one row at a time gets
the first --alone episodes only. Every cell of the table is a process of its own that begins with an empty cache, as
``load_model`` opens it, without an adapter. *tokens/s* counts new tokens; *MB* is the most that the process which
computes has held, weights included.

Cells are appended to --out and not measured again: a run that was ended goes on, and may be made in parts. --rounds
measures every cell so often, one cell after the other, so that a busy machine is as busy for all; the table shows
medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from engine_bench.transcripts import Call, Episode, Recording, kept, record, truncated

from nl2sql.machine import cache_dir, cores
from nl2sql.models import load_model
from nl2sql.models.rows import Row

ENGINES: dict[str, dict[str, Any]] = {
    "slots-float32": {"engine": "slots", "dtype": "float32"},
    "slots-bfloat16": {"engine": "slots", "dtype": "bfloat16"},
    "llamacpp": {"engine": "llamacpp"},
}
SAME = ("model", "benchmark", "split", "questions", "max_new_tokens", "steps", "alone", "dtype", "threads")
SHOWN = ("tokens/s", "episodes/min", "MB")


def main() -> None:
    args = _arguments()
    recording = _recording(args)
    if args.cell:
        engine, rows = args.cell.split(",")
        print(json.dumps(_measured(engine, int(rows), recording, args)))
        return
    for number in range(1, args.rounds + 1):
        for rows in args.rows:
            for engine in args.engines:
                if len(_lines(args, engine, rows)) < number:
                    _append(args, _key(args, engine, rows) | _child(f"{engine},{rows}", args))
    if args.json:
        cells = (_lines(args, engine, rows) for engine in args.engines for rows in args.rows)
        print(json.dumps([line for cell in cells for line in cell]))
    else:
        print(_table(args))


def _measured(engine: str, rows: int, recording: Recording, args: argparse.Namespace) -> dict[str, Any]:
    """One cell, in this process."""
    episodes = recording.episodes[: args.alone] if rows == 1 else recording.episodes
    model: Any = load_model(args.model, adapter="none", batch_size=rows, **ENGINES[engine])
    try:
        if engine == "llamacpp":
            play, pid = partial(_by_llamacpp, model), model._child._processes[-1].pid
        else:
            play, pid = partial(_by_slots, model), os.getpid()
        seconds = _replayed(play, episodes, rows)
        new = sum(len(call.answer) for episode in episodes for call in episode)
        line = {"episodes": len(episodes), "seconds": round(seconds, 1), "tokens/s": round(new / seconds, 1)}
        return line | {"episodes/min": round(60 * len(episodes) / seconds, 2), "MB": _most_megabytes(pid)}
    finally:
        model.close()


def _by_slots(model: Any, call: Call) -> None:
    model._wait([Row(prompt=call.prompt, max_new_tokens=len(call.answer), stop_ids=frozenset())])


def _by_llamacpp(model: Any, call: Call) -> None:
    body = {"prompt": call.prompt, "n_predict": len(call.answer), "ignore_eos": True, "temperature": 0}
    with model._slots.row(call.prompt, len(call.answer), None) as (slot, _):
        reply = model._ask_child("completion", {**body, "id_slot": slot, "cache_prompt": True})
    if (made := reply["tokens_predicted"]) != len(call.answer):
        raise RuntimeError(f"llama.cpp made {made} tokens where {len(call.answer)} were asked for")


def _replayed(play: Callable[[Call], None], episodes: Sequence[Episode], at_once: int) -> float:
    def episode(calls: Episode) -> None:
        for call in calls:
            if call.answer:
                play(call)

    started = time.perf_counter()
    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(episode, episodes))
    return time.perf_counter() - started


def _most_megabytes(pid: int) -> int:
    """The most memory that a process has held at once."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


def _child(cell: str, args: argparse.Namespace) -> dict[str, Any]:
    """One cell in a process of its own, so that its memory is its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--cell", cell]
    env = {**os.environ, "NL2SQL_THREADS": str(args.threads)}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=env, check=False)
    if done.returncode:
        sys.exit(f"error: {args.model} {cell} ended with {done.returncode}; leave it out by --engines and --rows")
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{args.model} {cell}: {line}", file=sys.stderr, flush=True)  # it takes minutes
    return line


def _key(args: argparse.Namespace, engine: str, rows: int) -> dict[str, Any]:
    """What a line of --out was measured on."""
    same = {name: getattr(args, name) for name in SAME}
    return {**same, "engine": engine, "rows": rows}


def _lines(args: argparse.Namespace, engine: str, rows: int) -> list[dict[str, Any]]:
    key = _key(args, engine, rows)
    texts = args.out.read_text(encoding="utf-8").splitlines() if args.out.exists() else []
    return [line for line in map(json.loads, texts) if key.items() <= line.items()]


def _append(args: argparse.Namespace, line: dict[str, Any]) -> None:
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _table(args: argparse.Namespace) -> str:
    """Engines below one another; rows at once beside one another, each with its three figures."""
    head = "".join(f" {name} ({rows}) |" for rows in args.rows for name in SHOWN)
    lines = [f"| {args.model} |{head}", "|---" * (1 + len(SHOWN) * len(args.rows)) + "|"]
    for engine in args.engines:
        cells = [_lines(args, engine, rows) for rows in args.rows]
        shown = (f" {median(line[name] for line in cell):,g} |" for cell in cells for name in SHOWN)
        lines.append(f"| {engine} |{''.join(shown)}")
    return "\n".join(lines)


def _recording(args: argparse.Namespace) -> Recording:
    found = kept("react", args)
    if found is None:
        model = load_model(args.model, adapter="none", dtype=args.dtype, batch_size=args.batch_size)
        try:
            found = record(model, "react", {}, args)
        finally:
            model.close()
    return Recording(found.name, truncated(found.episodes, args.steps), found.facts) if args.steps else found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="an embedded model, or a .gguf file")
    parser.add_argument("--engines", type=_engines, default=list(ENGINES), help=f"some of {','.join(ENGINES)}")
    parser.add_argument("--rows", type=_counts, default=[1, 8, 24], help="at once; default 1,8,24")
    parser.add_argument("--rounds", type=int, default=1, help="how often each cell is measured")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--benchmark", default="spider" if os.environ.get("NL2SQL_BENCHMARKS") else "packaged")
    parser.add_argument("--split", default=None)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--steps", type=int, default=0, help="the first so many calls of each episode; 0: all")
    parser.add_argument("--max-new-tokens", type=int, default=96, help="of one turn of the loop")
    parser.add_argument("--alone", type=int, default=4, help="episodes of one row at a time")
    parser.add_argument("--batch-size", type=int, default=8, help="of the recording")
    parser.add_argument("--dtype", default="auto", help="of the recording, where torch makes it")
    parser.add_argument("--transcripts", default=str(cache_dir("bench") / "transcripts"), help="where recordings are")
    parser.add_argument("--out", type=Path, default=cache_dir("bench") / "engines.jsonl", help="measured cells")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _engines(text: str) -> list[str]:
    if unknown := set(names := text.split(",")) - set(ENGINES):
        raise argparse.ArgumentTypeError(f"no engine: {', '.join(unknown)}; choose some of {','.join(ENGINES)}")
    return names


def _counts(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    main()
