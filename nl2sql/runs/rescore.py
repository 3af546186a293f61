"""Scoring a run folder again, without a model: after a change of the scoring, of golds, or of the number of replicas.

``nl2sql runs replay`` and ``replay`` read the predictions that are there and write ``report.json`` anew; another
scoring than the run's own goes beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nl2sql.agents.controllers import SAMPLERS
from nl2sql.config import Config, EvalConfig, config_keys, load_config
from nl2sql.errors import UsageError, interruptible, typed
from nl2sql.eval.scores import item_field
from nl2sql.eval.settings import Settings
from nl2sql.eval.stats import MIN_CLUSTERS, clustered_interval, wilson_interval
from nl2sql.interfaces import Benchmark, Question, content_key
from nl2sql.runs.folder import (
    FOLDERS,
    RunFolder,
    as_a_run_leaves,
    iter_jsonl,
    parts_of,
    read_manifest,
    seed_folder,
    top_of,
    write_json,
)
from nl2sql.runs.job import LOCAL, Executor
from nl2sql.runs.plan import SCORED, UNREADABLE, RunSpec, Trust, check_named, fingerprints, open_benchmark, read_plan
from nl2sql.runs.run import Run
from nl2sql.runs.summary import summarise


def replay(
    folder: str | Path,
    *,
    benchmark: Benchmark | None = None,
    overrides: Iterable[str] = (),
    replace: bool = False,
    partial: bool = False,
    progress: bool = True,
    executor: Executor = LOCAL,
    trust: Trust | bool = False,
) -> Run:
    """Score the predictions of ``folder`` again and write its ``report.json``; returns the Run.

    With other settings than the run's own it is a file beside that (``report_name``), which ``report["file"]`` names.
    benchmark: for a run that was given one as an object. overrides: ``eval.KEY=VALUE``, in place of the run's own
    scoring. replace: make another scoring the run's ``report.json`` all the same. partial: score the questions that are
    finished, in a run that owes others, and of a run with seeds those that are begun; nothing is written. executor:
    scores. trust: see ``runs.plan``; what ``overrides`` say is typed.
    Raises UsageError when questions are owed, when the benchmark no longer has them, or for what the folder alone may
    not name.
    """
    path = Path(folder)
    plan, config = read_plan(path)
    if "benchmark" in plan.objects and benchmark is None:
        raise UsageError(f"{path} was given a benchmark object; nl2sql.replay({str(path)!r}, benchmark=...)")
    overrides = list(overrides)
    rescored = _rescored(config, overrides)
    said = {item.partition("=")[0].strip() for item in overrides}
    check_named(path, plan, rescored, trust, tuple(setting for setting in SCORED if setting not in said))
    wanted = rescored.eval
    name = "report.json" if replace else report_name(config.eval, wanted)
    settings = Settings(wanted, executor=executor, progress=progress)
    opened = open_benchmark(plan, {"benchmark": benchmark})
    again = f"interrupted; score it again with: nl2sql runs replay {typed(path)}"
    with as_a_run_leaves(path), interruptible(again):
        parts = parts_of(path, plan.seeds)
        if partial:
            parts = {part_name: part for part_name, part in parts.items() if has_answers(part)}
            if not parts:
                raise UsageError(f"{path} holds no finished question yet")
        else:
            for part in parts.values():
                _check_finished(part)
        runs = {part_name: _score(part, opened, settings, "" if partial else name) for part_name, part in parts.items()}
        run = pooled(path, plan, config, runs)
    if plan.seeds and not partial:
        write_json(path / name, run.report)
    return run


def report_name(own: EvalConfig, wanted: EvalConfig) -> str:
    """The file of a scoring: ``report.json`` of the run's own, else one named after the rule and all settings."""
    if wanted == own:
        return "report.json"
    rule = re.sub(r"[^\w~-]+", "_", wanted.rule)[-40:]  # a rule of one's own is a path
    return f"report.{rule}-{content_key(wanted.model_dump())[:8]}.json"


