"""A controller and its control over a benchmark: checked, opened, carried out as one trial, or as one per seed.

``evaluate`` is what ``nl2sql eval``, the scripts and the notebooks call. Episodes are blocking functions in threads;
the model back end batches what they ask for. Everything is recorded, then scored. An interrupted run keeps what is
finished and names the command that continues it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from nl2sql.agents import prompts
from nl2sql.agents.controllers import NamedController, get_controller, with_preset
from nl2sql.agents.record import Episode, json_text
from nl2sql.agents.resources import part_fingerprints
from nl2sql.agents.setup import link, open_task
from nl2sql.agents.writing import SQL_STOPS
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import Config
from nl2sql.errors import Cancelled, Nl2SqlError, UsageError, typed
from nl2sql.eval.settings import Settings
from nl2sql.interfaces import DEFAULT_MODEL, Benchmark, Gate, Model, Question, Resources, Tool
from nl2sql.runs.dialogues import RESOLVED_FIELDS, TURN_FIELDS, OwnHistories, as_resolved, resolve_usage
from nl2sql.runs.folder import (
    FOLDERS,
    FORMAT,
    RunFolder,
    as_a_run_leaves,
    check_free,
    count_lines,
    environment,
    locked,
    new_folder,
    read_manifest,
    seed_folder,
    write_json,
)
from nl2sql.runs.job import LOCAL, Executor, Job, RunContext, Trial, nobody, settled
from nl2sql.runs.plan import (
    RunSpec,
    Trust,
    absolute,
    check_code,
    check_named,
    check_same,
    code_files,
    control_stores,
    excluded_of,
    fingerprints,
    open_model,
    pick,
    plan_record,
    read_plan,
    run_key,
    said_again,
)
from nl2sql.runs.rescore import pooled
from nl2sql.runs.run import Run
from nl2sql.runs.summary import summarise


class Asked(TypedDict, total=False):
    """The fields of ``RunSpec`` that ``evaluate`` takes by name."""

    split: str | None
    engine_url: str
    history: str
    limit: int | None
    sample_seed: int
    seeds: Sequence[int]
    turns: str
    device: str
    dtype: str | None
    batch_size: int
    engine: str
    adapter: str
    server: Sequence[str]
    cache: bool
    control: bool
    equal_tokens: bool


def evaluate(
    benchmark: str | Path | Benchmark = "packaged",
    model: str | Model = DEFAULT_MODEL,
    controller: str | Callable[..., Episode] = "react",
    *,
    config: Config | None = None,
    tools: Mapping[str, Tool] | None = None,
    gates: Mapping[str, Gate] | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    executor: Executor = LOCAL,
    **asked: Unpack[Asked],
) -> Run:
    """Run ``controller`` (and the single-shot control) on a benchmark and score it; returns the finished Run.

    benchmark, model: a name as on the command line, or an object. controller: a name, or any callable
    ``(question, resources, config) -> Episode``. config: what is set in it goes before the controller's preset.
    tools, gates: added to those of the loop. executor: carries out episodes and scoring: this process, or a cluster
    (``nl2sql.runs.distributed.Ray``). asked: ``split``, ``limit``, ``sample_seed``, ``seeds``, ``history``,
    ``engine_url``, ``turns``, ``device``, ``dtype``, ``batch_size``, ``engine``, ``adapter``, ``server``, ``cache``,
    ``control``, ``equal_tokens``, as the options of ``nl2sql eval`` (docs/cli.md); ``limit`` counts dialogues where
    those are asked; without ``cache`` the calls of a model object are not answered from the response cache.
    Raises UsageError for bad arguments and Cancelled when interrupted (finished episodes are kept).
    """
    arguments = {"benchmark": benchmark, "model": model, "controller": controller, "tools": tools, "gates": gates}
    objects = tuple(name for name, value in arguments.items() if value and not isinstance(value, (str, Path)))
    named = get_controller(controller if callable(controller) else str(controller))
    options: dict[str, Any] = {"cache": "model" not in objects, **asked}
    for name in {"seeds", "server"} & options.keys():
        options[name] = tuple(options[name])
    plan = RunSpec(
        benchmark=str(getattr(benchmark, "name", benchmark) if "benchmark" in objects else benchmark),
        controller=named.name if "controller" in objects else str(controller),
        model=str(getattr(model, "name", model)),
        objects=objects,
        **options,
    )
    settings = with_preset(named, config, timed=False)
    return start(absolute(plan), settings, objects=arguments, out=out, progress=progress, executor=executor)


def start(
    plan: RunSpec,
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
    with RunContext(plan, objects, executor) as context:
        # A mistake leaves no folder behind.
        config, context.turns = settled(trials_of(plan, config)[0], context, progress)
        folder = new_folder(out, f"{named.name}-{context.benchmark.name}")
        return _run_plan(plan, config, folder, context, progress)


def trials_of(plan: RunSpec, config: Config) -> list[Trial]:
    """The one trial of a run, or one per seed; the control, which is greedy, runs with the first seed."""
    trials: list[Trial] = [] if plan.seeds else [Trial("", {}, plan, config)]
    for seed in plan.seeds:
        seeded = replace(plan, seeds=(), control=plan.control and not trials)
        trials.append(Trial(seed_folder(seed), {"seed": seed}, seeded, config.model_copy(update={"seed": seed})))
    return trials


def _manifest(job: Job, plan: RunSpec, config: Config, key: str = "") -> dict[str, Any]:
    code = code_files(plan)
    return {
        "format": FORMAT,
        "key": key,
        "plan": plan_record(plan),
        "config": config.model_dump(),
        "model": job.model.describe(),
        "questions": [question.id for question in job.questions],
        "environment": environment(),
        **({"code": code} if code else {}),
    }


def _run_plan(plan: RunSpec, config: Config, folder: Path, context: RunContext, progress: bool) -> Run:
    """The one trial of a run, or those of its seeds, carried out in ``folder``."""
    trials = trials_of(plan, config)
    if not plan.seeds:
        return run_trial(trials[0], folder, context, progress=progress)
    with locked(folder):
        if not (folder / "manifest.json").exists():  # of what the seeds do not share theirs tell
            write_json(folder / "manifest.json", _manifest(context.job(trials[0]), plan, config))
        options: dict[str, Any] = {"top": folder, "progress": progress}
        runs = {trial.name: run_trial(trial, folder / trial.name, context, **options) for trial in trials}
        run = pooled(folder, plan, config, runs)
        write_json(folder / "report.json", run.report)
    return run


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
    ``runs.plan``. Raises UsageError when there is nothing to resume, when what the run depends on has changed since,
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
    with as_a_run_leaves(path), RunContext(plan, objects, executor) as context:
        return _run_plan(plan, config, path, context, progress)


# ------------------------------------------------------------------- one trial in its folder


def run_trial(
    trial: Trial,
    folder: Path,
    context: RunContext,
    *,
    top: Path | None = None,
    progress: bool = False,
    advance: Callable[[int], object] = nobody,
) -> Run:
    """Do what ``folder`` still owes of a trial, score everything, write ``report.json``; returns the Run.

    top: the folder that ``nl2sql eval --resume`` takes; default: ``folder``. advance: see ``Job``. Raises UsageError
    where the folder holds another run, or another process is running in it; Cancelled when interrupted.
    """
    job = context.job(trial, progress=progress, advance=advance)
    folder.mkdir(exist_ok=True)
    with locked(folder, cut=True):
        return _Work(job, context, folder, top or folder).done()


class _Work:
    """One trial in its folder: ``job`` is that of the trial's own controller over all of its questions."""

    def __init__(self, job: Job, context: RunContext, folder: Path, top: Path) -> None:
        self.job, self.executor, self.folder, self.top = job, context.executor, folder, top
        self.history = context.history
        hashes = fingerprints(job.benchmark, job.questions)
        resting_on = part_fingerprints(job.config, job.tools, job.gates)
        self.key_of = partial(
            run_key, model=job.model.describe(), fingerprints=hashes, parts=resting_on, history=self.history
        )
        self.stores = control_stores(job.plan, job.controller)
        key = self.key_of(job.controller, job.config)
        self.manifest = _manifest(job, job.plan, job.config, key) | {
            "controller": {"name": job.controller.name, "identity": job.controller.identity},
            "controls": list(self.stores),
            "prompts": prompts.prompt_hashes(job.config.prompts),
            "members": resting_on,
            "left_out": excluded_of(job.benchmark, job.plan.history),
            "fingerprints": hashes,
            **({"turns": context.turns} if context.turns else {}),
        }

    def done(self) -> Run:
        started = time.perf_counter()
        _keep_manifest(self.folder, self.manifest)
        job = self.job
        try:
            main = self._episodes(job.controller, job.config, self.folder, job.questions, own=self.history == "own")
            controls = self._controls(main)
            scoring = Settings(job.config.eval, executor=self.executor, progress=job.progress)
            report = summarise(self.manifest, job.benchmark, job.questions, main, controls, scoring)
        except KeyboardInterrupt:
            kept = count_lines(self.folder / "predictions.jsonl")
            said = f"interrupted; {kept} questions are kept in {self.folder}"
            raise Cancelled(f"{said}; continue with: {_continue(job.plan, job.config, self.top)}") from None
        report["seconds"] = round(time.perf_counter() - started, 1)
        write_json(self.folder / "report.json", report)
        return Run(self.folder, self.manifest, report)

    def _episodes(
        self, named: NamedController, config: Config, folder: Path, questions: Sequence[Question], own: bool = False
    ) -> RunFolder:
        """Run what is owed of one controller; appends to ``phases.jsonl`` how long it took.

        own: a turn gets the history of what this controller answered before.
        """
        folder.mkdir(parents=True, exist_ok=True)
        store = RunFolder(folder, self.key_of(named, config), self.top)
        finished = store.done()
        histories = OwnHistories(questions, store.traces(TURN_FIELDS)) if own else None
        pending = histories.pending(finished) if histories else [q for q in questions if q.id not in finished]
        store.start_clock()
        self.job.advance(len(questions) - len(pending))
        if pending:
            job = replace(self.job, controller=named, config=config, questions=pending, keep=store.add, own=histories)
            try:
                self.executor.episodes(job)
            finally:
                store.tick()
                store.close()
        return store

    def _controls(self, main: RunFolder) -> dict[str, RunFolder]:
        """The single-shot control: the loop's own limits, guardrails on; one greedy call gives both of its scores."""
        stores: dict[str, RunFolder] = {}
        questions = self._for_controls(main) if self.stores else []
        limit = self.job.config.react.max_new_tokens
        options: dict[str, Any] = {"samples": 1, "guardrails": True, "max_new_tokens": limit}
        for name in self.stores:
            if name == "equal_tokens":
                options["samples"] = _equal_samples(main, stores["single_shot"], bool(self.history))
            shot = self.job.config.single_shot.model_copy(update=options)
            config = self.job.config.model_copy(update={"single_shot": shot})
            place = self.folder / FOLDERS[name]
            stores[name] = self._episodes(get_controller("single_shot"), config, place, questions)
        return stores

    def _for_controls(self, main: RunFolder) -> Sequence[Question]:
        """The questions as the controls get them: a turn with the history that it had, understood as it was."""
        questions = self.job.questions
        if not self.history:
            return questions
        if self.history == "own":
            histories = OwnHistories(questions, main.traces(TURN_FIELDS))
            questions = [histories.asked(question) for question in questions]
        return as_resolved(questions, main.traces(RESOLVED_FIELDS))


