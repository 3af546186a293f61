"""A run in the forms of Inspect AI, lm-evaluation-harness, MLflow and Weights & Biases.

The first two are files, written here without the packages; ``--to mlflow`` and ``--to wandb`` need theirs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from nl2sql import __version__
from nl2sql.agents.record import json_text
from nl2sql.errors import Nl2SqlError, UsageError, one_line
from nl2sql.eval.scores import item_field
from nl2sql.machine import install_command, write_whole, written_whole
from nl2sql.runs.export import ROW, Contents, Exported, into
from nl2sql.runs.summary import systems_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

# --------------------------------------------------------- a log of Inspect AI: ``.eval``, schema 2
# ``inspect view`` and ``read_eval_log`` open it: a zip archive of ``header.json`` (what was run, the
# metrics), ``samples/ID_epoch_N.json`` (an episode: messages, output, scores), ``summaries.json``. A
# seed of the run is an epoch. A verdict is the value ``C`` or ``I``; half points stay numbers. The
# messages are the trace's records in their order: a turn of the model, a tool's observation, an
# override as a system message. Not written: events, times of single steps, the control's episodes
# (its numbers are scores of the header, its verdict a field of each sample's metadata).
#
# Source: ``inspect_ai/log/_log.py`` and ``_recorders/eval.py`` of inspect-ai 0.3.285.

SCHEMA = 2
METADATA = ("db_id", "seed", "hardness", "cause", "finish", "steps", "ex_single_shot", "error")


def write_inspect_log(contents: Contents, path: Path) -> int:
    """Write ``path``, a new ``.eval`` file, whole or not at all; returns the number of episodes.

    Raises UsageError for another name, a file that is there, and a place that cannot be written.
    """
    if path.suffix != ".eval":
        raise UsageError(f"--out {path}: a log of Inspect AI has a name that ends in .eval")
    metrics = list(contents.run.report["metrics"])
    with (
        into(path),
        written_whole(path, new=True, binary=True) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        about, summaries = _about(contents), []
        archive.writestr("_journal/start.json", json_text(about))
        for episode in contents.episodes():
            sample = _inspect_sample(episode, metrics, contents.run.report["model"])
            name = f"samples/{quote(sample['id'], safe=' ')}_epoch_{sample['epoch']}.json"
            archive.writestr(name, json_text(sample))
            summaries.append(_summary(sample))
        archive.writestr("summaries.json", json_text(summaries))
        archive.writestr("header.json", json_text(about | _outcome(contents, len(summaries))))
    return len(summaries)


def _about(contents: Contents) -> dict[str, Any]:
    """What was run, as a log begins with it."""
    run, facts = contents.run, contents.facts()
    ids, identity = run.manifest["questions"], contents.identity
    spec: dict[str, Any] = {
        "eval_id": identity,
        "run_id": run.manifest["key"],
        "created": contents.began.isoformat(),
        "task": f"nl2sql/{run.report['benchmark']}",
        "task_id": identity,
        "task_version": 0,
        "solver": run.report["controller"],
        "solver_args": {name: value for name, value in facts.items() if name.startswith("config.")},
        "dataset": {"name": run.report["benchmark"], "samples": len(ids), "sample_ids": ids, "shuffled": False},
        "model": run.report["model"] or "unknown",
        "model_args": {name: value for name, value in facts.items() if name.startswith("model.")},
        "config": {"epochs": len(contents.seeds)},
        "packages": {"nl2sql-harness": __version__},
        "metadata": facts,
    }
    if commit := facts.get("code.commit"):
        spec["revision"] = {"type": "git", "origin": "", "commit": commit}
    plan = {"name": "nl2sql", "steps": [{"solver": run.report["controller"], "params": {}}]}
    return {"version": SCHEMA, "eval": spec, "plan": plan}


def _outcome(contents: Contents, samples: int) -> dict[str, Any]:
    run = contents.run
    scores = []
    for label, report in systems_of(run.report).items():
        for metric, found in report["metrics"].items():
            name = metric if report is run.report else f"{label}: {metric}"
            values = {"accuracy": found["value"], "low": found["low"], "high": found["high"]}
            kept = {key: {"name": key, "value": value} for key, value in values.items() if value is not None}
            scores.append({"name": name, "scorer": name, "scored_samples": found["n"], "metrics": kept})
    usages = [part.report["usage"] for part in contents.parts.values()]  # a report of seeds has their mean
    spent = {name: sum(usage.get(name, 0) for usage in usages) for name in usages[0]}
    began, total = contents.began.isoformat(), len(run.manifest["questions"]) * len(contents.seeds)
    return {
        "status": "started" if contents.pending else "success",
        "results": {"total_samples": total, "completed_samples": samples, "scores": scores},
        "stats": {
            "started_at": began,
            "completed_at": "" if contents.pending else began,
            "model_usage": {run.report["model"] or "unknown": _usage(spent)},
        },
    }


def _inspect_sample(episode: Exported, metrics: list[str], model: str | None) -> dict[str, Any]:
    line, row, name = episode.line, episode.row(), model or "unknown"
    answer = row["sql"] or ""
    choice = {"message": {"role": "assistant", "content": answer}, "stop_reason": "stop"}
    scores = {
        metric: {"value": {1: "C", 0: "I"}.get(value, float(value)), "answer": answer, "explanation": row["cause"]}
        for metric in metrics
        if (value := episode.item.get(item_field(metric))) is not None
    }
    sample: dict[str, Any] = {
        "id": episode.item["id"],
        "epoch": episode.epoch,
        "input": row["question"] or "",
        "target": list(episode.golds) if episode.content else [],
        "messages": list(_messages(line)) if episode.content else [],
        "output": {"model": name, "choices": [choice]},
        "scores": scores,
        "metadata": {field: row[field] for field in METADATA},
        "model_usage": {name: _usage(line["usage"])},
        "total_time": line["seconds"],
        "working_time": line["seconds"],
        "uuid": f"{line['key']}-{episode.item['id']}-{episode.epoch}",
    }
    if line["finish"] in ("error", "cancelled"):  # the episode broke off; a query that does not run is an answer
        sample["error"] = {"message": line["error"] or line["finish"], "traceback": "", "traceback_ansi": ""}
    return sample


def _summary(sample: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("id", "epoch", "input", "target", "metadata", "scores", "model_usage", "total_time", "working_time", "uuid")
    error = {"error": sample["error"]["message"]} if "error" in sample else {}
    counted = {"message_count": len(sample["messages"]), "completed": True}
    return {name: sample[name] for name in kept} | error | counted


def _usage(usage: Mapping[str, Any]) -> dict[str, int]:
    asked, written = round(usage["prompt_tokens"]), round(usage["completion_tokens"])
    counts = {"input_tokens": asked, "output_tokens": written, "total_tokens": asked + written}
    return counts | {"input_tokens_cache_read": round(usage.get("reused_tokens", 0))}


def _messages(line: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A loop's opening messages and trace; of a controller without a trace, each of its calls."""
    if not line["trace"]:
        for call in line.get("calls", ()):
            yield from ({"role": m["role"], "content": m["content"]} for m in call["messages"] or ())
            yield {"role": "assistant", "content": call["text"]}
        return
    yield from ({"role": m["role"], "content": m["content"]} for m in line.get("messages", ()))
    for number, record in enumerate(line["trace"]):
        if "llm" in record:
            yield {"role": "assistant", "content": str(record["llm"])}
        elif "forced_action" in record:
            asked = record["requested_action"] or "no action"
            text = f"override: {record['forced_action']} in place of {asked} ({record['reason']})"
            yield {"role": "system", "content": text}
        else:
            shown = record["observation"]
            text = shown if isinstance(shown, str) else json_text(shown)
            yield {"role": "tool", "content": text, "function": record["action"], "tool_call_id": f"record-{number}"}


