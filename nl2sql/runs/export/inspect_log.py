"""A run as a log of Inspect AI (``.eval``, log schema 2): ``inspect view`` and ``read_eval_log`` open it.

The file is a zip archive, written here without the package: ``header.json`` (what was run, the metrics),
``samples/ID_epoch_N.json`` (an episode: messages, output, scores), ``summaries.json``. A seed of the run is an epoch.
A verdict is the value ``C`` or ``I``; half points stay numbers. The messages are the trace's records in their order: a
turn of the model, a tool's observation, an override as a system message. Not written: events, times of single steps,
the control's episodes (its numbers are scores of the header, its verdict a field of each sample's metadata).

Source: ``inspect_ai/log/_log.py`` and ``_recorders/eval.py`` of inspect-ai 0.3.285.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nl2sql import __version__
from nl2sql.agents.record import json_text
from nl2sql.errors import UsageError
from nl2sql.eval.scores import item_field
from nl2sql.machine import written_whole
from nl2sql.runs.export.contents import Contents, Exported
from nl2sql.runs.summary import systems_of

SCHEMA = 2
PACKAGED = zipfile.ZIP_DEFLATED
METADATA = ("db_id", "seed", "hardness", "cause", "finish", "steps", "ex_single_shot", "error")


def write_inspect_log(contents: Contents, path: Path) -> int:
    """Write ``path``, a new ``.eval`` file, whole or not at all; returns the number of episodes.

    Raises UsageError for another name, a file that is there, and a place that cannot be written.
    """
    if path.suffix != ".eval":
        raise UsageError(f"--out {path}: a log of Inspect AI has a name that ends in .eval")
    metrics = list(contents.run.report["metrics"])
    try:
        with written_whole(path, new=True, binary=True) as file, zipfile.ZipFile(file, "w", PACKAGED) as archive:
            _write(
                archive, "_journal/start.json", {"version": SCHEMA, "eval": _spec(contents), "plan": _plan(contents)}
            )
            summaries = []
            for episode in contents.episodes():
                sample = _sample(episode, metrics, contents.run.report["model"])
                name = f"samples/{quote(sample['id'], safe=' ')}_epoch_{sample['epoch']}.json"
                _write(archive, name, sample)
                summaries.append(_summary(sample))
            _write(archive, "summaries.json", summaries)
            _write(archive, "header.json", _header(contents, len(summaries)))
    except FileExistsError:
        raise UsageError(f"--out {path} exists; name another file") from None
    except OSError as error:
        raise UsageError(f"--out {path} cannot be written: {error.strerror or error}; name another file") from None
    return len(summaries)


def _write(archive: zipfile.ZipFile, name: str, data: Any) -> None:
    archive.writestr(name, json_text(data))


def _spec(contents: Contents) -> dict[str, Any]:
    run, facts = contents.run, contents.facts()
    ids = run.manifest["questions"]
    spec: dict[str, Any] = {
        "eval_id": contents.identity,
        "run_id": run.manifest["key"],
        "created": contents.began.isoformat(),
        "task": f"nl2sql/{run.report['benchmark']}",
        "task_id": contents.identity,
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
    return spec


def _plan(contents: Contents) -> dict[str, Any]:
    return {"name": "nl2sql", "steps": [{"solver": contents.run.report["controller"], "params": {}}]}


def _header(contents: Contents, samples: int) -> dict[str, Any]:
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
        "version": SCHEMA,
        "status": "started" if contents.owed else "success",
        "eval": _spec(contents),
        "plan": _plan(contents),
        "results": {"total_samples": total, "completed_samples": samples, "scores": scores},
        "stats": {
            "started_at": began,
            "completed_at": "" if contents.owed else began,
            "model_usage": {run.report["model"] or "unknown": _usage(spent)},
        },
    }


def _sample(episode: Exported, metrics: list[str], model: str | None) -> dict[str, Any]:
    line, row, name = episode.line, episode.row(), model or "unknown"
    answer = row["sql"] or ""
    scores = {
        metric: {"value": _verdict(episode.item[item_field(metric)]), "answer": answer, "explanation": row["cause"]}
        for metric in metrics
        if episode.item.get(item_field(metric)) is not None
    }
    sample: dict[str, Any] = {
        "id": episode.item["id"],
        "epoch": episode.epoch,
        "input": row["question"] or "",
        "target": list(episode.golds) if episode.content else [],
        "messages": list(_messages(line)) if episode.content else [],
        "output": {
            "model": name,
            "choices": [{"message": {"role": "assistant", "content": answer}, "stop_reason": "stop"}],
        },
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


def _verdict(value: Any) -> str | float:
    return {1: "C", 0: "I"}.get(value, float(value))


def _usage(usage: Mapping[str, Any]) -> dict[str, int]:
    asked, written = round(usage["prompt_tokens"]), round(usage["completion_tokens"])
    reused = round(usage.get("reused_tokens", 0))
    return {
        "input_tokens": asked,
        "output_tokens": written,
        "total_tokens": asked + written,
        "input_tokens_cache_read": reused,
    }


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