def _keep_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest once. Raises UsageError where the folder holds that of another run."""
    path = folder / "manifest.json"
    if not path.exists():
        write_json(path, manifest)
    before = read_manifest(folder)
    if before.get("key") == manifest["key"]:
        return
    now = json.loads(json_text(manifest))
    changed = [part for part in ("config", "controller", "model", "prompts") if before.get(part) != now.get(part)]
    for part, form in (("members", "{}"), ("fingerprints", "database {}")):
        then = before.get(part, {})
        differing = [name for name in {**then, **now[part]} if then.get(name) != now[part].get(name)]
        changed += [name if name == "questions" else form.format(name) for name in differing]
    raise UsageError(
        f"{', '.join(changed) or 'the code'} changed since {folder} was started; start a new run with another --out"
    )


def _continue(plan: RunSpec, config: Config, top: Path) -> str:
    """The command or the call that goes on with an interrupted run."""
    if not plan.objects:
        return f"nl2sql eval --resume {typed(top)}{said_again(plan, config)}"
    arguments = ", ".join(f"{name}={name}" for name in plan.objects)
    return f"nl2sql.resume({str(top)!r}, {arguments})"


def _equal_samples(main: RunFolder, shot: RunFolder, dialogues: bool) -> int:
    """How many samples cost what the loop cost, in prompt and completion tokens together (at least 1).

    What resolving a turn cost the loop, and the control where that had broken off, is paid once for all samples.
    """

    def tokens(store: RunFolder) -> int:
        return sum(p["usage"]["prompt_tokens"] + p["usage"]["completion_tokens"] for p in store.predictions())

    traces = [*main.traces(RESOLVED_FIELDS), *shot.traces(RESOLVED_FIELDS)] if dialogues else []
    once = sum(used.prompt_tokens + used.completion_tokens for used in map(resolve_usage, traces))
    return max(1, min(256, round((tokens(main) - once) / max(1, tokens(shot) - once))))


# --------------------------------------------------------------------- ``nl2sql eval --dry-run``

PROBED_QUESTIONS, PROBE_TOKENS, OBSERVATION_TOKENS = 10, 16, 60
SQL_CALLS = 3  # generate, one repair, and the fallback or a second repair


def most_calls(controller: str, config: Config) -> int:
    """The model calls that a question may take, as its controller is set: the guess before one is done."""
    asked = {"single_shot": config.single_shot.samples, "reflect": config.reflect.max_iterations}
    asked |= dict.fromkeys(("candidates", "best"), config.candidates.n)
    asked["vizql"] = 1 + (config.vizql.draft == "sql") + config.vizql.refinements
    return asked.get(controller, config.react.max_steps + SQL_CALLS)


def estimate(plan: RunSpec, config: Config) -> dict[str, Any]:
    """Episodes, tokens, and an estimated time on this machine, from a probe of a few seconds.

    Tokens assume that every step is used, every reply has full length, an observation ``OBSERVATION_TOKENS``, and
    nothing is reused between steps; the time takes half the reply length. Scoring time is not included.
    """
    benchmark = load_benchmark(plan.benchmark, split=plan.split)
    questions = pick(benchmark, plan)
    model = open_model(replace(plan, cache=False))  # a cached answer would time nothing
    opening = generate = counted = 0
    probe: list[dict[str, str]] | None = None
    for question in questions[:: max(1, len(questions) // PROBED_QUESTIONS)][:PROBED_QUESTIONS]:
        try:
            task = open_task(question, Resources(model, benchmark.database(question.db_id)), config)
        except Nl2SqlError:
            continue  # the run itself records it as a failed episode
        link(task)
        probe = prompts.generate_messages(task.nlq, task.schema_text_focus, None, config.prompts, task.examples)
        generate += model.count_tokens(probe)
        opening += model.count_tokens(prompts.react_messages(task.schema_text_full + task.schema_text_focus))
        counted += 1
    n, counted = len(questions), max(1, counted)
    calls = most_calls(plan.controller, config)
    written = calls if plan.controller in ("single_shot", "candidates", "best") else None
    stores = control_stores(plan, get_controller(plan.controller))
    loop, control = int(written is None), int(bool(stores))
    steps, reply, sql_calls = config.react.max_steps, config.react.max_new_tokens, SQL_CALLS
    if plan.controller in ("reflect", "vizql"):  # no turns of a loop: generations only
        steps, sql_calls = 0, calls
    grown = steps * opening / counted + (reply + OBSERVATION_TOKENS) * steps * (steps - 1) / 2
    seeds, equal = max(1, len(plan.seeds)), max(1, len(stores))
    loops = n * loop * seeds * equal  # the control at equal tokens costs what the loop costs
    shots = n * (control + (written or 0) * seeds * equal)
    prompt = loops * (grown + sql_calls * generate / counted) + shots * generate / counted
    completion = reply * (loops * (steps + sql_calls) + shots)
    expected: dict[str, Any] = {
        "questions": n,
        "episodes": n * (seeds + control * equal),
        "prompt_tokens": round(prompt),
        "completion_tokens": round(completion),
    }
    if probe is None or hasattr(model, "for_episode"):
        return expected
    started = time.perf_counter()
    rows = min(n, plan.batch_size)
    done = model.generate(probe, stop=SQL_STOPS, max_new_tokens=1, n=rows)
    prefill = time.perf_counter() - started
    started = time.perf_counter()
    done = model.generate(probe, max_new_tokens=PROBE_TOKENS, n=rows)
    decode = max(1e-3, time.perf_counter() - started - prefill)
    tokens = sum(completion.usage.completion_tokens for completion in done)
    per_prompt = prefill / max(1, sum(completion.usage.prompt_tokens for completion in done))
    seconds = prompt * per_prompt + completion / 2 * decode / max(1, tokens)
    return expected | {"seconds_estimated": round(seconds)}
