"""Time a search of the repair corpus: python scripts/repair_latency.py --sizes 100,1000,10000,100000

Made-up fixes over made-up schemas; each size in a fresh file. Cold: the first search, which reads all vectors. Warm:
the median and the 95th percentile of 200 searches by error and statement, through the analyzer (patterns, search).
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tqdm.auto import tqdm

from nl2sql.repair.analyzer import ErrorAnalyzer
from nl2sql.repair.corpus import Corpus

WORDS = "order customer product price city name total status year month amount invoice line staff office region code"
FAILURES = (
    ("no such column: {a}", "SELECT {a} FROM {t} WHERE {b} > {n}", "SELECT {b} FROM {t} WHERE {b} > {n}"),
    ("no such table: {t}s", "SELECT {a} FROM {t}s JOIN {u} ON {a} = {b}", "SELECT {a} FROM {t} JOIN {u} ON {a} = {b}"),
    ("no such function: YEAR", "SELECT YEAR({a}) FROM {t}", "SELECT strftime('%Y', {a}) FROM {t}"),
    ("misuse of aggregate: SUM()", "SELECT {a} FROM {t} WHERE SUM({b}) > {n}", "SELECT {a} FROM {t} GROUP BY {a}"),
)


def failures(count: int, seed: int) -> Iterator[tuple[str, str, str]]:
    """(error, failed, repaired) of ``count`` statements that are all different."""
    random_words, words = random.Random(seed), WORDS.split()
    for number in range(count):
        names = {key: "_".join(random_words.choices(words, k=2)) for key in "abtu"}
        names["t"] += str(number)
        form = random_words.choice(FAILURES)
        yield tuple(text.format(n=random_words.randrange(1000), **names) for text in form)  # type: ignore[misc]


def measure(path: Path, size: int) -> dict[str, float]:
    with Corpus(path, create=True) as corpus:
        with corpus.batch():
            for error, failed, repaired in tqdm(failures(size, 0), total=size, desc=f"{size} fixes", leave=False):
                corpus.store_fix(error, failed, repaired, "made up")
        asked = list(failures(201, 1))
        analyzer = ErrorAnalyzer("sqlite", corpus, threshold=0.0, search_s=600.0)
        seconds = []
        for error, failed, _ in asked:
            began = time.perf_counter()
            analyzer.analyze_error(error, failed)
            seconds.append(time.perf_counter() - began)
        analyzer.close()
    warm = sorted(seconds[1:])
    return {"cold": seconds[0], "median": statistics.median(warm), "p95": warm[int(len(warm) * 0.95)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="100,1000,10000,100000")
    sizes = [int(size) for size in parser.parse_args().sizes.split(",")]
    print("| fixes | first search, ms | median, ms | 95th percentile, ms | file, MB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / f"{size}.db"
            found = measure(path, size)
            times = " | ".join(f"{found[name] * 1000:.1f}" for name in ("cold", "median", "p95"))
            print(f"| {size:,} | {times} | {path.stat().st_size / 1e6:.1f} |", flush=True)


if __name__ == "__main__":
    main()