def stores_of(folder: Path) -> tuple[RunFolder, dict[str, RunFolder]]:
    """The episodes of a run and of its controls, whose keys are those of their last predictions."""
    main = RunFolder(folder, read_manifest(folder)["key"], folder)
    controls = {}
    for name, place in FOLDERS.items():
        key = None
        for row in iter_jsonl(folder / place / "predictions.jsonl"):
            key = row.get("key")
        if key is not None:
            controls[name] = RunFolder(folder / place, key, folder)
    return main, controls


def pending_of(folder: Path) -> dict[str, int]:
    """What a run folder still owes: "run" and the controls' names, with the number of questions.

    A seed that is not begun owes all questions of its run.
    """
    if not (folder / "manifest.json").exists() and (top := top_of(folder)) != folder:
        return {"run": len(read_manifest(top)["questions"])}
    manifest = read_manifest(folder)
    main, controls = stores_of(folder)
    stores = {"run": main, **{name: controls.get(name) for name in manifest.get("controls", ())}}
    pending = {name: set(manifest["questions"]) - (store.done() if store else set()) for name, store in stores.items()}
    return {name: len(questions) for name, questions in pending.items() if questions}


def has_answers(folder: Path) -> bool:
    """Whether a run (a seed of one) is begun and has answered a question."""
    return (folder / "manifest.json").exists() and bool(stores_of(folder)[0].predictions())


def questions_of(folder: Path, benchmark: Benchmark) -> list[Question]:
    """The questions of a run, in its order. Raises UsageError where the benchmark no longer has one."""
    by_id = {question.id: question for question in benchmark.questions}
    wanted = read_manifest(folder)["questions"]
    if missing := [id_ for id_ in wanted if id_ not in by_id]:
        raise UsageError(
            f"benchmark {benchmark.name!r} has {len(missing)} of the {len(wanted)} questions of {folder} no longer "
            f"(first: {missing[0]!r}); use the benchmark that the run was made with"
        )
    return [by_id[id_] for id_ in wanted]


def changed_since(folder: Path, now: Mapping[str, str]) -> list[str]:
    """What differs from the fingerprints of the manifest: "questions", and databases by name."""
    then = read_manifest(folder)["fingerprints"]
    return [name for name in {**then, **now} if then.get(name) != now.get(name)]


def _check_finished(folder: Path) -> None:
    """Raises UsageError where questions are owed."""
    if pending := pending_of(folder):
        top = top_of(folder)
        total = len(read_manifest(top)["questions"])
        what = ", ".join(f"{count} of {total} questions ({name})" for name, count in pending.items())
        again = f"nl2sql eval --resume {typed(top)}"
        raise UsageError(f"{folder} owes {what}; finish it with: {again}, or score those that are done with --partial")


def _check_readable(folder: Path, hashes: Mapping[str, str]) -> None:
    """Raises UsageError where no database of a run can be read: scores of 0 would go over its report."""
    databases = [text for name, text in hashes.items() if name != "questions"]
    if databases and all(text.startswith(UNREADABLE) for text in databases):
        why = f"none of its {len(databases)} databases can be read"
        raise UsageError(f"{folder} is not scored: {why} (the first: {databases[0].removeprefix(UNREADABLE)})")


def _score(folder: Path, benchmark: Benchmark, settings: Settings, name: str) -> Run:
    """Score one run and write ``name`` in its folder; "": score what is finished, and write nothing."""
    manifest = read_manifest(folder)
    questions = questions_of(folder, benchmark)
    main, controls = stores_of(folder)
    if not name:
        finished = {row["id"] for row in main.predictions()}
        questions = [question for question in questions if question.id in finished]
        covered = {question.id for question in questions}
        answered = {control: {row["id"] for row in store.predictions()} for control, store in controls.items()}
        controls = {control: store for control, store in controls.items() if covered <= answered[control]}
        return Run(folder, manifest, summarise(manifest, benchmark, questions, main, controls, settings))
    hashes = fingerprints(benchmark, questions)
    _check_readable(folder, hashes)
    report = summarise(manifest, benchmark, questions, main, controls, settings)
    report["warnings"] += [f"{changed} changed since the run was made" for changed in changed_since(folder, hashes)]
    if name != "report.json":
        report["file"] = name
    write_json(folder / name, report)
    return Run(folder, manifest, report)


