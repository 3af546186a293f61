"""Episodes on a cluster. A worker opens the model by its name, and keeps it for its next shards."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from nl2sql.agents.controllers import NamedController, get_controller
from nl2sql.agents.record import Episode
from nl2sql.config import Config
from nl2sql.errors import UsageError
from nl2sql.interfaces import Model, Question, Tool
from nl2sql.runs.carry_out import Job, run_questions
from nl2sql.runs.distributed.cluster import Cluster
from nl2sql.runs.distributed.shards import Shard, cut
from nl2sql.runs.plan import MODEL_OPTIONS, Plan, check_config, few_shot_pool, open_model, weights_of


@dataclass(frozen=True)
class Order:
    """What is the same for all shards of a phase: a controller under a config on a model."""

    plan: Plan  # the model's options; all else as it comes
    controller: str | NamedController  # a name or FILE.py:function, or the function with its name
    identity: str
    config: Config
    weights: Mapping[str, Any]  # as the driver's model describes them
    examples: str | None  # fingerprint of the few-shot pool
    tools: Mapping[str, Tool]


def check_plan(plan: Plan, config: Config) -> None:
    """Raises UsageError for what workers cannot do: a model object, a corpus that grows."""
    if "model" in plan.objects:
        raise UsageError(
            f"model {plan.model!r} is an object of this process, and workers open models by name; pass a name "
            "(smollm2-135m, http://HOST/v1#NAME, scripted:FILE), or leave out cluster="
        )
    if config.repair.learn:
        raise UsageError("repair.learn writes to a file on this machine; use --executor local, or learn afterwards")


def run_on_cluster(
    cluster: Cluster,
    job: Job,
    named: NamedController,
    config: Config,
    questions: Sequence[Question],
    keep: Callable[[Episode], None],
) -> None:
    """``run_questions`` with each shard on a worker; ``keep`` gets the episodes of a shard when all are done."""
    shards = cut(job.benchmark, questions)
    order = Order(
        _of_model(job.plan),
        _spec(job, named),
        named.identity,
        config,
        weights_of(job.model.describe()),
        few_shot_pool(config),
        job.tools,
    )
    with tqdm(total=len(questions), desc=named.name, unit="question", disable=not job.progress) as bar:
        for number, episodes in cluster.map(run_shard, [(order, shard) for shard in shards]):
            for episode in episodes:
                keep(episode)
            bar.update(len(shards[number].questions))
            job.advance(len(shards[number].questions))


def run_shard(order: Order, shard: Shard) -> list[Episode]:
    """In a worker process: the episodes of a shard, as many at once as the model batches."""
    named = order.controller if isinstance(order.controller, NamedController) else get_controller(order.controller)
    model = _KEPT.open(order.plan)
    weights = weights_of(model.describe())
    for what, ours, wanted in (
        (f"controller {named.name}", named.identity, order.identity),
        (f"model {order.plan.model}", weights, dict(order.weights)),
        ("few-shot pool", few_shot_pool(order.config), order.examples),
    ):
        if ours != wanted:
            raise UsageError(f"the worker on {platform.node()} has another {what} than this process")
    check_config(model, order.config)
    benchmark = shard.open()
    job = Job(order.plan, named, benchmark, shard.questions, model, Path(), order.tools, progress=False)
    episodes: list[Episode] = []
    run_questions(job, named, order.config, shard.questions, episodes.append)
    return episodes


def _spec(job: Job, named: NamedController) -> str | NamedController:
    """How a worker finds the controller: by name, by file, or as the function itself."""
    if named.identity != job.controller.identity:
        return named.name  # a control
    return named if "controller" in job.plan.objects else job.plan.controller


def _of_model(plan: Plan) -> Plan:
    return Plan(**{key: value for key, value in vars(plan).items() if key in MODEL_OPTIONS})


@dataclass
class _Kept:
    """The model of a worker process; another one takes its place."""

    plan: Plan | None = None
    model: Model | None = field(default=None, repr=False)

    def open(self, plan: Plan) -> Model:
        if self.model is None or plan != self.plan:
            if self.model is not None:
                self.model.close()
            self.model, self.plan = None, None
            self.model, self.plan = open_model(plan), plan
        return self.model


_KEPT = _Kept()  # workers are processes that Ray keeps from task to task
