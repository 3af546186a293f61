"""Runs a controller and its control over a benchmark: many episodes at once, everything recorded, then scored.

``evaluate`` is what ``nl2sql eval``, the scripts and the notebooks call. Episodes are blocking functions in threads;
the model back end batches what they ask for. An interrupted run keeps what is finished and names the command that
continues it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from nl2sql import prompts
from nl2sql.benchmarks import draw_sample, left_out_counts, load_benchmark, scorable
from nl2sql.config import Config, build_config, merge
from nl2sql.controllers import NamedController, check_model, episode_model, get_controller, run_episode
from nl2sql.errors import Cancelled, Nl2SqlError, UsageError
from nl2sql.interfaces import Benchmark, Episode, Model, Question, Resources, Tool
from nl2sql.repair.in_loop import check_corpus
from nl2sql.runs import (
    Run,
    RunFolder,
    content_key,
    environment,
    exclusive,
    new_folder,
    question_key,
    read_jsonl,
    write_json,
)
from nl2sql.summary import pool_seeds, summarise
from nl2sql.trace import json_text

FORMAT = 1


@dataclass(frozen=True)
class Plan:
    """All that decides a run, as the manifest keeps it; enough to resume it.

    ``objects`` names what was given as a Python object (benchmark, model, controller) and must be given again.
    """

    benchmark: str = "packaged"
    split: str | None = None
    limit: int | None = None
    sample_seed: int = 0
    controller: str = "react"
    model: str = "smollm2-135m"
    device: str = "auto"
    dtype: str | None = None
    batch_size: int = 32
    engine: str = "auto"
    server: tuple[str, ...] = ()  # KEY=VALUE options of an HTTP model
    cache: bool = True  # answer repeated calls of a model opened here from the response cache
    control: bool = True
    equal_tokens: bool = False
    seeds: tuple[int, ...] = ()
    objects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """A plan with everything opened: what one run, or each seed of it, works with."""

    plan: Plan
    controller: NamedController
    benchmark: Benchmark
    questions: Sequence[Question]
    model: Model
    top: Path
    tools: Mapping[str, Tool]
    progress: bool


def evaluate(
    benchmark: str | Path | Benchmark = "packaged",
    model: str | Model = "smollm2-135m",
    controller: str | Callable[..., Episode] = "react",
    *,
    config: Config | None = None,
    split: str | None = None,
    limit: int | None = None,
    sample_seed: int = 0,
    seeds: Sequence[int] = (),
    device: str = "auto",
    dtype: str | None = None,
    batch_size: int = 32,
    engine: str = "auto",
    server: Sequence[str] = (),
    cache: bool | None = None,
    control: bool = True,
    equal_tokens: bool = False,
    tools: Mapping[str, Tool] | None = None,
    out: str | Path | None = None,
    progress: bool = True,
) -> Run:
    """Run ``controller`` (and the single-shot control) on a benchmark and score it; returns the finished Run.

    benchmark, model: a name as on the command line, or an object. controller: a name, or any callable
    ``(question, resources, config) -> Episode``. config: what is set in it goes before the controller's preset.
    tools: added to the loop's action space. server: ``KEY=VALUE`` options of an HTTP model. cache: answer repeated
    calls from the response cache; None = for a model given by name, not for an object. Raises UsageError for bad
    arguments and Cancelled when interrupted (finished episodes are kept).
    """
    given = {"benchmark": benchmark, "model": model, "controller": controller}
    objects = tuple(name for name, value in given.items() if not isinstance(value, (str, Path)))
    named = get_controller(controller if callable(controller) else str(controller))
    plan = Plan(
        benchmark=str(getattr(benchmark, "name", benchmark)),
        split=split,
        limit=limit,
        sample_seed=sample_seed,
        controller=named.name if "controller" in objects else str(controller),
        model=str(getattr(model, "name", model)),
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        engine=engine,
        server=tuple(server),
        cache="model" not in objects if cache is None else cache,
        control=control,
        equal_tokens=equal_tokens,
        seeds=tuple(seeds),
        objects=objects,
    )
    settings = with_preset(named, config)
    return start(plan, settings, given=given, tools=tools, out=out, progress=progress)


def with_preset(named: NamedController, config: Config | None) -> Config:
    """The controller's preset, and over it what was set in ``config``."""
    if config is not None and not isinstance(config, Config):
        raise UsageError(f"config is a {type(config).__name__}; pass nl2sql.Config(react=nl2sql.ReactConfig(...))")
    data = json.loads(json.dumps(named.preset))
    merge(data, config.model_dump(exclude_unset=True) if config else {})
    return build_config(data)


