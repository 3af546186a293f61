"""Metrics of drawn samples, where a question was answered several times: pass@k and majority@k, with intervals.

An episode keeps what it wrote in ``flags["samples"]``: ``[{"sql", "rows"}, ...]`` in the order of writing, with one
number in ``rows`` for all that gave the same rows, None where a query did not run. pass@k (arXiv 2107.03374) is the
chance that one of k samples, drawn from those of the question, is right; with all of them, whether any is. majority@k
is the verdict on the rows that most of the first k gave, ties going to the earliest. A question with fewer than k
samples counts with all that it has, one without any as wrong.

>>> round(pass_at(2, [True, False, False]), 3)
0.667
>>> majority([{"rows": 0}, {"rows": 1}, {"rows": 1}, {"rows": None}], 4)
1
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nl2sql.eval import Scores, score_many
from nl2sql.eval.settings import Settings
from nl2sql.eval.stats import percent
from nl2sql.interfaces import Benchmark, Question

Samples = Mapping[str, Sequence[Mapping[str, Any]]]  # question id -> what was written


def samples_of(traces: Sequence[Mapping[str, Any]]) -> Samples:
    return {trace["id"]: trace["flags"]["samples"] for trace in traces if trace["flags"].get("samples")}


def sample_metrics(
    benchmark: Benchmark, questions: Sequence[Question], drawn: Samples, settings: Settings
) -> dict[str, dict[str, Any]]:
    """Metric -> its interval as data, clustered by database; {} where nothing was drawn. Scored without TS."""
    most = max(map(len, drawn.values()), default=0)
    if most < 2:
        return {}
    ks = [*(2**power for power in range(most.bit_length()) if 2**power < most), most]
    files = {
        str(place): {id_: samples[place]["sql"] for id_, samples in drawn.items() if place < len(samples)}
        for place in range(most)
    }
    chosen = settings.chosen.model_copy(update={"replicas": 0})
    scored = score_many(benchmark, questions, files, replace(settings, chosen=chosen, causes=False, metrics=None))
    first = scored["0"]
    right = {
        item.id: [scored[str(place)].items[number].ex for place in range(len(drawn.get(item.id, ())))]
        for number, item in enumerate(first.items)
    }
    values = {f"pass@{k}": {id_: pass_at(k, verdicts) for id_, verdicts in right.items()} for k in ks}
    values |= {f"majority@{k}": {id_: _voted(k, drawn.get(id_, ()), of) for id_, of in right.items()} for k in ks[2:]}
    return _intervals(first, values)


def _intervals(scores: Scores, values: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    metrics = {name: (lambda item, of=of: of[item.id]) for name, of in values.items()}
    shown = scores.metrics(metrics)
    return {name: shown[name].to_dict() for name in values}


def pass_at(k: int, right: Sequence[bool]) -> float:
    """The chance that k of the samples, drawn without putting back, hold a right one; 0 without samples."""
    n, wrong = len(right), len(right) - sum(right)
    k = min(k, n)
    return 1 - math.comb(wrong, k) / math.comb(n, k)


def majority(samples: Sequence[Mapping[str, Any]], k: int) -> int | None:
    """The place of the first sample with the rows that most of the first ``k`` gave; None where none ran."""
    ran = [sample["rows"] for sample in samples[:k] if sample["rows"] is not None]
    if not ran:
        return None
    votes = Counter(ran)  # the earliest of equals comes first
    return [sample["rows"] for sample in samples].index(votes.most_common(1)[0][0])


def _voted(k: int, samples: Sequence[Mapping[str, Any]], right: Sequence[bool]) -> float:
    place = majority(samples, k)
    return float(place is not None and right[place])


def sample_rows(report: Mapping[str, Any], systems: Sequence[str]) -> list[list[str]]:
    """The lines of the table: a metric, and its interval for each system that drew samples."""
    drawn = report.get("samples", {})
    names = dict.fromkeys(name for metrics in drawn.values() for name in metrics)
    return [
        [name, *(percent(drawn[system][name]) if name in drawn.get(system, {}) else "" for system in systems)]
        for name in names
    ]