# --------------------------------------------------------------- results of lm-evaluation-harness
# ``results_TIME.json`` and ``samples_TASK_TIME.jsonl`` in ``OUT/MODEL/``, where ``lm_eval
# --output_path OUT`` puts its own. The benchmark is a task, each control a task beside it (numbers
# only). Keys of metrics are ``EX[bag],none``; a comma in a metric's name becomes a semicolon, since
# that form cuts there. ``..._stderr`` is the harness's own, of independent items; our intervals,
# clustered by database, are beside it under ``nl2sql``. TIME is when the run began, so that a run
# exported twice has the same names. Not covered: the harness's grouping of tasks.
#
# Source: ``lm_eval/loggers/evaluation_tracker.py`` and ``result_schema.py`` of lm-eval 0.4.13.

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
    with into(out, "holds this run already", "folder"):
        folder.mkdir(parents=True, exist_ok=True)
        if results.exists():
            raise FileExistsError
        with written_whole(samples, new=True) as file:
            for episode in contents.episodes():
                sample = _lm_eval_sample(episode, list(report["metrics"]))
                hashes.update("".join(sample[key] for key in ("doc_hash", "prompt_hash", "target_hash")).encode())
                file.write(json_text(sample) + "\n")
                count += 1
        write_whole(results, json_text(_results(contents, {task: hashes.hexdigest()}), indent=2) + "\n", new=True)
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


def _lm_eval_sample(episode: Exported, metrics: list[str]) -> dict[str, Any]:
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


# --------------------------------------------------------------------------- experiment trackers
# MLflow (a SQLite file, or a tracking server) and Weights & Biases (offline: only the user's
# ``wandb sync`` sends it) get the same: what was run as parameters, ``Contents.numbers`` as metrics,
# and a table of episodes. Neither package sends its own reports of usage and errors: they are
# switched off. An exported run is known again by ``Contents.identity``: MLflow takes it once, and in
# Weights & Biases it has the same id. Not covered: traces (``--to otel``), live logging.