def start(
    plan: Plan,
    config: Config,
    *,
    given: Mapping[str, Any] | None = None,
    tools: Mapping[str, Tool] | None = None,
    out: str | Path | None = None,
    progress: bool = True,
) -> Run:
    """Carry out a plan in a new folder, once or once per seed."""
    if len(set(plan.seeds)) < len(plan.seeds):
        raise UsageError(f"--seeds {','.join(map(str, plan.seeds))} names a seed twice")
    objects = given or {}
    named = get_controller(objects.get("controller") or plan.controller)
    benchmark = _benchmark(plan, objects)
    questions = pick(benchmark, plan)
    model = given_model(plan, objects["model"]) if "model" in plan.objects else open_model(plan)
    check_model(model, config)
    folder = new_folder(out, f"{named.name}-{benchmark.name}")
    job = Job(plan, named, benchmark, questions, model, folder, tools or {}, progress)
    with exclusive(folder):
        return _carry_out_seeds(job, config) if plan.seeds else carry_out(job, config, folder)


def resume(
    folder: str | Path,
    *,
    benchmark: Benchmark | None = None,
    model: Model | None = None,
    controller: Callable[..., Episode] | None = None,
    tools: Mapping[str, Tool] | None = None,
    progress: bool = True,
) -> Run:
    """Continue an interrupted run from its manifest; what is finished is not done again.

    A run that was given a Python object (benchmark, model, controller) needs it again. Raises UsageError when there
    is nothing to resume, or when what the run depends on has changed since.
    """
    path = Path(folder)
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        kept: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in manifest["plan"].items()}
        plan = Plan(**kept)
        config = build_config(manifest["config"])
    except (FileNotFoundError, NotADirectoryError):
        new = "" if path.is_dir() and any(path.iterdir()) else f"; start one with: nl2sql eval --out {path}"
        raise UsageError(f"{path} holds no run (no manifest.json){new}") from None
    except (ValueError, TypeError, KeyError):
        raise UsageError(
            f"{path / 'manifest.json'} is not a manifest of this version; start a new run with another --out"
        ) from None
    objects = {"benchmark": benchmark, "model": model, "controller": controller}
    missing = [name for name in plan.objects if objects[name] is None]
    if missing:
        call = f"nl2sql.resume({str(path)!r}, {', '.join(f'{name}=...' for name in missing)})"
        raise UsageError(f"{path} was started from Python; continue it there: {call}")
    named = get_controller(controller or plan.controller)
    opened = _benchmark(plan, objects)
    backend = given_model(plan, model) if model is not None else open_model(plan)
    check_model(backend, config)
    check_corpus(config.repair)
    job = Job(plan, named, opened, pick(opened, plan), backend, path, tools or {}, progress)
    with exclusive(path):
        return _carry_out_seeds(job, config) if plan.seeds else carry_out(job, config, path)


def _benchmark(plan: Plan, objects: Mapping[str, Any]) -> Benchmark:
    if "benchmark" not in plan.objects:
        return load_benchmark(plan.benchmark, split=plan.split)
    found: Benchmark = objects["benchmark"]
    if plan.split is not None:
        raise UsageError("split= goes with a benchmark's name; narrow a benchmark object before you pass it")
    return found


def pick(benchmark: Benchmark, plan: Plan) -> list[Question]:
    """The questions of a plan: without the items that scores leave out, then the seeded sample."""
    usable = [question for question in benchmark.questions if scorable(question)]
    if not usable:
        raise UsageError(f"benchmark {benchmark.name!r} has no scorable questions in split {plan.split or 'all'!r}")
    return draw_sample(usable, plan.limit, plan.sample_seed)


