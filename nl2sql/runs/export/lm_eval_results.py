"""A run in the results form of lm-evaluation-harness: ``results_TIME.json`` and ``samples_TASK_TIME.jsonl``.

The files lie in ``OUT/MODEL/``, where ``lm_eval --output_path OUT`` puts its own; written here without the package.
The benchmark is a task, each control a task beside it (numbers only). Keys of metrics are ``EX[bag],none``; a comma in
a metric's name becomes a semicolon, since that form cuts there. ``..._stderr`` is the harness's own, of independent
items; our intervals, clustered by database, are beside it under ``nl2sql``. TIME is when the run began, so that a run
exported twice has the same names. Not covered: the harness's grouping of tasks.

Source: ``lm_eval/loggers/evaluation_tracker.py`` and ``result_schema.py`` of lm-eval 0.4.13.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nl2sql import __version__
from nl2sql.agents.record import json_text
from nl2sql.errors import UsageError
from nl2sql.eval.scores import item_field
from nl2sql.machine import write_whole, written_whole
from nl2sql.runs.export.contents import Contents, Exported
from nl2sql.runs.summary import systems_of

FILTER = "none"
UNSAFE = re.compile(r"[\"<>:/|\\?*\[\]]+")  # the harness's own rule for names of folders


def write_lm_eval_results(contents: Contents, out: Path) -> int:
    """Write both files in ``out``, each whole or not at all; returns the number of episodes.

    Raises UsageError where the run's files are there already, or cannot be written.
    """
    report = contents.run.report
    folder = out / UNSAFE.sub("__", report["model"] or "unknown")
    task, time = _task(contents), contents.began.strftime("%Y-%m-%dT%H-%M-%S.%f")
    results, samples = folder / f"results_{time}.json", folder / f"samples_{task}_{time}.jsonl"
    hashes = hashlib.sha256()
    count = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if results.exists():
            raise FileExistsError
        with written_whole(samples, new=True) as file:
            for sample in _samples(contents):
                hashes.update("".join(sample[key] for key in ("doc_hash", "prompt_hash", "target_hash")).encode())
                file.write(json_text(sample) + "\n")
                count += 1
        write_whole(results, json_text(_results(contents, {task: hashes.hexdigest()}), indent=2) + "\n", new=True)
    except FileExistsError:
        raise UsageError(f"--out {out} holds this run already; name another folder") from None
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}; name another folder") from None
    return count


def metric_key(metric: str) -> str:
    """A metric's name as a key of the form may hold it: ``TS[bag;perturb;N=5]``."""
    return metric.replace(",", ";")


def _task(contents: Contents) -> str:
    plan = contents.run.manifest["plan"]
    return re.sub(r"\W", "_", "_".join(filter(None, ("nl2sql", contents.run.report["benchmark"], plan.get("split")))))


def _results(contents: Contents, hashes: Mapping[str, str]) -> dict[str, Any]:
    run, facts, task = contents.run, contents.facts(), _task(contents)
    tasks = {
        task if report is run.report else f"{task}_{re.sub(r'[^a-z]+', '_', label)}": report
        for label, report in systems_of(run.report).items()
    }
    total = len(run.manifest["questions"])
    shots = run.manifest["config"].get("few_shot", {}).get("k", 0)
    return {
        "results": {name: _task_metrics(name, report) for name, report in tasks.items()},
        "group_subtasks": {name: [] for name in tasks},
        "configs": {name: {"task": name, "output_type": "generate_until", "num_fewshot": shots} for name in tasks},
        "versions": dict.fromkeys(tasks, __version__),
        "n-shot": dict.fromkeys(tasks, shots),
        "higher_is_better": {n: {metric_key(m): True for m in report["metrics"]} for n, report in tasks.items()},
        "n-samples": {n: {"original": total, "effective": len(run.report["items"])} for n in tasks},
        "config": {
            "model": f"nl2sql-{run.report['controller']}",
            "model_args": {k.removeprefix("model."): v for k, v in facts.items() if k.startswith("model.")},
            "batch_size": str(run.manifest["plan"].get("batch_size", "")),
            "limit": run.manifest["plan"].get("limit"),
            "random_seed": run.manifest["config"].get("seed"),
        },
        "git_hash": facts.get("code.commit"),
        "date": contents.began.timestamp(),
        "task_hashes": dict(hashes),
        "model_source": facts.get("model.backend", "nl2sql"),
        "model_name": run.report["model"],
        "model_name_sanitized": UNSAFE.sub("__", run.report["model"] or "unknown"),
        "total_evaluation_time_seconds": str(run.report["usage"].get("seconds", "")),
        "nl2sql": {"state": contents.state, "facts": facts, "numbers": contents.numbers()},
    }


def _task_metrics(name: str, report: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {"alias": name, "sample_len": report["n"]}
    for metric, found in report["metrics"].items():
        share, n = found["value"], found["n"]
        values[f"{metric_key(metric)},{FILTER}"] = share
        values[f"{metric_key(metric)}_stderr,{FILTER}"] = math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else "N/A"
    return values


def _samples(contents: Contents) -> Iterator[dict[str, Any]]:
    metrics = list(contents.run.report["metrics"])
    for episode in contents.episodes():
        yield _sample(episode, metrics)


def _sample(episode: Exported, metrics: list[str]) -> dict[str, Any]:
    row = episode.row()
    scored = {metric_key(m): episode.item.get(item_field(m)) for m in metrics}
    kept = {name: float(value) for name, value in scored.items() if value is not None}
    prompt, target = row["question"] or "", row["gold"] or ""
    return {
        "doc_id": episode.number,
        "doc": row,
        "target": target,
        "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {}}},
        "resps": [[row["raw_sql"] or ""]],
        "filtered_resps": [row["sql"] or ""],
        "filter": FILTER,
        "metrics": list(kept),
        "doc_hash": _hash(json.dumps(row, sort_keys=True, ensure_ascii=True)),
        "prompt_hash": _hash(prompt),
        "target_hash": _hash(target),
        **kept,
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
