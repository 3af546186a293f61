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
from nl2sql.interfaces import DEFAULT_MODEL, Benchmark, Gate, Model, Tool
from nl2sql.runs.carry_out import carry_out
from nl2sql.runs.controls import control_stores
from nl2sql.runs.folder import (
    FORMAT,
    as_a_run_leaves,
    check_free,
    environment,
    locked,
    new_folder,
    read_manifest,
    write_json,
)
from nl2sql.runs.job import Executor
from nl2sql.runs.local import LOCAL
from nl2sql.runs.named import Trust, check_code, check_named, check_same, code_files
from nl2sql.runs.opened import Opened
from nl2sql.runs.plan import Plan, absolute, plan_record, read_plan
from nl2sql.runs.run import Run
from nl2sql.runs.seeds import cells_of, pooled
from nl2sql.runs.turns import settled


def evaluate(
    benchmark: str | Path | Benchmark = "packaged",
    model: str | Model = DEFAULT_MODEL,
    controller: str | Callable[..., Episode] = "react",
    *,
    config: Config | None = None,
    split: str | None = None,
    engine_url: str = "",
    history: str = "",
    limit: int | None = None,
    sample_seed: int = 0,
    seeds: Sequence[int] = (),
    turns: str = "",
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
    history: of turns of dialogues, ``gold`` (default) or ``own`` (docs/benchmarks.md); limit counts dialogues there.
    turns: auto finds out on ten questions whether ``react.native_tools`` is to be on (``runs.turns``).
    tools, gates: added to those of the loop. adapter: as for ``load_model``. server: ``KEY=VALUE`` options of an HTTP
    model. cache: answer repeated calls from the response cache; None = for a model given by name, not for an object.
    executor: carries out episodes and scoring: this process, or a cluster (``nl2sql.runs.distributed.Ray``).
    Raises UsageError for bad arguments and Cancelled when interrupted (finished episodes are kept).
    """
    arguments = {"benchmark": benchmark, "model": model, "controller": controller, "tools": tools, "gates": gates}
    objects = tuple(name for name, value in arguments.items() if value and not isinstance(value, (str, Path)))
    named = get_controller(controller if callable(controller) else str(controller))
    plan = Plan(
        benchmark=str(getattr(benchmark, "name", benchmark) if "benchmark" in objects else benchmark),
        split=split,
        engine_url=engine_url,
        history=history,
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
        turns=turns,
        objects=objects,
    )
    settings = with_preset(named, config, timed=False)
    return start(absolute(plan), settings, objects=arguments, out=out, progress=progress, executor=executor)


def start(
    plan: Plan,
    config: Config,
    *,
    objects: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    executor: Executor = LOCAL,
) -> Run:
    """Carry out a plan in a new folder, once or once per seed. ``objects``: in place of the names of a plan."""
    executor.check(plan, config)
    check_free(out)  # before a model is loaded
    if len(set(plan.seeds)) < len(plan.seeds):
        raise UsageError(f"--seeds {','.join(map(str, plan.seeds))} names a seed twice")
    objects = objects or {}
    named = get_controller(objects.get("controller") or plan.controller)
    if plan.equal_tokens and not control_stores(plan, named):
        why = f"--controller {named.name} has none" if plan.control else "--no-control leaves controls out"
        raise UsageError(f"--equal-tokens adds a control, and {why}; leave one of the two out")
    with Opened(plan, objects, executor) as opened:
        model = opened.fit(cells_of(plan, config)[0])  # a mistake leaves no folder behind
        config, opened.turns = settled(plan, config, opened, model, progress)
        folder = new_folder(out, f"{named.name}-{opened.benchmark.name}")
        return _carried_out(plan, config, folder, opened, progress)


def _carried_out(plan: Plan, config: Config, folder: Path, opened: Opened, progress: bool) -> Run:
    """The one cell of a run, or those of its seeds, carried out in ``folder``."""
    cells = cells_of(plan, config)
    if not plan.seeds:
        return carry_out(cells[0], folder, opened, progress=progress)
    with locked(folder):
        _keep_pooled_manifest(folder, plan, config, opened)
        runs = {cell.name: carry_out(cell, folder / cell.name, opened, top=folder, progress=progress) for cell in cells}
        run = pooled(folder, plan, config, runs)
        write_json(folder / "report.json", run.report)
    return run


def _keep_pooled_manifest(folder: Path, plan: Plan, config: Config, opened: Opened) -> None:
    """Write once what a run with seeds was; all that the seeds do not share is in their manifests."""
    if (folder / "manifest.json").exists() and "model" in read_manifest(folder):
        return
    manifest = {
        "format": FORMAT,
        "key": "",
        "plan": plan_record(plan),
        "config": config.model_dump(),
        "model": opened.fit(cells_of(plan, config)[0]).describe(),
        "questions": [question.id for question in opened.questions],
        "environment": environment(),
        **({"code": code} if (code := code_files(plan)) else {}),
    }
    write_json(folder / "manifest.json", manifest)


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
    trust: Trust | bool = False,
) -> Run:
    """Continue an interrupted run from its manifest; what is finished is not done again.

    A run that was given a Python object (benchmark, model, controller, tools, gates) needs it again. trust: see
    ``runs.named``. Raises UsageError when there is nothing to resume, when what the run depends on has changed since,
    or for what the folder alone may not name.
    """
    path = Path(folder)
    plan, config = read_plan(path)
    check_same(path, plan, trust)
    check_named(path, plan, config, trust)
    check_code(path, read_manifest(path), plan)
    executor.check(plan, config)
    objects = {"benchmark": benchmark, "model": model, "controller": controller, "tools": tools, "gates": gates}
    missing = [name for name in plan.objects if not objects[name]]
    if missing:
        call = f"nl2sql.resume({str(path)!r}, {', '.join(f'{name}=...' for name in missing)})"
        raise UsageError(f"{path} was started from Python; continue it there: {call}")
    with as_a_run_leaves(path), Opened(plan, objects, executor) as opened:
        return _carried_out(plan, config, path, opened, progress)
