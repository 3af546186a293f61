"""Benchmarks: questions with golds over databases, from the package, a folder, or Hugging Face ``datasets``.

``load_benchmark("packaged")``, ``load_benchmark("packaged-dialogues", split="dev")``, ``load_benchmark("vizql")``,
``load_benchmark("spider", split="holdout")`` (searched in ``NL2SQL_BENCHMARKS``),
``load_benchmark("/data/bird")``, ``load_benchmark("hf:org/name:validation", databases="/data/databases")``.
"""

from nl2sql.benchmarks.core import (
    LEFT_OUT_FLAGS,
    FolderBenchmark,
    draw_sample,
    excluded_counts,
    exclusion_reason,
    scorable,
)
from nl2sql.benchmarks.load import available_benchmarks, load_benchmark

__all__ = [
    "LEFT_OUT_FLAGS",
    "FolderBenchmark",
    "available_benchmarks",
    "draw_sample",
    "excluded_counts",
    "exclusion_reason",
    "load_benchmark",
    "scorable",
]
