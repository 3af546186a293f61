"""What of a run leaves it: facts, numbers, a record per episode, wrong items for annotation, repairs for a corpus.

    contents = Contents.of(Path("runs/dev"), content=True, golds=False)
    contents.numbers()["EX[bag]"]  # 0.41
    next(contents.episodes()).row()["question"]

``forms`` and ``otel`` put the contents into the forms of other tools. Loads no model.

The texts of episodes (questions, SQL, golds, rows, prompts) are left out unless ``content`` is set; messages of
errors, which may quote a name, are not. The keys of servers are masked as everywhere. A failed episode is a record
like another. A run that is not finished is exported as far as it is, and ``state`` says how far.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.agents.record import json_text
from nl2sql.agents.repairing import repairs_of_trace
from nl2sql.databases.engines import dialect_of
from nl2sql.errors import Nl2SqlError, UsageError, typed
from nl2sql.eval.scores import item_field, one_metric
from nl2sql.interfaces import Question, content_key
from nl2sql.machine import from_json, write_whole
from nl2sql.runs.folder import began, parts_of, seed_folder, top_of
from nl2sql.runs.plan import Trust, benchmark_of, flat, read_plan
from nl2sql.runs.rescore import has_answers, pending_of, questions_of, replay
from nl2sql.runs.run import Run, notes_of
from nl2sql.runs.summary import systems_of

if TYPE_CHECKING:
    from nl2sql.repair.corpus import Corpus

TEXTS = ("question", "gold", "sql", "raw_sql")  # fields of a row that only ``content`` gives
ROW = (
    *("id", "db_id", "seed", "hardness", "va", "em", "ex", "ts", "ex_single_shot", "cause", "finish", "error"),
    *("steps", "model_calls", "prompt_tokens", "completion_tokens", "cost", "seconds", *TEXTS),
)
USAGE = ("model_calls", "prompt_tokens", "completion_tokens", "cost")


@dataclass(frozen=True)
class Exported:
    """One episode: its verdicts (``item``, of the report), its line of ``traces.jsonl``, its golds.

    ``number``: its place in the run, from 0. ``epoch``: which seed of the run, from 1; ``seed`` is that seed, or None.
    """

    number: int
    epoch: int
    seed: int | None
    item: Mapping[str, Any]
    line: Mapping[str, Any]
    golds: tuple[str, ...]
    content: bool

    def row(self) -> dict[str, Any]:
        """The episode as one flat dict of ``ROW``, for tables; the texts are None without ``content``."""
        usage = {name: self.line["usage"].get(name, 0) for name in USAGE}
        gold = self.golds[0] if self.golds else None
        whole = {**self.item, **self.line, **usage, "seed": self.seed, "gold": gold}
        whole["error"] = self.line["error"] or self.item["error"]
        hidden = () if self.content else TEXTS
        return {name: None if name in hidden else whole.get(name) for name in ROW}


@dataclass(frozen=True)
class Contents:
    """A run as it is exported. ``parts``: the runs of its seeds, as far as they have answers, or itself under "".
    ``pending``: see ``pending_of``."""

    run: Run
    parts: Mapping[str, Run]
    pending: Mapping[str, int]
    questions: Mapping[str, Question]
    note: str
    content: bool

    @classmethod
    def of(
        cls, folder: Path, *, content: bool, golds: bool = True, progress: bool = False, trust: Trust | bool = False
    ) -> Contents:
        """Open a run folder. An unfinished run's episodes are scored; nothing is written there.

        golds: read the benchmark for its golds; where that is not at hand, ``note`` says so. trust: see ``runs.plan``.
        Raises UsageError for a folder without a run, or whose run has no finished question yet.
        """
        plan, _ = read_plan(folder)
        places = parts_of(folder, plan.seeds)
        pending = {
            f"{part} {name}" if len(places) > 1 else name: count
            for part, place in places.items()
            for name, count in pending_of(place).items()
        }
        if pending or not (folder / "report.json").exists():
            again = partial(replay, partial=True, progress=progress, trust=trust)
            run = again(folder)
            parts = {n: again(at) for n, at in places.items() if has_answers(at)} if plan.seeds else {"": run}
        else:
            run = Run.load(folder)
            parts = run.parts()
        questions: dict[str, Question] = {}
        note = ""
        if golds and content:
            try:
                asked = questions_of(folder, benchmark_of(folder, trust))
                questions = {question.id: question for question in asked}
            except Nl2SqlError as error:
                note = f"no golds, because the benchmark is not at hand: {error}"
        return cls(run, parts, pending, questions, note, content)

    @property
    def name(self) -> str:
        return self.run.folder.resolve().name

    @property
    def state(self) -> str:
        """``done``, or what is pending: ``unfinished: 28 of 40 questions owed (run), ...``."""
        if not self.pending:
            return "done"
        total = len(self.run.manifest["questions"])
        return "unfinished: " + ", ".join(f"{n} of {total} questions owed ({what})" for what, n in self.pending.items())

    @property
    def began(self) -> datetime:
        """When the run began; it keeps no other time of day."""
        return began(self.run.folder)

    @property
    def seeds(self) -> dict[str, int | None]:
        """The seeds of the run by the names of their parts; of a run without, None under ""."""
        return {seed_folder(seed): seed for seed in self.run.manifest["plan"].get("seeds") or ()} or {"": None}

    @property
    def identity(self) -> str:
        """24 hex digits: the same run with the same scores and episodes is known again by it."""
        return content_key(self.run.manifest["key"], self.run.report.get("eval"), self.numbers(), self.state)

    def facts(self) -> dict[str, Any]:
        """What was run, flat: names and texts, and the config's keys that differ from their defaults."""
        from nl2sql.config import Config

        manifest, report = self.run.manifest, self.run.report
        default, plan, code = flat(Config().model_dump(mode="json")), manifest["plan"], manifest.get("environment", {})
        told = {name: plan.get(name) for name in ("benchmark", "split", "limit", "seeds", "history", "dtype")}
        parts = {
            "plan": {name: value for name, value in told.items() if value not in (None, "", [], ())},
            "model": {k: v for k, v in manifest["model"].items() if isinstance(v, str | int | float | bool)},
            "config": {k: v for k, v in flat(manifest["config"]).items() if v != default.get(k)},
            "code": {name: code[name] for name in ("nl2sql", "commit", "python") if name in code},
        }
        facts = {name: report[name] for name in ("controller", "model", "benchmark")}
        facts |= {"questions": report["n"], "state": self.state, "key": manifest["key"]}
        further = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
        return masked_plain(facts | further)

    def numbers(self) -> dict[str, float]:
        """Each metric of the run and of its controls with its interval, paired tests, and sums of usage.

        Names: ``EX[bag]``, ``EX[bag]/low``, ``single_shot/EX[bag]``, ``paired/EX[bag]/p``, ``prompt_tokens``.
        """
        numbers: dict[str, float] = {}
        for label, report in systems_of(self.run.report).items():
            before = "" if report is self.run.report else f"{label.replace(', ', '_').replace(' ', '_')}/"
            for metric, found in report["metrics"].items():
                names = {"value": metric, "low": f"{metric}/low", "high": f"{metric}/high"}
                numbers |= {before + n: found[key] for key, n in names.items() if found[key] is not None}
            numbers |= {f"{before}{name}": report["usage"].get(name, 0) for name in (*USAGE, "seconds")}
        for metric, test in self.run.report.get("paired", {}).items():
            numbers |= {f"paired/{metric}/{name}": test[name] for name in ("wins", "losses", "p", "p_databases")}
        return {name: float(value) for name, value in numbers.items()}

    def episodes(self) -> Iterator[Exported]:
        """Each scored episode once, one at a time (a large run's do not fit in memory), in the order they finished."""
        number = 0
        for epoch, (name, seed) in enumerate(self.seeds.items(), 1):
            if name not in self.parts:
                continue
            part = self.parts[name]
            items = {item["id"]: item for item in part.report["items"]}
            last = {line.get("id"): at for at, line in enumerate(part.lines("traces.jsonl"))}
            wanted = {at for id_, at in last.items() if id_ in items}
            for line in (line for at, line in enumerate(part.lines("traces.jsonl")) if at in wanted):
                question = self.questions.get(line["id"])
                golds = tuple(masked_plain(list(question.gold))) if question else ()
                item = masked_plain(items[line["id"]])
                yield Exported(number, epoch, seed, item, masked_plain(line), golds, self.content)
                number += 1


