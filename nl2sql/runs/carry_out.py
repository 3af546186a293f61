"""A job carried out in a folder: many episodes at once, everything recorded, then scored.

Episodes are blocking functions in threads; the model back end batches what they ask for. An interrupted run keeps what
is finished and names the command that continues it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.controllers import SAMPLERS, NamedController, get_controller
from nl2sql.agents.record import json_text
from nl2sql.agents.resources import members
from nl2sql.benchmarks import left_out_counts
from nl2sql.config import Config
from nl2sql.errors import Cancelled, UsageError
from nl2sql.eval.settings import Settings
from nl2sql.runs.controls import FOLDERS
from nl2sql.runs.folder import FORMAT, RunFolder, environment, iter_jsonl, write_json
from nl2sql.runs.job import Job, Phase
from nl2sql.runs.plan import fingerprints, run_key
from nl2sql.runs.run import Run
from nl2sql.runs.summary import pool_seeds, summarise


def carry_out_seeds(job: Job, config: Config) -> Run:
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
    greedy = not config.react.do_sample and job.controller.name not in SAMPLERS
    report = pool_seeds(reports, greedy=greedy) | {"run": str(job.top)}
    write_json(job.top / "report.json", report)
    return Run(job.top, manifest, report)


def carry_out(job: Job, config: Config, folder: Path) -> Run:
    """Do what ``folder`` still owes, score everything, write ``report.json``; returns the Run."""
    started = time.perf_counter()
    described = job.model.describe()
    prints = fingerprints(job.benchmark, job.questions)
    resting_on = members(config, job.tools, job.gates)
    key_of = partial(run_key, model=described, prints=prints, members=resting_on)
    main_key = key_of(job.controller, config)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "key": main_key,
        "plan": asdict(job.plan),
        "config": config.model_dump(),
        "controller": {"name": job.controller.name, "identity": job.controller.identity},
        "model": described,
        "prompts": prompts.prompt_hashes(config.prompts),
        "members": resting_on,
        "questions": [question.id for question in job.questions],
        "left_out": left_out_counts(job.benchmark.questions),
        "fingerprints": prints,
        "environment": environment(),
    }
    _keep_manifest(folder, manifest)
    try:
        main = _phase(job, job.controller, config, folder, main_key)
        controls = _controls(job, config, folder, main, key_of)
        scoring = Settings(config.eval, executor=job.executor, progress=job.progress)
        report = summarise(manifest, job.benchmark, job.questions, main, controls, scoring)
    except KeyboardInterrupt:
        raise Cancelled(f"interrupted; {_kept(folder)}; continue with: {_continue(job)}") from None
    report["seconds"] = round(time.perf_counter() - started, 1)
    write_json(folder / "report.json", report)
    return Run(folder, manifest, report)


def _controls(
    job: Job, config: Config, folder: Path, main: RunFolder, key_of: Callable[[NamedController, Config], str]
) -> dict[str, RunFolder]:
    """The single-shot control: the loop's own limits, guardrails on; one greedy call gives both of its scores."""
    shot = get_controller("single_shot")
    if not job.plan.control or job.controller.identity == shot.identity:
        return {}
    fair = {"samples": 1, "guardrails": True, "max_new_tokens": config.react.max_new_tokens}
    once = config.model_copy(update={"single_shot": config.single_shot.model_copy(update=fair)})
    key = key_of(shot, once)
    found = {"single_shot": _phase(job, shot, once, folder / FOLDERS["single_shot"], key)}
    if job.plan.equal_tokens:
        samples = {"samples": _equal_samples(main, found["single_shot"])}
        many = once.model_copy(update={"single_shot": once.single_shot.model_copy(update=samples)})
        at = folder / FOLDERS["equal_tokens"]
        found["equal_tokens"] = _phase(job, shot, many, at, key_of(shot, many))
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
    changed = [part for part in parts if before.get(part) != now.get(part)]
    changed += _differing(before.get("members", {}), now["members"])
    names = _differing(before.get("fingerprints", {}), now["fingerprints"])
    changed += [name if name == "questions" else f"database {name}" for name in names]
    raise UsageError(
        f"{', '.join(changed) or 'the code'} changed since {folder} was started; start a new run with another --out"
    )


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [name for name in {**old, **new} if old.get(name) != new.get(name)]


def _kept(folder: Path) -> str:
    rows = sum(1 for _ in iter_jsonl(folder / "predictions.jsonl"))
    return f"{rows} questions are kept in {folder}"


def _continue(job: Job) -> str:
    if not job.plan.objects:
        return f"nl2sql eval --resume {job.top}"
    arguments = ", ".join(f"{name}={name}" for name in job.plan.objects)
    return f"nl2sql.resume({str(job.top)!r}, {arguments})"


def _phase(job: Job, named: NamedController, config: Config, folder: Path, key: str) -> RunFolder:
    """Run what is owed of one controller; appends to ``phases.jsonl`` how long it took."""
    folder.mkdir(parents=True, exist_ok=True)
    store = RunFolder(folder, key, job.top)
    done = store.done()
    owed = [question for question in job.questions if question.id not in done]
    store.start_clock()
    job.advance(len(job.questions) - len(owed))
    try:
        job.executor.episodes(Phase(job, named, config, owed, store.add))
    finally:
        if owed:
            store.tick()
        store.close()
    return store


def _equal_samples(main: RunFolder, shot: RunFolder) -> int:
    """How many samples cost what the loop cost, in prompt and completion tokens together (at least 1)."""

    def tokens(store: RunFolder) -> int:
        return sum(p["usage"]["prompt_tokens"] + p["usage"]["completion_tokens"] for p in store.predictions())

    return max(1, min(256, round(tokens(main) / max(1, tokens(shot)))))
