"""What a worker process does with a shard: its episodes, or its verdicts. The model stays open for its next shards."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from nl2sql.agents.controllers import NamedController, get_controller
from nl2sql.agents.record import Episode
from nl2sql.agents.resources import members
from nl2sql.config import Config
from nl2sql.errors import UsageError
from nl2sql.eval.scores import Judged
from nl2sql.eval.scoring import judge
from nl2sql.eval.settings import Settings
from nl2sql.interfaces import Gate, Model, Tool
from nl2sql.runs.distributed.shards import Shard
from nl2sql.runs.job import Job
from nl2sql.runs.local import LOCAL
from nl2sql.runs.plan import Plan, check_config, open_model, weights_of

if TYPE_CHECKING:
    from nl2sql.databases.sqlite.pool import QueryPool


@dataclass(frozen=True)
class Assignment:
    """What is the same for all shards of a phase: a controller under a config on a model."""

    plan: Plan  # the model's options; all else as it comes
    controller: str | NamedController  # a name or FILE.py:function, or the function with its name
    config: Config
    prints: Mapping[str, Any]  # ``prints_of`` in the driver
    tools: Mapping[str, Tool]
    gates: Mapping[str, Gate]


def prints_of(
    plan: Plan,
    named: NamedController,
    model: Model,
    config: Config,
    tools: Mapping[str, Tool],
    gates: Mapping[str, Gate],
) -> dict[str, Any]:
    """What answers rest on beside the databases -> its content, as this process finds it."""
    places = {  # where the user finds what another worker has otherwise
        "few_shot_pool": f"few-shot pool {config.few_shot.pool}",
        "corpus": f"corpus {config.repair.corpus}",
        "knowledge": f"knowledge {config.knowledge.file}",
        "verified_queries": f"verified queries {config.knowledge.verified}",
        "vizql_source": f"data source {config.vizql.source}",
        "question_model": f"question model {config.candidates.question_model} with adapter "
        f"{config.candidates.question_adapter}",
    }
    return {
        f"controller {named.name}": named.identity,
        f"model {plan.model}": weights_of(model.describe()),
        **{places.get(name, name): content for name, content in members(config, tools, gates).items()},
    }


def run_shard(order: Assignment, shard: Shard) -> list[Episode]:
    """The episodes of a shard, as many at once as the model batches.

    Raises UsageError where a file or a model that answers rest on is another one here than in the driver.
    """
    named = order.controller if isinstance(order.controller, NamedController) else get_controller(order.controller)
    model = _KEPT.open(order.plan)
    check_prints(order.prints, prints_of(order.plan, named, model, order.config, order.tools, order.gates))
    check_config(model, order.config)
    episodes: list[Episode] = []
    asked = (order.plan, named, order.config, shard.questions, shard.open(), model, order.tools, order.gates)
    LOCAL.episodes(Job(*asked, keep=episodes.append))
    return episodes


def check_prints(wanted: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raises UsageError, with the name of the file or model, where the worker's content is not the driver's."""
    for what in wanted:
        if ours.get(what) != wanted[what]:
            raise UsageError(
                f"the worker on {platform.node()} has another {what} than this process; copy it to that node, or keep "
                "it in a folder that all nodes share, under the same path"
            )


def judge_shard(shard: Shard, predictions: Mapping[str, Mapping[str, str]], settings: Settings) -> Judged:
    """The verdicts on a shard, with one query process: a worker has one core."""
    return judge(shard.open(), shard.questions, predictions, replace(settings, pool=_pool()))


@cache
def _pool() -> QueryPool:
    """One query process per worker, kept from shard to shard; it ends with the worker."""
    from nl2sql.databases.sqlite.pool import QueryPool

    return QueryPool(workers=1)


@dataclass
class _Kept:
    """The model of a worker process; another one takes its place."""

    plan: Plan | None = None
    model: Model | None = field(default=None, repr=False)

    def open(self, plan: Plan) -> Model:
        """The model of ``plan``. Raises what opening it raises."""
        if self.model is None or plan != self.plan:
            if self.model is not None:
                self.model.close()
            self.model, self.plan = None, None
            self.model, self.plan = open_model(plan), plan
        return self.model


_KEPT = _Kept()  # workers are processes that Ray keeps from task to task
