"""What the batching engine buys: episodes per minute against simpler ways to compute the same tokens.

    NL2SQL_BENCHMARKS=... python scripts/bench_engine.py [--json] [--questions 24] [--dtype bfloat16]

First the loop is recorded on --questions questions (preset react, and once for each switch that makes it cheaper);
then one recording is replayed by every variant, same model, same dtype, same prompts, same number of new tokens:
(a) *naive*: one call at a time, the whole prompt read again, ``model.generate``, (b) *static*: left-padded batches,
nothing reused; these on --naive-episodes and --static-episodes of the episodes only (they are slow), (c) the engine,
with and without drafts. *floor*: the measured forward cost of exactly the unique tokens at the best batch size. Only
ratios within one run mean anything.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from engine_bench import variants
from engine_bench.transcripts import Recording, record

from nl2sql.machine import cache_dir
from nl2sql.models import load_model
from nl2sql.models.embedded import pull
from nl2sql.models.load import set_threads
from nl2sql.models.local import LocalModel

CACHE_BYTES = 6 * 10**9
# Small models write on and on: shorter turns make the simpler variants bearable, and favour none of the others.
MAX_NEW_TOKENS = 96
SWITCHES: dict[str, dict[str, Any]] = {
    "react": {},
    "skip_forced_calls": {"react": {"skip_forced_calls": True}},
    "early_stop": {"react": {"auto_finish": True, "stop_at_action": True}},
    "schema_first": {"react": {"history_order": "schema_first"}},
    "all three": {
        "react": {
            "skip_forced_calls": True,
            "auto_finish": True,
            "stop_at_action": True,
            "history_order": "schema_first",
        }
    },
}


def main() -> None:
    args = _arguments()
    set_threads()
    recordings = _recordings(args)
    folder = str(pull(args.model))
    plain = variants.load(folder, args.dtype)
    react = recordings["react"]
    lines: list[dict[str, Any]] = []

    def add(name: str, result: variants.Result, recording: Recording, episodes: int) -> None:
        per_minute = 60 * episodes / result.seconds
        unique = recording.unique_prompt_tokens()
        line = {
            "variant": name,
            "episodes": episodes,
            "seconds": round(result.seconds, 1),
            "episodes_per_minute": round(per_minute, 2),
            "ratio_to_naive": round(per_minute / lines[0]["episodes_per_minute"], 2) if lines else 1.0,
            "prefilled_per_unique": round(result.prefilled / unique * len(recording.episodes) / episodes, 3),
        }
        if result.busy_s:
            line["outside_forwards"] = round(1 - result.forward_s / result.busy_s, 3)
        lines.append(line)
        if not args.json:
            print("  ".join(f"{key} {value}" for key, value in line.items()), flush=True)

    few = react.episodes[:: max(1, len(react.episodes) // args.naive_episodes)][: args.naive_episodes]
    add("(a) naive", variants.naive(plain, few), Recording("few", few, {}), len(few))
    some = react.episodes[:: max(1, len(react.episodes) // args.static_episodes)][: args.static_episodes]
    if not args.without_static:
        found = variants.static(plain, some, args.batch_size)
        add("(b) static batches", found, Recording("some", some, {}), len(some))
    del plain
    gc.collect()
    ours = variants.load(folder, args.dtype)
    for name, options in (("", {}), (", no drafts", {"prompt_lookup": False}), (", one worker", {"one": True})):
        found = variants.engine(ours, react.episodes, args.batch_size, CACHE_BYTES, **options)
        add(f"(c) engine{name}", found, react, len(react.episodes))
    for name, recording in recordings.items():
        if name != "react":
            found = variants.engine(ours, recording.episodes, args.batch_size, CACHE_BYTES)
            add(f"(c) engine, {name}", found, recording, len(recording.episodes))
    mean = react.prompt_tokens // react.calls
    cost = variants.floor(ours, mean, (8, 16, 24, 32))
    least = react.unique_prompt_tokens() * cost["prefill_s"] + react.new_tokens * cost["decode_s"]
    engine_line = next(line for line in lines if line["variant"] == "(c) engine")
    report = {
        "model": args.model,
        "dtype": args.dtype,
        "benchmark": args.benchmark,
        "lines": lines,
        "recording": {
            "episodes": len(react.episodes),
            "calls": react.calls,
            "prompt_tokens": react.prompt_tokens,
            "unique_prompt_tokens": react.unique_prompt_tokens(),
            "new_tokens": react.new_tokens,
            **{key: round(value, 1) for key, value in react.facts.items()},
        },
        "floor": {"seconds": round(least, 1), "engine_to_floor": round(engine_line["seconds"] / least, 2), **cost},
    }
    if args.json:
        print(json.dumps(report))
    else:
        print(json.dumps({key: report[key] for key in ("recording", "floor")}, indent=1))


def _recordings(args: argparse.Namespace) -> dict[str, Recording]:
    model = load_model(args.model, adapter="none", dtype=args.dtype, batch_size=args.batch_size, cache=False)
    assert isinstance(model, LocalModel)
    try:
        names = ["react"] if args.only_react else list(SWITCHES)
        return {name: record(model, name, SWITCHES[name], args) for name in names}
    finally:
        model.close()
        gc.collect()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--benchmark", default="spider" if os.environ.get("NL2SQL_BENCHMARKS") else "packaged")
    parser.add_argument("--split", default=None)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--max-new-tokens", type=int, default=MAX_NEW_TOKENS, help="of one turn of the loop")
    parser.add_argument("--naive-episodes", type=int, default=2)
    parser.add_argument("--static-episodes", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--only-react", action="store_true", help="without the recordings of the switches")
    parser.add_argument("--without-static", action="store_true", help="leave the slow static batches out")
    parser.add_argument(
        "--transcripts", default=str(cache_dir("bench") / "transcripts"), help="where recordings are kept"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