@contextmanager
def into(out: Path, there: str = "exists", what: str = "file") -> Iterator[None]:
    """Errors of writing ``out``, a new file or folder, as they are told. Raises UsageError."""
    try:
        yield
    except FileExistsError:
        raise UsageError(f"--out {out} {there}; name another {what}") from None
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"--out {out} cannot be written: {why}; name another {what}") from None


def masked_plain(value: Any) -> Any:
    """``value`` as strict JSON would hold it, with the keys of servers masked."""
    return from_json(json_text(value))


# ----------------------------------------------------------------------- ``nl2sql runs failures``

FIELDS = (
    *("id", "db_id", "question", "evidence", "hardness", "cause", "gold", "sql", "raw_sql", "error"),
    *("va", "em", "ex", "ts", "finish", "steps"),
    *("label", "comment"),  # the tags and the note on an answer; empty without, for the annotator
)
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would execute a cell that begins so


def failures(
    run: Run, *, metric: str | None = None, notes: Path | None = None, trust: Trust | bool = False
) -> list[dict[str, Any]]:
    """One dict of ``FIELDS`` per item that is wrong under ``metric`` (default: EX), in the run's order.

    notes: a file that the report's page has saved, beside the run's own notes. trust: see ``runs.plan``.

    ``gold`` is the first accepted gold; ``evidence`` and ``gold`` are None where the benchmark was an object. Raises
    UsageError for a metric that the run has not, a benchmark that no longer has the run's questions, or a file without
    notes. A run with seeds gives the items of its first seed.
    """
    part = next(iter(run.parts().values()))
    chosen = one_metric(metric or "EX", list(part.report["metrics"]))
    plan, _ = read_plan(part.folder)
    benchmark = None if "benchmark" in plan.objects else benchmark_of(part.folder, trust)
    asked = {question.id: question for question in questions_of(part.folder, benchmark)} if benchmark else {}
    predictions = {row["id"]: row for row in part.predictions()}
    noted = notes_of(part, notes)
    if gone := [item["id"] for item in part.report["items"] if item["id"] not in predictions]:
        of = f"{len(gone)} of the {len(part.report['items'])} questions that its report scored (first: {gone[0]})"
        again = f"nl2sql eval --resume {typed(top_of(part.folder))}"
        raise UsageError(f"{part.folder} holds no prediction of {of}; answer them again: {again}")
    table = []
    for item in part.report["items"]:
        if item[item_field(chosen)]:
            continue
        question = asked.get(item["id"])
        prediction = predictions[item["id"]]
        note = noted.get((item["db_id"], item["id"]), {"tags": [], "note": ""})
        row = prediction | item | {"error": item["error"] or prediction["error"]}
        row |= {"label": ", ".join(note["tags"]), "comment": note["note"]}
        row["evidence"] = question.evidence if question else None
        row["gold"] = question.gold[0] if question and question.gold else None
        table.append({name: row.get(name) for name in FIELDS})
    return table


