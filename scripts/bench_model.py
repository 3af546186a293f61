"""Measure a local model on this machine: tokens per second read, written and sampled, by batch size and dtype.

    python scripts/bench_model.py --model smollm2-135m [--dtypes float32,bfloat16] [--batches 1,8,16,32] [--json]

Goes through the public door (``LocalModel.generate`` from threads), so queueing, the choice of tokens and stop checks
are part of the numbers. Decode: completions of a fixed length after one short shared prompt (its prefill is reused),
greedy, then sampled with --temperature. Prefill: distinct prompts, one new token each. Reports the best of --repeats by
wall clock, for other work on the machine only ever slows it down, and beside it tokens per CPU-second, which other work
hardly touches (with two threads on a quiet machine wall is up to twice that).
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from nl2sql.interfaces import Completion, Model, Sampling
from nl2sql.models import load_model

WORDS = ["customers", "orders", "payments", "total", "status", "shipped", "date", "city", "name", "product", "price"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--batches", default="1,8,16,32")
    parser.add_argument("--prompt-tokens", type=int, default=400, help="prompt length for prefill")
    parser.add_argument("--context-tokens", type=int, default=400, help="context length while decoding")
    parser.add_argument("--new-tokens", type=int, default=32, help="tokens decoded per completion")
    parser.add_argument("--temperature", type=float, default=1.3, help="of what is sampled (top_p 0.95)")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for dtype in args.dtypes.split(","):
        for batch in map(int, args.batches.split(",")):
            model = load_model(args.model, device=args.device, dtype=dtype, batch_size=batch)
            prefill = best(prefill_rate(model, batch, args.prompt_tokens, seed) for seed in range(args.repeats))
            size = (batch, args.context_tokens, args.new_tokens)
            decode = best(decode_rate(model, *size) for _ in range(args.repeats))
            sampled = best(decode_rate(model, *size, Sampling(args.temperature, 0.95)) for _ in range(args.repeats))
            facts = model.describe()
            model.close()
            rates = {"prefill": prefill, "decode": decode, "sampled": sampled}
            rows.append({"dtype": dtype, "batch": batch} | {name: rate._asdict() for name, rate in rates.items()})
            if not args.json:
                shown = "   ".join(f"{name} {rate}" for name, rate in rates.items())
                print(f"{dtype:<9} batch {batch:>3}   {shown}", flush=True)
    if args.json:
        print(json.dumps({"model": facts["name"], "threads": facts["threads"], "torch": facts["torch"], "rows": rows}))


class Rate(NamedTuple):
    """Tokens per second of wall clock and of CPU time."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:7.1f} tok/s {self.cpu:7.1f} tok/CPU-s"


def best(rates: Iterable[Rate]) -> Rate:
    walls, cpus = zip(*rates, strict=True)
    return Rate(round(max(walls), 1), round(max(cpus), 1))


def prefill_rate(model: Model, batch: int, tokens: int, seed: int) -> Rate:
    """Prompt tokens computed per second: ``batch`` prompts that share nothing but the template's head."""
    done, wall, cpu = run(model, [_text(model, tokens, f"{seed}:{row}") for row in range(batch)], new_tokens=1)
    computed = sum(c.usage.prefill_tokens for c in done)
    return Rate(computed / wall, computed / cpu)


def decode_rate(model: Model, batch: int, context: int, new_tokens: int, sampling: Sampling | None = None) -> Rate:
    """New tokens per second once every row has its prompt; the prompt is computed by a call before."""
    text = _text(model, context, "decode")
    run(model, [text] * batch, new_tokens=1)
    # Two lengths: what one more block of tokens costs, free of admission and prefill.
    _, short_wall, short_cpu = run(model, [text] * batch, new_tokens=2, sampling=sampling)
    done, wall, cpu = run(model, [text] * batch, new_tokens=2 + new_tokens, sampling=sampling)
    extra = sum(c.usage.completion_tokens for c in done) - 2 * batch
    return Rate(extra / max(wall - short_wall, 1e-9), extra / max(cpu - short_cpu, 1e-9))


def run(
    model: Model, texts: list[str], *, new_tokens: int, sampling: Sampling | None = None
) -> tuple[list[Completion], float, float]:
    """Ask all at once; completions, wall seconds, CPU seconds of this process."""

    def ask(at: int) -> Completion:
        asked = [{"role": "user", "content": texts[at]}]
        return model.generate(asked, max_new_tokens=new_tokens, sampling=sampling, seed=at)[0]

    wall, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(len(texts)) as threads:
        done = list(threads.map(ask, range(len(texts))))
    return done, time.perf_counter() - wall, time.process_time() - cpu


def _text(model: Model, tokens: int, key: str) -> str:
    # Counting words until the end keeps the model from ending its turn early.
    rng = random.Random(key)
    words: list[str] = [rng.choice(WORDS)]
    while model.count_tokens([{"role": "user", "content": " ".join(words)}]) < tokens:
        words += rng.choices(WORDS, k=8)
    return " ".join(words)


if __name__ == "__main__":
    main()
