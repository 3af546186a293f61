"""The things that the cells of one command share, opened once: benchmark, questions, model, executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nl2sql.config.plugins import named_functions
from nl2sql.eval.databases import check_ts
from nl2sql.interfaces import Gate, Model, Tool
from nl2sql.runs.dialogues import history_of
from nl2sql.runs.local import LOCAL
from nl2sql.runs.plan import MODEL_OPTIONS, Plan, behind_cache, check_config, open_benchmark, open_model, pick

if TYPE_CHECKING:
    from nl2sql.runs.job import Cell, Executor


class Opened:
    """A benchmark with the questions of a plan, and the model of the cell at hand; closed as a block.

    objects: Python objects in place of names, by the names of ``Plan.objects``. A model that is opened here is closed
    when a cell wants another one, and at the end. ``history`` is that of turns of dialogues, "" for other questions.
    Raises UsageError, BenchmarkError.
    """

    def __init__(self, plan: Plan, objects: Mapping[str, Any] | None = None, executor: Executor = LOCAL) -> None:
        self.objects, self.executor = objects or {}, executor
        self.tools: Mapping[str, Tool] = named_functions("tools", plan.tools) | dict(self.objects.get("tools") or {})
        self.gates: Mapping[str, Gate] = named_functions("gates", plan.gates) | dict(self.objects.get("gates") or {})
        self.benchmark = open_benchmark(plan, self.objects)
        self.questions = pick(self.benchmark, plan)
        self.history = history_of(plan.history, self.benchmark.name, self.questions)
        self.turns: Mapping[str, Any] = {}  # what a trial of the loop's turns came to, for manifests
        self._model: Model | None = None
        self._options: tuple[str, ...] = ()

    def fit(self, cell: Cell) -> Model:
        """The model of a cell, after a check that its config can be carried out. Raises ModelError, UsageError."""
        if "model" in cell.plan.objects:
            model = behind_cache(cell.plan, self.objects["model"])
        else:
            options = model_options(cell.plan)
            if self._model is None or self._options != options:
                self.close()
                self._model, self._options = open_model(cell.plan), options
            model = self._model
        check_config(model, cell.config)
        check_ts(self.benchmark, self.questions, cell.config.eval)
        return model

    def close(self) -> None:
        """Close the model that was opened here. Idempotent."""
        if self._model is not None:
            self._model.close()
        self._model = None

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def model_options(plan: Plan) -> tuple[str, ...]:
    """What decides which model a plan opens, and how; cells that agree in it share one."""
    return tuple(str(getattr(plan, name)) for name in MODEL_OPTIONS)