def write_failures(rows: list[dict[str, Any]], path: Path) -> None:
    """Write ``.csv`` or ``.jsonl``, told by the name. Raises UsageError for another name or a file that is there.

    CSV cells that a spreadsheet would take for a formula begin with an apostrophe; JSON lines are verbatim.
    """
    if path.suffix not in (".csv", ".jsonl"):
        raise UsageError(f"--out {path}: expected a name that ends in .csv or .jsonl")
    text = _csv(rows) if path.suffix == ".csv" else "".join(json_text(row) + "\n" for row in rows)
    with into(path):
        write_whole(path, text, new=True)


def _csv(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping | list):
        return json_text(value)
    if isinstance(value, str):
        text = value.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
        return "'" + text if text.startswith(FORMULA) else text
    return value


# ----------------------------------------------------------------------- ``nl2sql corpus import``


def import_run(corpus: Corpus, folder: Path, *, any_split: bool = False) -> tuple[int, int]:
    """The repairs of a run folder's traces, stored: (how many there are, how many were new).

    Raises UsageError for a folder that is no run, and for a run over another than a training or development split:
    test questions must not enter a corpus that is used on them (``any_split`` for one that never will be).
    """
    run = Run.load(folder)
    plan = run.manifest.get("plan", {})
    split = str(plan.get("split") or run.manifest.get("split") or "")
    from nl2sql.repair.corpus import LEARNING_SPLITS, learn, source_of  # numpy, which the other exports do without

    if split not in LEARNING_SPLITS and not any_split:
        raise UsageError(
            f"{folder} was run on split {split or 'all'!r}; only {', '.join(sorted(LEARNING_SPLITS))} may enter a "
            "corpus (--any-split for a corpus that is never used on these questions)"
        )
    dialect = dialect_of(str(plan.get("engine_url") or ""))
    repaired = stored = 0
    for trace in run.traces():
        repairs = repairs_of_trace(trace["trace"], trace["question"])
        repaired += len(repairs)
        stored += learn(corpus, repairs, dialect=dialect, source=source_of(trace["db_id"], trace["id"]))
    return repaired, stored
