"""The executor whose work is done by the workers of a Ray cluster, cut up by database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from tqdm.auto import tqdm

from nl2sql.config import Config
from nl2sql.errors import UsageError
from nl2sql.eval.scores import Judged
from nl2sql.eval.settings import Settings
from nl2sql.interfaces import Benchmark, Question
from nl2sql.runs.distributed.cluster import RayCluster
from nl2sql.runs.distributed.shards import cut
from nl2sql.runs.distributed.worker import Assignment, judge_shard, prints_of, run_shard
from nl2sql.runs.job import Job
from nl2sql.runs.plan import MODEL_OPTIONS, Plan


class Ray:
    """A running cluster, joined as a driver; or one of this machine alone, started here. Closed as a block, by
    ``close``, or with the process.

    address: ``HOST:PORT`` of a cluster that this machine is a node of, or ``auto`` to find it; None starts one here.
    workers: tasks at once of a cluster started here (default: the cores this process may use). A process that is
    connected already keeps its connection. Raises UsageError without Ray, or where no cluster answers.
    """

    def __init__(self, address: str | None = None, *, workers: int | None = None) -> None:
        self.cluster = RayCluster(address, workers)

    def __enter__(self) -> Ray:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster, and end one that was started here. Idempotent."""
        self.cluster.close()

    def check(self, plan: Plan, config: Config) -> None:
        """Raises UsageError for what workers cannot do: a model object, a corpus that grows, turns in their order."""
        if "model" in plan.objects:
            raise UsageError(
                f"model {plan.model!r} is an object of this process, and workers open models by name; pass a name "
                "(smollm2-135m, http://HOST/v1#NAME, scripted:FILE), or leave out executor="
            )
        if plan.history == "own":
            raise UsageError(
                "--history own asks the turns of a dialogue one after the other, and workers are handed questions that "
                "need no other's answer; use --executor local, or --history gold"
            )
        if files := [spec for spec in (*plan.tools, *plan.gates) if ".py:" in spec]:
            raise UsageError(f"{files[0]} is a file of this machine; name an installed module, package.module:function")
        if config.repair.learn:
            raise UsageError("repair.learn writes to a file on this machine; use --executor local, or learn afterwards")

    def episodes(self, job: Job) -> None:
        """Run each shard on a worker; the episodes of a shard are kept when all of them are done."""
        shards = cut(job.benchmark, job.questions)
        model = Plan(**{key: value for key, value in vars(job.plan).items() if key in MODEL_OPTIONS})
        prints = prints_of(job.plan, job.controller, job.model, job.config, job.tools, job.gates)
        order = Assignment(model, job.controller.spec or job.controller, job.config, prints, job.tools, job.gates)
        work = [(order, shard) for shard in shards]
        name, total = job.controller.name, len(job.questions)
        bar = tqdm(total=total, desc=name, unit="question", disable=not job.progress)
        with bar, closing(self.cluster.map(run_shard, work)) as done:
            for number, episodes in done:
                for episode in episodes:
                    job.keep(episode)
                bar.update(len(shards[number].questions))
                job.advance(len(shards[number].questions))

    def verdicts(
        self,
        benchmark: Benchmark,
        questions: Sequence[Question],
        predictions: Mapping[str, Mapping[str, str]],
        settings: Settings,
    ) -> Judged:
        """Judge each shard on a worker. Warnings that count questions (of suites) count those of a shard."""
        shards = cut(benchmark, questions)
        plain = replace(settings, executor=None, pool=None, progress=False, metrics=None)  # those are of this process
        work = []
        for shard in shards:
            ids = [question.id for question in shard.questions]
            files = {name: {id_: texts[id_] for id_ in ids if id_ in texts} for name, texts in predictions.items()}
            work.append((shard, files, plain))
        judged: dict[int, Judged] = {}
        bar = tqdm(total=len(questions), desc="scoring", unit="item", disable=not settings.progress)
        with bar, closing(self.cluster.map(judge_shard, work)) as done:
            for number, verdicts in done:
                judged[number] = verdicts
                bar.update(len(shards[number].questions))
        return _together([judged[number] for number in range(len(shards))])


def _together(parts: Sequence[Judged]) -> Judged:
    """The verdicts of all shards."""
    return Judged(
        items={id_: scores for part in parts for id_, scores in part.items.items()},
        warnings=list(dict.fromkeys(warning for part in parts for warning in part.warnings)),
        most=max((part.most for part in parts), default=0),
        executed=sum(part.executed for part in parts),
    )
