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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from nl2sql import prompts
from nl2sql.benchmarks import draw_sample, left_out_counts, load_benchmark, scorable
from nl2sql.config import Config, build_config
from nl2sql.controllers import NamedController, episode_model, get_controller, run_episode
from nl2sql.errors import Cancelled, UsageError
from nl2sql.interfaces import Benchmark, Episode, Model, Question, Resources
from nl2sql.runs import Run, RunFolder, content_key, environment, new_folder, question_key, write_json
from nl2sql.summary import pool_seeds, summarise


@dataclass(frozen=True)
class Plan:
    """All that decides a run, as the manifest keeps it; enough to resume it."""

    benchmark: str = "packaged"
    split: str | None = None
    limit: int | None = None
    sample_seed: int = 0
    controller: str = "react"
    model: str = "smollm2-135m"
    device: str = "auto"
    dtype: str | None = None
    batch_size: int = 16
    control: bool = True
    equal_tokens: bool = False


def evaluate(
    benchmark: str | Path | Benchmark = "packaged",
    model: str | Model = "smollm2-135m",
    controller: str | Callable[..., Episode] = "react",
    *,
    config: Config | None = None,
    split: str | None = None,
    limit: int | None = None,
    sample_seed: int = 0,
    device: str = "auto",
    dtype: str | None = None,
    batch_size: int = 16,
    control: bool = True,
    equal_tokens: bool = False,
    out: str | Path | None = None,
    progress: bool = True,
) -> Run:
    """Run ``controller`` (and the single-shot control) on a benchmark and score it; returns the finished Run.

    ``config`` is laid over the controller's preset only where it is None; pass ``load_config(base=preset)`` to
    change a preset. Raises UsageError for bad arguments and Cancelled when interrupted (finished episodes are kept).
    """
    named = get_controller(controller)
    plan = Plan(
        benchmark=str(getattr(benchmark, "name", benchmark)),
        split=split,
        limit=limit,
        sample_seed=sample_seed,
        controller=controller if isinstance(controller, str) else named.name,
        model=model if isinstance(model, str) else model.name,
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        control=control,
        equal_tokens=equal_tokens,
    )
    loaded = load_benchmark(benchmark, split=split) if isinstance(benchmark, (str, Path)) else benchmark
    questions = pick(loaded, plan)
    opened = open_model(plan) if isinstance(model, str) else model
    folder = new_folder(out, f"{named.name}-{loaded.name}")
    return carry_out(plan, named, config or build_config(named.preset), loaded, questions, opened, folder, progress)


def run_plan(
    plan: Plan, config: Config, seeds: Sequence[int] = (), *, out: Path | None = None, progress: bool = True
) -> dict[str, Any]:
    """Carry out a plan from scratch, once or once per seed (each an ordinary run in ``seed-N``); the report."""
    named = get_controller(plan.controller)
    benchmark = load_benchmark(plan.benchmark, split=plan.split)
    questions = pick(benchmark, plan)
    model = open_model(plan)
    folder = new_folder(out, f"{named.name}-{benchmark.name}")
    if not seeds:
        return carry_out(plan, named, config, benchmark, questions, model, folder, progress).report
    reports = {}
    for seed in seeds:
        seeded = config.model_copy(update={"seed": seed})
        at = new_folder(folder / f"seed-{seed}", "")
        reports[seed] = carry_out(plan, named, seeded, benchmark, questions, model, at, progress).report
    report = pool_seeds(reports) | {"run": str(folder)}
    write_json(folder / "report.json", report)
    return report


def resume(folder: str | Path, *, controller: Callable[..., Episode] | None = None, progress: bool = True) -> Run:
    """Continue an interrupted run from its manifest; what is finished is not done again.

    A run of a callable needs that same callable again. Raises UsageError when there is nothing to resume.
    """
    path = Path(folder)
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{path} holds no run (no manifest.json); start one with: nl2sql eval --out {path}") from None
    except ValueError:
        raise UsageError(f"{path / 'manifest.json'} is not JSON; start a new run with another --out") from None
    plan, config = Plan(**manifest["plan"]), build_config(manifest["config"])
    named = get_controller(controller or plan.controller)
    if named.identity != manifest["controller"]["identity"]:
        raise UsageError(f"controller {named.name!r} has changed since {path} was started; start a new run")
    loaded = load_benchmark(plan.benchmark, split=plan.split)
    return carry_out(plan, named, config, loaded, pick(loaded, plan), open_model(plan), path, progress)


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
    return load_model(plan.model, device=plan.device, dtype=plan.dtype, batch_size=plan.batch_size)


