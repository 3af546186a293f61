"""What packed weights are worth: a forward of the embedded model, plain and packed, in one run.

    python scripts/bench_packed.py               # 1, 2, 8, 64 and 300 tokens, float32, all threads
    python scripts/bench_packed.py --tokens 16 --dtype bfloat16

Milliseconds are medians of ``--repeats`` forwards without a cache; the ratio is plain to packed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import torch

from nl2sql.errors import Nl2SqlError
from nl2sql.eval.tables import table_markdown
from nl2sql.models.load import load_parts
from nl2sql.models.packed import pack
from nl2sql.models.spec import resolve_spec


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 8, 64, 300])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    try:
        model = load_parts(resolve_spec("smollm2-135m"), device="cpu", dtype=options.dtype).parts[0]
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    plain = [milliseconds(model, tokens, options.repeats) for tokens in options.tokens]
    layers = pack(model)
    packed = [milliseconds(model, tokens, options.repeats) for tokens in options.tokens]
    rows = [
        [str(tokens), f"{before:.0f}", f"{after:.0f}", f"{before / after:.2f}"]
        for tokens, before, after in zip(options.tokens, plain, packed, strict=True)
    ]
    print(f"{layers} layers packed, {torch.get_num_threads()} threads")
    print(table_markdown([["tokens", "plain, ms", "packed, ms", "ratio"], *rows]))
    return 0


@torch.inference_mode()
def milliseconds(model: Any, tokens: int, repeats: int) -> float:
    """The median time of a forward over so many tokens."""
    ids, times = torch.arange(100, 100 + tokens)[None], []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        model(input_ids=ids, use_cache=False, logits_to_keep=1)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:]) * 1000


if __name__ == "__main__":
    sys.exit(main())