PROJECT = "nl2sql"  # the experiment of MLflow, the project of Weights & Biases
TAG = "nl2sql.export"
LONGEST = 500  # characters of a parameter
AT_ONCE = 100  # parameters, and metrics, that one request of MLflow takes
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
QUIET |= {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
UNNAMED = re.compile(r"[^\w\-. :/]+")  # what MLflow takes in no name


def to_mlflow(contents: Contents, address: str) -> int:
    """Log the run in the experiment ``nl2sql`` of the tracking server or store at ``address``; the number of episodes.

    address: ``sqlite:////home/me/mlflow.db`` or ``http://localhost:5000``. Metrics are named ``EX.bag``, since MLflow
    takes no brackets. Raises UsageError where the package is missing or the run is there already, Nl2SqlError where the
    store fails.
    """
    os.environ.update(QUIET)
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise UsageError(f"MLflow is not installed: {install_command('mlflow')}") from None
    try:
        return _log_to_mlflow(contents, MlflowClient(tracking_uri=address), address)
    except (MlflowException, OSError) as error:
        raise Nl2SqlError(f"MLflow at {address} did not take the run: {one_line(error, 240)}") from None


def _log_to_mlflow(contents: Contents, client: MlflowClient, address: str) -> int:
    from mlflow.entities import Metric, Param, RunTag

    known = client.get_experiment_by_name(PROJECT)
    if known is not None:
        experiment = known.experiment_id
    else:  # by default a store in a file would put its artifacts where the command happens to be typed
        beside = Path(address.removeprefix("sqlite:///")).parent / "mlartifacts"
        local = address.startswith("sqlite:///")
        experiment = client.create_experiment(PROJECT, artifact_location=beside.as_uri() if local else None)
    if there := client.search_runs([experiment], f"tags.`{TAG}` = '{contents.identity}'"):
        raise UsageError(f"MLflow at {address} holds this run already, as {there[0].info.run_id}; nothing was written")
    began = round(contents.began.timestamp() * 1000)
    tags = {TAG: contents.identity, "nl2sql.state": contents.state}
    run = client.create_run(experiment, start_time=began, tags=tags, run_name=contents.name).info.run_id
    params = [Param(UNNAMED.sub(".", name), str(value)[:LONGEST]) for name, value in contents.facts().items()]
    metrics = [
        Metric(UNNAMED.sub(".", name).replace("./", "/").strip("."), value, began, 0)
        for name, value in contents.numbers().items()
    ]
    for part in range(0, max(len(params), len(metrics)), AT_ONCE):
        client.log_batch(run, metrics[part : part + AT_ONCE], params[part : part + AT_ONCE], list[RunTag]())
    rows = [json_text(episode.row()) + "\n" for episode in contents.episodes()]
    client.log_text(run, "".join(rows), "episodes.jsonl")
    if not contents.pending:  # an unfinished run stays RUNNING
        seconds = contents.run.report["usage"].get("seconds", 0)
        client.set_terminated(run, "FINISHED", began + round(1000 * seconds))
    return len(rows)


def to_wandb(contents: Contents, out: Path) -> tuple[int, Path]:
    """Write an offline run below the folder ``out``; the number of episodes, and the folder that ``wandb sync`` takes.

    Raises UsageError where the package is missing or the folder cannot be made, Nl2SqlError where wandb fails.
    """
    os.environ.update(QUIET)
    try:
        import wandb
    except ImportError:
        raise UsageError(f"Weights & Biases is not installed: {install_command('wandb')}") from None
    with into(out, what="folder"):
        out.mkdir(parents=True, exist_ok=True)
    said_nowhere = {"disable_git": True, "disable_code": True, "x_disable_stats": True, "x_disable_meta": True}
    settings = wandb.Settings(silent=True, console="off", x_save_requirements=False, **said_nowhere)
    rows = [[_wandb_cell(value) for value in episode.row().values()] for episode in contents.episodes()]
    try:
        run = wandb.init(
            mode="offline",
            dir=str(out),
            project=PROJECT,
            name=contents.name,
            id=contents.identity,
            job_type=str(contents.run.report["controller"]),
            tags=["unfinished"] if contents.pending else ["done"],
            config=contents.facts(),
            settings=settings,
        )
        run.log({"episodes": wandb.Table(columns=list(ROW), data=rows)})
        run.summary.update(contents.numbers())
        run.finish()
    except wandb.Error as error:
        raise Nl2SqlError(f"Weights & Biases could not write the run: {one_line(error, 240)}") from None
    return len(rows), Path(run.settings.sync_dir)


def _wandb_cell(value: Any) -> Any:
    """A value of a column that has one type: numbers and verdicts stay, anything else is text."""
    return value if value is None or isinstance(value, bool | int | float) else str(value)