def open_model(plan: Plan) -> Model:
    from nl2sql.models import load_model

    if plan.batch_size < 1:
        raise UsageError(f"--batch-size {plan.batch_size}: expected 1 or more")
    return load_model(
        plan.model,
        device=plan.device,
        dtype=plan.dtype,
        batch_size=plan.batch_size,
        engine=plan.engine,
        server=plan.server,
        cache=plan.cache,
    )


def given_model(plan: Plan, model: Model) -> Model:
    """A model object as the plan wants it: behind the response cache or as it is."""
    if not plan.cache:
        return model
    from nl2sql.models.response_cache import cached

    return cached(model)


def _carry_out_seeds(job: Job, config: Config) -> Run:
    """Each seed is an ordinary run in ``seed-N``; the control, which is greedy, runs with the first only."""
    manifest = {"format": FORMAT, "key": "", "plan": asdict(job.plan), "config": config.model_dump()}
    write_json(job.top / "manifest.json", manifest)
    reports: dict[int, dict[str, Any]] = {}
    for seed in job.plan.seeds:
        plan = replace(job.plan, seeds=(), control=job.plan.control and not reports)
        folder = job.top / f"seed-{seed}"
        folder.mkdir(exist_ok=True)
        seeded = config.model_copy(update={"seed": seed})
        reports[seed] = carry_out(replace(job, plan=plan), seeded, folder).report
    report = pool_seeds(reports) | {"run": str(job.top)}
    if not config.react.do_sample and job.controller.name != "single_shot":
        report["warnings"].append("greedy decoding: the seeds give identical runs; sample with -c react.do_sample=true")
    write_json(job.top / "report.json", report)
    return Run(job.top, manifest, report)


def carry_out(job: Job, config: Config, folder: Path) -> Run:
    """Do what ``folder`` still owes, score everything, write ``report.json``; returns the Run."""
    started = time.perf_counter()
    described = job.model.describe()
    prints = fingerprints(job.benchmark, job.questions)
    main_key = run_key(job.controller, config, described, prints)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "key": main_key,
        "plan": asdict(job.plan),
        "config": config.model_dump(),
        "controller": {"name": job.controller.name, "identity": job.controller.identity},
        "model": described,
        "prompts": prompts.prompt_hashes(config.prompts),
        "questions": [question.id for question in job.questions],
        "left_out": left_out_counts(job.benchmark.questions),
        "fingerprints": prints,
        "environment": environment(),
    }
    _keep_manifest(folder, manifest)
    try:
        main = _phase(job, job.controller, config, folder, main_key)
        controls = _controls(job, config, folder, main, described, prints)
        report = summarise(manifest, config, job.benchmark, job.questions, main, controls, progress=job.progress)
    except KeyboardInterrupt:
        raise Cancelled(f"interrupted; {_kept(folder)}; continue with: {_continue(job)}") from None
    report["seconds"] = round(time.perf_counter() - started, 1)
    write_json(folder / "report.json", report)
    return Run(folder, manifest, report)


def _controls(
    job: Job, config: Config, folder: Path, main: RunFolder, model: Mapping[str, Any], prints: Mapping[str, str]
) -> dict[str, RunFolder]:
    """The single-shot control: the loop's own limits, guardrails on; one greedy call gives both of its scores."""
    shot = get_controller("single_shot")
    if not job.plan.control or job.controller.identity == shot.identity:
        return {}
    fair = {"samples": 1, "guardrails": True, "max_new_tokens": config.react.max_new_tokens}
    once = config.model_copy(update={"single_shot": config.single_shot.model_copy(update=fair)})
    key = run_key(shot, once, model, prints)
    found = {"single_shot": _phase(job, shot, once, folder / "control", key)}
    if job.plan.equal_tokens:
        samples = {"samples": _equal_samples(main, found["single_shot"])}
        many = once.model_copy(update={"single_shot": once.single_shot.model_copy(update=samples)})
        at = folder / "control_equal_tokens"
        found["equal_tokens"] = _phase(job, shot, many, at, run_key(shot, many, model, prints))
    return found


