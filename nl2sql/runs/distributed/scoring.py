"""Scoring on a cluster: every shard's verdicts, and the shards put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from nl2sql.eval.scoring import Judged, judge
from nl2sql.eval.settings import Settings
from nl2sql.interfaces import Benchmark, Question
from nl2sql.runs.distributed.cluster import Cluster
from nl2sql.runs.distributed.shards import Shard, cut

if TYPE_CHECKING:
    from nl2sql.databases.sqlite.pool import QueryPool


def judge_on_cluster(
    cluster: Cluster,
    benchmark: Benchmark,
    questions: Sequence[Question],
    predictions: Mapping[str, Mapping[str, str]],
    settings: Settings,
) -> Judged:
    """``judge`` with each shard on a worker. Warnings that count questions (of suites) count those of a shard."""
    shards = cut(benchmark, questions)
    folder = settings.replicas
    plain = replace(
        settings,
        cluster=None,
        pool=None,
        progress=False,
        metrics=None,
        replicas=folder if isinstance(folder, int) else Path(folder).absolute(),
    )
    work = []
    for shard in shards:
        ids = [question.id for question in shard.questions]
        files = {name: {id_: given[id_] for id_ in ids if id_ in given} for name, given in predictions.items()}
        work.append((shard, files, plain))
    found: dict[int, Judged] = {}
    with tqdm(total=len(questions), desc="scoring", unit="item", disable=not settings.progress) as bar:
        for number, judged in cluster.map(judge_shard, work):
            found[number] = judged
            bar.update(len(shards[number].questions))
    parts = [found[number] for number in range(len(shards))]
    return Judged(
        items={id_: scores for part in parts for id_, scores in part.items.items()},
        warnings=list(dict.fromkeys(warning for part in parts for warning in part.warnings)),
        most=max((part.most for part in parts), default=0),
        executed=sum(part.executed for part in parts),
    )


def judge_shard(shard: Shard, predictions: Mapping[str, Mapping[str, str]], settings: Settings) -> Judged:
    """In a worker process, which has one core."""
    return judge(shard.open(), shard.questions, predictions, replace(settings, pool=_pool()))


@cache
def _pool() -> QueryPool:
    """One query process per worker, kept from shard to shard; it ends with the worker."""
    from nl2sql.databases.sqlite.pool import QueryPool

    return QueryPool(workers=1)