def carry_out(
    plan: Plan,
    named: NamedController,
    config: Config,
    benchmark: Benchmark,
    questions: Sequence[Question],
    model: Model,
    folder: Path,
    progress: bool = True,
) -> Run:
    """Do what ``folder`` still owes, score everything, write ``report.json``; returns the Run."""
    started = time.perf_counter()
    described = model.describe()
    manifest: dict[str, Any] = {
        "format": 1,
        "key": run_key(named, config, described, questions),
        "plan": asdict(plan),
        "config": config.model_dump(),
        "controller": {"name": named.name, "identity": named.identity},
        "model": described,
        "prompts": prompts.prompt_hashes(config.prompts),
        "questions": [question.id for question in questions],
        "left_out": left_out_counts(benchmark.questions),
        "fingerprints": _fingerprints(benchmark, questions),
        "environment": environment(),
    }
    write_json(folder / "manifest.json", manifest)
    main = _phase(named, config, benchmark, questions, model, folder, manifest["key"], progress)
    controls: dict[str, RunFolder] = {}
    if plan.control and named.name != "single_shot":
        shot = get_controller("single_shot")
        once = config.model_copy(update={"single_shot": config.single_shot.model_copy(update={"samples": 1})})
        key = run_key(shot, once, described, questions)
        controls["single_shot"] = _phase(shot, once, benchmark, questions, model, folder / "control", key, progress)
        if plan.equal_tokens:
            samples = _equal_samples(main, controls["single_shot"])
            shots = once.single_shot.model_copy(update={"samples": samples})
            many = once.model_copy(update={"single_shot": shots})
            key = run_key(shot, many, described, questions)
            at = folder / "control_equal_tokens"
            controls["equal_tokens"] = _phase(shot, many, benchmark, questions, model, at, key, progress)
    report = summarise(manifest, config, benchmark, questions, main, controls, progress=progress)
    report["seconds"] = round(time.perf_counter() - started, 1)
    write_json(folder / "report.json", report)
    return Run(folder, manifest, report)


def run_key(named: NamedController, config: Config, model: Mapping[str, Any], questions: Sequence[Question]) -> str:
    """Content key of one controller under one config on one model over these questions."""
    weights = {k: model.get(k) for k in ("name", "revision", "dtype")}
    asked = [question_key(question) for question in questions]
    hashes = prompts.prompt_hashes(config.prompts)
    return content_key(named.name, named.identity, config.model_dump(exclude={"eval"}), weights, hashes, asked)


def _phase(
    named: NamedController,
    config: Config,
    benchmark: Benchmark,
    questions: Sequence[Question],
    model: Model,
    folder: Path,
    key: str,
    progress: bool,
) -> RunFolder:
    """Run what is owed of one controller; appends to ``phases.jsonl`` how long it took."""
    folder.mkdir(parents=True, exist_ok=True)
    store = RunFolder(folder, key)
    done = store.done()
    owed = [question for question in questions if question.id not in done]
    started = time.perf_counter()
    cancel = threading.Event()
    try:
        run_questions(named, owed, benchmark, model, config, store.add, cancel=cancel, progress=progress)
    except KeyboardInterrupt:
        finished = len(store.done())
        top = folder.parent if folder.name.startswith("control") else folder
        raise Cancelled(
            f"interrupted: {finished} of {len(questions)} questions of {named.name} are kept in {folder}; "
            f"continue with: nl2sql eval --resume {top}"
        ) from None
    finally:
        if owed:
            store.add_seconds(time.perf_counter() - started)
        store.close()
    return store


def run_questions(
    named: NamedController,
    questions: Sequence[Question],
    benchmark: Benchmark,
    model: Model,
    config: Config,
    keep: Callable[[Episode], None],
    *,
    cancel: threading.Event,
    progress: bool = True,
) -> None:
    """Run episodes in as many threads as the model batches; ``keep`` gets each as it ends.

    Raises KeyboardInterrupt after the running episodes were cancelled.
    """

    def one(question: Question) -> None:
        if cancel.is_set():
            return

        def resources() -> Resources:
            mine = episode_model(model, question, named.name)
            return Resources(mine, benchmark.database(question.db_id), cancel=cancel)

        try:
            episode = run_episode(named, question, resources, config)
        except Cancelled:
            return
        keep(episode)

    if not questions:
        return
    workers = min(len(questions), max(1, int(getattr(model, "batch_size", 8))))
    bar = tqdm(total=len(questions), desc=named.name, unit="question", disable=not progress)
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


def _fingerprints(benchmark: Benchmark, questions: Sequence[Question]) -> dict[str, str]:
    """Content hashes of the benchmark's questions and of the databases that this run uses."""
    used = {question.db_id for question in questions}
    return {key: value for key, value in benchmark.fingerprints().items() if key == "questions" or key in used}