def _rescored(config: Config, overrides: Sequence[str]) -> Config:
    for item in overrides:
        if not item.strip().startswith("eval."):
            known = ", ".join(key for key in config_keys() if key.startswith("eval."))
            raise UsageError(f"replay scores again and runs nothing: cannot set {item!r}; it takes {known}")
    return load_config((), overrides, base=config.model_dump()) if overrides else config


# ------------------------------------------------------------- the seeds of a run as one report

SUMS = ("counts", "failures", "flips", "suspicions")  # parts of a report that are added up
OWN = ("dialogues", "vizql")  # not pooled
KEPT = ("run", "metrics", "usage", "counts")  # of each seed's report
GREEDY = "greedy decoding: the seeds give identical runs; sample with -c react.do_sample=true"


def pooled(folder: Path, plan: RunSpec, config: Config, runs: Mapping[str, Run]) -> Run:
    """The finished cells of a plan as one Run: the run itself, or the reports of those seeds as one report."""
    if not plan.seeds:
        return runs[""]
    report = _pooled_report({seed: runs[name].report for seed in plan.seeds if (name := seed_folder(seed)) in runs})
    if not config.react.do_sample and plan.controller not in SAMPLERS:
        report["warnings"].append(GREEDY)
    return Run(folder, read_manifest(folder), report | {"run": str(folder)})


def _pooled_report(reports: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """One report over several seeds of the same questions; repeats are never counted as independent.

    A metric is the mean over seeds; its interval is clustered by database, by question where there are fewer than
    ten databases. It is Wilson's over the questions where there are fewer than ten of those, and at 0 and 1, where no
    clustering shows; ``n`` is the questions. ``usage`` is the mean of the seeds, ``SUMS`` are over all of them, and
    warnings and alarms name the seed that they are of, unless all have them. ``items``, ``control`` and the tests
    against it are the first seed's, whose controls ran; so are the parts of ``OWN``, and a warning says so.
    """
    number, first = next(iter(reports.items()))
    names, items = list(first["metrics"]), [item for report in reports.values() for item in report["items"]]
    levels = {
        level: [item for item in items if (item["hardness"] or "unknown") == level] for level in first["by_hardness"]
    }
    told = {part: _told({seed: report[part] for seed, report in reports.items()}) for part in ("warnings", "alarms")}
    told["warnings"] += [
        f"{part}: of seed {number}; the other seeds' are in their reports" for part in OWN if part in first
    ]
    return {
        **first,
        "metrics": _metrics(names, items),
        "by_hardness": {level: _metrics(names, of_level) for level, of_level in levels.items()},
        "usage": {key: total / len(reports) for key, total in _sum([r["usage"] for r in reports.values()]).items()},
        "seeds": {str(seed): {part: report[part] for part in KEPT} for seed, report in reports.items()},
        **{part: _sum([report[part] for report in reports.values()]) for part in SUMS},
        **told,
    }


def _metrics(names: Sequence[str], items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Metric name -> its value over the items of all seeds, with its interval."""
    questions, databases = ({item[key] for item in items} for key in ("id", "db_id"))
    cluster = "db_id" if len(databases) >= MIN_CLUSTERS else "id"
    metrics = {}
    for name in names:
        values = [bool(item[item_field(name)]) for item in items]
        if len(questions) < MIN_CLUSTERS or len(set(values)) == 1:
            interval = wilson_interval(sum(values) / len(values), len(questions))
        else:
            interval = clustered_interval(values, [item[cluster] for item in items])
        metrics[name] = {**interval.to_dict(), "n": len(questions)}
    return metrics


def _sum(parts: Sequence[Any]) -> Any:
    """Numbers added up, within mappings by key."""
    if not isinstance(parts[0], Mapping):
        return sum(parts)
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: _sum([part[key] for part in parts if key in part]) for key in keys}


def _told(texts: Mapping[int, Sequence[str]]) -> list[str]:
    """What is said of the seeds: once where it is said of all, else behind the seed's name."""
    every = [text for text in next(iter(texts.values())) if all(text in told for told in texts.values())]
    return every + [f"seed {seed}: {text}" for seed, told in texts.items() for text in told if text not in every]
