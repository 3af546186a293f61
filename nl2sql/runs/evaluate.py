"""Runs a controller and its control over a benchmark: what is asked for is checked and opened here.

``evaluate`` is what ``nl2sql eval``, the scripts and the notebooks call; ``nl2sql.runs.carry_out`` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nl2sql.agents.controllers import get_controller, with_preset
from nl2sql.agents.record import Episode
from nl2sql.config import Config
from nl2sql.errors import UsageError
from nl2sql.eval.databases import check_ts
from nl2sql.interfaces import Benchmark, Gate, Model, Tool
from nl2sql.runs.carry_out import carry_out, carry_out_seeds
from nl2sql.runs.folder import exclusive, new_folder
from nl2sql.runs.job import Executor, Job
from nl2sql.runs.local import LOCAL
from nl2sql.runs.plan import Plan, check_config, given_model, open_benchmark, open_model, pick, read_plan
from nl2sql.runs.run import Run


def evaluate(
    benchmark: str | Path | Benchmark = "packaged",
    model: str | Model = "smollm2-135m",
    controller: str | Callable[..., Episode] = "react",
    *,
    config: Config | None = None,
    split: str | None = None,
    engine_url: str = "",
    limit: int | None = None,
    sample_seed: int = 0,
    seeds: Sequence[int] = (),
    device: str = "auto",
    dtype: str | None = None,
    batch_size: int = 32,
    engine: str = "auto",
    adapter: str = "auto",
    server: Sequence[str] = (),
    cache: bool | None = None,
    control: bool = True,
    equal_tokens: bool = False,
    tools: Mapping[str, Tool] | None = None,
    gates: Mapping[str, Gate] | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    executor: Executor = LOCAL,
) -> Run:
    """Run ``controller`` (and the single-shot control) on a benchmark and score it; returns the finished Run.

    benchmark, model: a name as on the command line, or an object. controller: a name, or any callable
    ``(question, resources, config) -> Episode``. config: what is set in it goes before the controller's preset.
    engine_url: the benchmark's databases on another engine (docs/benchmarks.md); TS is of SQLite files only.
    tools, gates: added to those of the loop. adapter: as for ``load_model``. server: ``KEY=VALUE`` options of an HTTP
    model. cache: answer repeated calls from the response cache; None = for a model given by name, not for an object.
    executor: carries out episodes and scoring: this process, or a cluster (``nl2sql.runs.distributed.Ray``).
    Raises UsageError for bad arguments and Cancelled when interrupted (finished episodes are kept).
    """
    given = {"benchmark": benchmark, "model": model, "controller": controller, "tools": tools, "gates": gates}
    objects = tuple(name for name, value in given.items() if value and not isinstance(value, (str, Path)))
    named = get_controller(controller if callable(controller) else str(controller))
    plan = Plan(
        benchmark=str(getattr(benchmark, "name", benchmark)),
        split=split,
        engine_url=engine_url,
        limit=limit,
        sample_seed=sample_seed,
        controller=named.name if "controller" in objects else str(controller),
        model=str(getattr(model, "name", model)),
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        engine=engine,
        adapter=adapter,
        server=tuple(server),
        cache="model" not in objects if cache is None else cache,
        control=control,
        equal_tokens=equal_tokens,
        seeds=tuple(seeds),
        objects=objects,
    )
    settings = with_preset(named, config)
    return start(plan, settings, given=given, out=out, progress=progress, executor=executor)


def start(
    plan: Plan,
    config: Config,
    *,
    given: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    executor: Executor = LOCAL,
) -> Run:
    """Carry out a plan in a new folder, once or once per seed."""
    executor.check(plan, config)
    if len(set(plan.seeds)) < len(plan.seeds):
        raise UsageError(f"--seeds {','.join(map(str, plan.seeds))} names a seed twice")
    objects = given or {}
    named = get_controller(objects.get("controller") or plan.controller)
    benchmark = open_benchmark(plan, objects)
    questions = pick(benchmark, plan)
    model = given_model(plan, objects["model"]) if "model" in plan.objects else open_model(plan)
    check_config(model, config)
    check_ts(benchmark, questions, config.eval)
    folder = new_folder(out, f"{named.name}-{benchmark.name}")
    job = Job(plan, named, benchmark, questions, model, folder, *_own(objects), progress, executor)
    with exclusive(folder):
        return carry_out_seeds(job, config) if plan.seeds else carry_out(job, config, folder)


def _own(objects: Mapping[str, Any]) -> tuple[Mapping[str, Tool], Mapping[str, Gate]]:
    """The tools and gates that a user has added."""
    return objects.get("tools") or {}, objects.get("gates") or {}


def resume(
    folder: str | Path,
    *,
    benchmark: Benchmark | None = None,
    model: Model | None = None,
    controller: Callable[..., Episode] | None = None,
    tools: Mapping[str, Tool] | None = None,
    gates: Mapping[str, Gate] | None = None,
    progress: bool = True,
    executor: Executor = LOCAL,
) -> Run:
    """Continue an interrupted run from its manifest; what is finished is not done again.

    A run that was given a Python object (benchmark, model, controller, tools, gates) needs it again.
    Raises UsageError when there is nothing to resume, or when what the run depends on has changed since.
    """
    path = Path(folder)
    plan, config = read_plan(path)
    executor.check(plan, config)
    objects = {"benchmark": benchmark, "model": model, "controller": controller, "tools": tools, "gates": gates}
    missing = [name for name in plan.objects if not objects[name]]
    if missing:
        call = f"nl2sql.resume({str(path)!r}, {', '.join(f'{name}=...' for name in missing)})"
        raise UsageError(f"{path} was started from Python; continue it there: {call}")
    named = get_controller(controller or plan.controller)
    opened = open_benchmark(plan, objects)
    backend = given_model(plan, model) if model is not None else open_model(plan)
    check_config(backend, config)
    job = Job(plan, named, opened, pick(opened, plan), backend, path, *_own(objects), progress, executor)
    with exclusive(path):
        return carry_out_seeds(job, config) if plan.seeds else carry_out(job, config, path)