def _keep_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest once. Raises UsageError where the folder holds that of another run."""
    path = folder / "manifest.json"
    if not path.exists():
        write_json(path, manifest)
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    if before.get("key") == manifest["key"]:
        return
    parts = ("config", "controller", "model", "prompts")
    now = json.loads(json_text(manifest))
    changed = [part for part in parts if before.get(part) != now[part]]
    old, new = before.get("fingerprints", {}), now["fingerprints"]
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    changed += [name if name == "questions" else f"database {name}" for name in names]
    raise UsageError(
        f"{', '.join(changed) or 'the code'} changed since {folder} was started; start a new run with another --out"
    )


def _kept(folder: Path) -> str:
    rows = len(read_jsonl(folder / "predictions.jsonl"))
    return f"{rows} questions are kept in {folder}"


def _continue(job: Job) -> str:
    if not job.plan.objects:
        return f"nl2sql eval --resume {job.top}"
    arguments = ", ".join(f"{name}={name}" for name in job.plan.objects)
    return f"nl2sql.resume({str(job.top)!r}, {arguments})"


def run_key(named: NamedController, config: Config, model: Mapping[str, Any], prints: Mapping[str, str]) -> str:
    """Content key of one controller under one config on one model over these questions and databases."""
    weights = {k: model.get(k) for k in ("name", "revision", "dtype")}
    hashes = prompts.prompt_hashes(config.prompts)
    return content_key(named.name, named.identity, config.model_dump(exclude={"eval"}), weights, hashes, dict(prints))


def _phase(job: Job, named: NamedController, config: Config, folder: Path, key: str) -> RunFolder:
    """Run what is owed of one controller; appends to ``phases.jsonl`` how long it took."""
    folder.mkdir(parents=True, exist_ok=True)
    store = RunFolder(folder, key, job.top)
    done = store.done()
    owed = [question for question in job.questions if question.id not in done]
    started = time.perf_counter()
    try:
        run_questions(job, named, config, owed, store.add)
    finally:
        if owed:
            store.add_seconds(time.perf_counter() - started)
        store.close()
    return store


def run_questions(
    job: Job, named: NamedController, config: Config, questions: Sequence[Question], keep: Callable[[Episode], None]
) -> None:
    """Run episodes in as many threads as the model batches; ``keep`` gets each as it ends.

    Raises KeyboardInterrupt after the running episodes were cancelled.
    """
    cancel = threading.Event()

    def one(question: Question) -> None:
        if cancel.is_set():
            return

        def resources() -> Resources:
            mine = episode_model(job.model, question, named.name)
            return Resources(mine, job.benchmark.database(question.db_id), job.tools, cancel=cancel)

        episode = run_episode(named, question, resources, config)
        if not cancel.is_set():  # an episode that was stopped by the user is owed, not kept
            keep(episode)

    if not questions:
        return
    workers = min(len(questions), max(1, int(getattr(job.model, "batch_size", 8))))
    bar = tqdm(total=len(questions), desc=named.name, unit="question", disable=not job.progress)
    with bar, ThreadPoolExecutor(workers, thread_name_prefix="episode") as pool:
        futures = [pool.submit(one, question) for question in questions]
        try:
            for future in as_completed(futures):
                future.result()
                bar.update()
        except BaseException:
            cancel.set()
            for future in futures:
                future.cancel()
            raise


def _equal_samples(main: RunFolder, shot: RunFolder) -> int:
    """How many samples cost what the loop cost, in prompt and completion tokens together (at least 1)."""

    def tokens(store: RunFolder) -> int:
        return sum(p["usage"]["prompt_tokens"] + p["usage"]["completion_tokens"] for p in store.predictions())

    return max(1, min(256, round(tokens(main) / max(1, tokens(shot)))))


def fingerprints(benchmark: Benchmark, questions: Sequence[Question]) -> dict[str, str]:
    """Content hashes: of the questions, and of each database they ask; one that cannot be read says why."""
    found = {"questions": content_key([question_key(question) for question in questions])}
    for db_id in sorted({question.db_id for question in questions}):
        try:
            found[db_id] = benchmark.database(db_id).fingerprint
        except Nl2SqlError as error:
            found[db_id] = f"unreadable: {error}"
    return found
