"""A cell carried out in its folder: many episodes at once, everything recorded, then scored.

Episodes are blocking functions in threads; the model back end batches what they ask for. An interrupted run keeps what
is finished and names the command that continues it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.controllers import NamedController, get_controller
from nl2sql.agents.record import json_text
from nl2sql.agents.resources import members
from nl2sql.config import Config
from nl2sql.errors import Cancelled, UsageError, typed
from nl2sql.eval.settings import Settings
from nl2sql.interfaces import Question
from nl2sql.runs.dialogues import RESOLVED_FIELDS, TURN_FIELDS, OwnHistories, as_resolved, resolve_usage
from nl2sql.runs.folder import FOLDERS, FORMAT, RunFolder, environment, exclusive, iter_jsonl, read_manifest, write_json
from nl2sql.runs.job import Cell, Job, Opened, no_bar
from nl2sql.runs.named import code_files, said_again
from nl2sql.runs.plan import Plan, control_stores, fingerprints, left_out_of, plan_record, run_key
from nl2sql.runs.run import Run
from nl2sql.runs.summary import summarise


def carry_out(
    cell: Cell,
    folder: Path,
    opened: Opened,
    *,
    top: Path | None = None,
    progress: bool = False,
    advance: Callable[[int], object] = no_bar,
) -> Run:
    """Do what ``folder`` still owes of a cell, score everything, write ``report.json``; returns the Run.

    top: the folder that ``nl2sql eval --resume`` takes; default: ``folder``. advance: see ``Job``. Raises UsageError
    where the folder holds another run, or another process is running in it; Cancelled when interrupted.
    """
    model = opened.fit(cell)
    folder.mkdir(exist_ok=True)
    with exclusive(folder):
        job = Job(
            plan=cell.plan,
            controller=get_controller(opened.objects.get("controller") or cell.plan.controller),
            config=cell.config,
            questions=opened.questions,
            benchmark=opened.benchmark,
            model=model,
            tools=opened.tools,
            gates=opened.gates,
            progress=progress,
            advance=advance,
        )
        return _Work(job, opened, folder, top or folder).done()


class _Work:
    """One cell in its folder: ``job`` is that of the cell's own controller over all of its questions."""

    def __init__(self, job: Job, opened: Opened, folder: Path, top: Path) -> None:
        self.job, self.executor, self.folder, self.top = job, opened.executor, folder, top
        self.history = opened.history
        described = job.model.describe()
        prints = fingerprints(job.benchmark, job.questions)
        resting_on = members(job.config, job.tools, job.gates)
        self.key_of = partial(run_key, model=described, prints=prints, members=resting_on, history=self.history)
        self.stores = control_stores(job.plan, job.controller)
        self.manifest: dict[str, Any] = {
            "format": FORMAT,
            "key": self.key_of(job.controller, job.config),
            "plan": plan_record(job.plan),
            "config": job.config.model_dump(),
            "controller": {"name": job.controller.name, "identity": job.controller.identity},
            "controls": list(self.stores),
            "model": described,
            "prompts": prompts.prompt_hashes(job.config.prompts),
            "members": resting_on,
            "questions": [question.id for question in job.questions],
            "left_out": left_out_of(job.benchmark, job.plan.history),
            "fingerprints": prints,
            "environment": environment(),
            **({"code": code} if (code := code_files(job.plan)) else {}),
            **({"turns": opened.turns} if opened.turns else {}),
        }

    def done(self) -> Run:
        """The finished Run."""
        started = time.perf_counter()
        _keep_manifest(self.folder, self.manifest)
        job = self.job
        try:
            main = self._episodes(job.controller, job.config, self.folder, job.questions, own=self.history == "own")
            controls = self._controls(main)
            scoring = Settings(job.config.eval, executor=self.executor, progress=job.progress)
            report = summarise(self.manifest, job.benchmark, job.questions, main, controls, scoring)
        except KeyboardInterrupt:
            kept = sum(1 for _ in iter_jsonl(self.folder / "predictions.jsonl"))
            raise Cancelled(
                f"interrupted; {kept} questions are kept in {self.folder}; continue with: "
                f"{_continue(job.plan, job.config, self.top)}"
            ) from None
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
        owed = histories.owed(finished) if histories else [q for q in questions if q.id not in finished]
        store.start_clock()
        self.job.advance(len(questions) - len(owed))
        try:
            if owed:
                job = replace(self.job, controller=named, config=config, questions=owed, keep=store.add, own=histories)
                self.executor.episodes(job)
        finally:
            if owed:
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
        return
    before = read_manifest(folder)
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


def _continue(plan: Plan, config: Config, top: Path) -> str:
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
