"""A finished run as a notebook holds it, notes on its answers, and several runs as systems of one table."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from nl2sql.agents.display import Shown
from nl2sql.agents.record import json_text
from nl2sql.errors import UsageError, typed
from nl2sql.eval.scores import item_field
from nl2sql.eval.stats import PairedTest, adjusted, mcnemar, paired_test, percent
from nl2sql.machine import missing_part
from nl2sql.runs.folder import (
    TABLE,
    QuestionKey,
    RunFolder,
    inside,
    iter_jsonl,
    parts_of,
    read_json,
    read_manifest,
)
from nl2sql.runs.plan import systems_of
from nl2sql.safe_files import open_regular

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run as notebooks read it."""

    folder: Path
    manifest: dict[str, Any]
    report: dict[str, Any]

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Raises UsageError when the folder holds no finished run."""
        path = Path(folder)
        manifest = read_manifest(path)
        try:
            report = read_json(path / "report.json")
        except FileNotFoundError:
            raise UsageError(
                f"{path} holds no finished run (report.json is missing); continue it with: "
                f"nl2sql eval --resume {typed(path)}"
            ) from None
        except (OSError, ValueError):
            raise UsageError(
                f"{path / 'report.json'} is not JSON; write it anew with: nl2sql runs replay {typed(path)}"
            ) from None
        return cls(path, manifest, report)

    def parts(self) -> dict[str, Run]:
        """The runs of a run with seeds, by the names of their folders; of any other, itself under ""."""
        seeds = self.manifest["plan"].get("seeds") or ()
        return {name: Run.load(at) for name, at in parts_of(self.folder, seeds).items()} if seeds else {"": self}

    def predictions(self) -> list[dict[str, Any]]:
        """The answers, one after the other of each seed."""
        return [row for store in self._stores() for row in store.predictions()]

    def traces(self, fields: Collection[str] = ()) -> list[dict[str, Any]]:
        """The episodes' traces; of each only ``fields``, where any are named (a large run's do not fit in memory)."""
        return [row for store in self._stores() for row in store.traces(fields)]

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """The run's own lines of a file, one at a time, as they were written."""
        return (line for store in self._stores() for line in store.lines(name))

    def _stores(self) -> list[RunFolder]:
        seeds = self.manifest["plan"].get("seeds") or ()
        if not seeds:
            return [RunFolder(self.folder, self.manifest["key"], self.folder)]
        places = parts_of(self.folder, seeds).values()
        return [RunFolder(place, read_manifest(place)["key"], self.folder) for place in places]

    def key_of(self, item: Mapping[str, Any]) -> QuestionKey:
        """Which question an item or a trace is of; an id alone is unique in one benchmark only."""
        return self.report["benchmark"], item["db_id"], item["id"]

    def paired(self, other: Run) -> dict[str, dict[str, Any]]:
        """This run against another on the questions of both, per metric: ``stats.Paired`` as data.

        Raises UsageError where no question was asked in both.
        """
        theirs = {other.key_of(item): item for item in other.report["items"]}
        both = [(item, theirs[key]) for item in self.report["items"] if (key := self.key_of(item)) in theirs]
        if not both:
            raise UsageError(f"{self.folder} and {other.folder} have no question in common; nothing can be paired")
        names = {name: item_field(name) for name in self.report["metrics"] if name in other.report["metrics"]}
        return {
            name: mcnemar(
                [(bool(a[field]), bool(b[field])) for a, b in both], [self.key_of(a)[:2] for a, _ in both]
            ).to_dict()
            for name, field in names.items()
        }

    def __repr__(self) -> str:
        return f"<run {self.folder.name}: {self.report['controller']}, {self.report['n']} questions>"

    def to_dataframe(self) -> pd.DataFrame:
        """One row per question, in the benchmark's order: prediction joined with its scores (per ``seed``, if any).

        Raises UsageError without pandas (the extra ``data``).
        """
        if missing := missing_part("pandas"):
            raise UsageError(missing)
        import pandas as pd

        if seeds := self.manifest["plan"].get("seeds"):
            frames = [run.to_dataframe() for run in self.parts().values()]
            return pd.concat([f.assign(seed=seed) for f, seed in zip(frames, seeds, strict=True)], ignore_index=True)
        items = pd.DataFrame(self.report["items"]).drop(columns=["sql", "error", "db_id", "seconds"], errors="ignore")
        return items[["id"]].merge(pd.DataFrame(self.predictions()).drop(columns=["key"])).merge(items, on="id")

    def plot(self, *others: Run) -> Figure:
        """EX by hardness beside the controls, cost against accuracy, and the reliability of the confidence.

        others: runs to draw beside this one. The third part is drawn where this run has confidences
        (``candidates.choose: logprob``; the controller ``best``). Raises UsageError for runs of
        different rules, and without matplotlib (the extra ``data``).
        """
        if missing := missing_part("matplotlib"):
            raise UsageError(missing)
        reports: dict[str, dict[str, Any]] = {}
        for run in (self, *others):
            reports[_unique(run.folder.resolve().name, reports)] = run.report
        from nl2sql.runs.plots import plot_reports

        return plot_reports(reports, shared_ex([self, *others]), self.confidences())

    def confidences(self) -> list[tuple[float, bool]]:
        """Of each answer that has one, its confidence between 0 and 1, and whether the answer is right under EX."""
        found = []
        for part in self.parts().values():
            right = {item["id"]: bool(item["ex"]) for item in part.report["items"]}
            p_correct = {trace["id"]: trace["flags"].get("confidence") for trace in part.traces(("flags",))}
            found += [(p_correct[id_], ex) for id_, ex in right.items() if p_correct.get(id_) is not None]
        return found

    def episode(self, id_: str) -> Shown:
        """One question's episode, which a notebook shows with its trace. Raises UsageError for an unknown id."""
        for part in self.parts().values():
            for trace in part.traces():
                if trace["id"] == id_:
                    return Shown(trace)
        raise UsageError(f"the run has no question {id_!r}; its ids: run.to_dataframe()['id']")

    def _repr_html_(self) -> str:
        from nl2sql.runs.summary import summary_html

        return summary_html(self.report)


def _unique(name: str, taken: Collection[str]) -> str:
    numbers = itertools.count(2)
    label = name
    while label in taken:
        label = f"{name} ({next(numbers)})"
    return label


def shared_ex(runs: Sequence[Run]) -> str:
    """The name of the EX metric of all runs. Raises UsageError where they were scored by different rules."""
    names = [next(name for name in run.report["metrics"] if name.startswith("EX[")) for run in runs]
    if len(set(names)) > 1:
        other = next(run for run, name in zip(runs, names, strict=True) if name != names[0])
        rule = names[0].removeprefix("EX[").removesuffix("]")
        raise UsageError(
            f"the runs were scored by different rules ({', '.join(sorted(set(names)))}); "
            f"score them by one: nl2sql runs replay {typed(other.folder)} -c eval.rule={rule} --replace"
        )
    return names[0]


# --------------------------------------------------------------------------------- notes on answers
#     {"run": "5f0c...", "db_id": "shop", "id": "shop-003", "tags": ["wrong column"], "note": "asks for the title"}
#
# A line is one note; the last of a question counts, and an empty one takes it back. ``run`` is the
# key of the manifest: one file may hold the notes on several runs. Written by ``nl2sql runs view``
# and by the report's page, read by both and by ``nl2sql runs failures``.

FILE = "notes.jsonl"
MOST_TAGS, LONGEST_TAG, LONGEST_NOTE = 20, 60, 10_000  # of one note; the latter two in characters

Note = dict[str, Any]


def notes_of(run: Run, file: Path | None = None) -> dict[tuple[str, str], Note]:
    """(database, question id) -> ``{"tags": [...], "note": "..."}``, of the run's folder and then of ``file``.

    Raises UsageError for a file that is not there, or has other lines than notes.
    """
    if file is not None and not file.is_file():
        raise UsageError(f"--notes {file} does not exist; save one with the button Save notes of the run's report")
    found: dict[tuple[str, str], Note] = {}
    for path in (run.folder / FILE, *([file] if file else [])):
        for number, line in enumerate(iter_jsonl(path), 1):
            try:
                where, note = (str(line["db_id"]), str(line["id"])), _note(line["tags"], line["note"])
                of = line["run"]
            except (KeyError, TypeError):
                raise UsageError(f"{path} line {number} is no note; expected run, db_id, id, tags and note") from None
            if of == run.manifest["key"]:
                found[where] = note
    return {where: note for where, note in found.items() if note["tags"] or note["note"]}


def add_note(run: Run, db_id: str, id_: str, tags: Iterable[str], note: str) -> None:
    """Write one note into the run's folder. Raises UsageError for a question that the run has not."""
    if not any(item["id"] == id_ and item["db_id"] == db_id for item in run.report["items"]):
        raise UsageError(f"the run has no question {id_!r} of {db_id!r}")
    line: Mapping[str, Any] = {"run": run.manifest["key"], "db_id": db_id, "id": id_, **_note(list(tags), note)}
    with open_regular(run.folder / FILE, "ab") as out:
        out.write((json_text(line) + "\n").encode())


def _note(tags: list[Any], note: str) -> Note:
    words = dict.fromkeys(" ".join(str(tag).split())[:LONGEST_TAG] for tag in tags)
    return {"tags": [word for word in words if word][:MOST_TAGS], "note": str(note).strip()[:LONGEST_NOTE]}


# ------------------------------------------------------------------------- several runs in one table

_DATABASE = itemgetter(slice(2))  # of a question's key: its benchmark and database


@dataclass(frozen=True)
class System:
    """A line of the table: a run, or a control of runs. Usage and metrics are those of ``report.json``.

    The tests are of EX: against the run's own control, and against the first run, adjusted over all others.
    """

    label: str
    is_control: bool
    n: int
    metrics: Mapping[str, Mapping[str, Any]]
    usage: Mapping[str, float]
    by_hardness: Mapping[str, Mapping[str, Mapping[str, Any]]]
    against_control: PairedTest | None = None
    against_first: PairedTest | None = None

    @property
    def tokens(self) -> float:
        """Prompt and completion tokens per question."""
        return (self.usage["prompt_tokens"] + self.usage["completion_tokens"]) / max(1, self.n)


@dataclass(frozen=True)
class Collected:
    """Runs under unique labels, and the table's systems: each run, then the controls that differ."""

    runs: dict[str, Run]
    systems: list[System]
    metrics: list[str]
    ex: str  # the name of the EX metric, with its rule


def collect(folders: Iterable[str | Path]) -> Collected:
    """Read run folders: a run with seeds as one run per seed, an ablation's folder as its cells.

    Raises UsageError for what cannot stand in one table.
    """
    paths = [cell for folder in folders for cell in _cells_of(Path(folder))]
    if not paths:
        raise UsageError("no run given; example: nl2sql report runs/dev --out report.html")
    runs: dict[str, Run] = {}
    for path in paths:
        run = Run.load(path)
        for seed, part in run.parts().items():
            name = f"{path.resolve().name}/{seed}" if seed else path.resolve().name
            runs[_unique(name, runs)] = part
    ex = shared_ex(list(runs.values()))
    metrics = list(dict.fromkeys(name for run in runs.values() for name in run.report["metrics"]))
    order = ("VA", "EM", "EX", "TS")
    metrics.sort(key=lambda name: next((i for i, start in enumerate(order) if name.startswith(start)), len(order)))
    (first, baseline), *others = runs.items()
    tests = {label: paired_test(first, right_of(run), right_of(baseline), _DATABASE) for label, run in others}
    tests = {label: test for label, test in tests.items() if test.n}  # not of other questions than the first run's
    by_label = dict(zip(tests, adjusted(list(tests.values())), strict=True))
    systems = [_system(label, run, by_label.get(label)) for label, run in runs.items()]
    systems += _controls(runs)
    return Collected(runs, systems, metrics, ex)


def _cells_of(folder: Path) -> list[Path]:
    """The folder itself, or the cells of a finished ablation, base first."""
    path = folder / TABLE
    if not path.exists():
        return [folder]
    try:
        data = read_json(path)
        cells = [inside(folder, cell["name"]) for cell in data["cells"]]
        command = data.get("command") or f"nl2sql ablate GRID --out {typed(folder)}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is not an ablation's; name the run folders in {folder} one by one") from None
    if pending := [cell.name for cell in cells if not (cell / "report.json").exists()]:
        raise UsageError(
            f"{folder} owes {len(pending)} of its {len(cells)} cells (first: {pending[0]}); finish it with: {command}, "
            "or name the run folders of finished cells"
        )
    return cells


def right_of(run: Run, key: str = "ex") -> dict[QuestionKey, bool]:
    """Question -> was it right, for the run (``ex``) or one of its controls (``ex_single_shot``, ...)."""
    return {run.key_of(item): bool(item[key]) for item in run.report["items"] if key in item}


def _system(label: str, run: Run, against_first: PairedTest | None) -> System:
    report, control = run.report, right_of(run, "ex_single_shot")
    against_control = paired_test("single_shot", right_of(run), control, _DATABASE) if control else None
    numbers = (report["n"], report["metrics"], report["usage"], report["by_hardness"])
    return System(label, False, *numbers, against_control, against_first)


def _controls(runs: Mapping[str, Run]) -> list[System]:
    """The controls; those with the same numbers (the same model on the same questions) are one line."""
    systems: list[tuple[System, list[str]]] = []
    for label, run in runs.items():
        for name, control in list(systems_of(run.report).items())[1:]:
            same = [of for system, of in systems if system.label == name and system.metrics == control["metrics"]]
            if same:
                same[0].append(label)
                continue
            numbers = (control["n"], control["metrics"], control["usage"], control.get("by_hardness", {}))
            systems.append((System(name, True, *numbers), [label]))
    counts = [*runs, *(system.label for system, _ in systems)]  # a run's folder may have the name of a control
    return [
        replace(system, label=f"{system.label} of {', '.join(of)}") if counts.count(system.label) > 1 else system
        for system, of in systems
    ]


# ---------------------------------------------------------------------------- the table for a paper
# One row for each run and each of its controls; models and benchmarks may differ. *won* and *lost*
# count the questions that only the run, or only its control with guardrails, has right.

HEAD = "model|benchmark|pipeline|n|VA|EX|TS|won|lost|p (clustered)|tokens / question|seconds / question"
MORE = "p (McNemar)|EM|calls / question"  # columns with --verbose


def paper_rows(reports: Iterable[Mapping[str, Any]], *, verbose: bool = False) -> list[list[str]]:
    """The table as text cells, its header first; a control that several runs share stands once.

    reports: the ``report`` of each run. p is the paired test by database. Where answers came from the response cache
    the seconds are no measurement, and ``cached`` stands in their place. verbose: with the columns of ``MORE``.
    """
    rows = [[*HEAD.split("|"), *(MORE.split("|") if verbose else [])]]
    for report in reports:
        for place, (name, system) in enumerate(systems_of(report).items()):
            test = report["paired"] if place == 0 else {}
            numbers = _numbers(report, system, test)
            numbers = numbers if verbose else numbers[: -len(MORE.split("|"))]
            row = [report["model"], report["benchmark"], name, *numbers]
            if row not in rows:
                rows.append(row)
    return rows


def _numbers(report: Mapping[str, Any], system: Mapping[str, Any], tests: Mapping[str, Any]) -> list[str]:
    """The cells of a row behind its names, those of ``MORE`` included."""
    n, usage = max(1, report["n"]), system["usage"]
    shown = {name[:2]: percent(metric) for name, metric in system["metrics"].items()}
    paired = next((test for name, test in tests.items() if name.startswith("EX")), None)
    against, mcnemar = [""] * 3, ""
    if paired:
        against = [str(paired["wins"]), str(paired["losses"]), f"{paired['p_databases']:.2g}"]
        mcnemar = f"{paired['p']:.2g}"
    tokens = f"{(usage['prompt_tokens'] + usage['completion_tokens']) / n:,.0f}"
    seconds = "cached" if usage.get("cached_calls") else f"{usage['seconds'] / n:.2f}"
    metrics = [shown.get(name, "") for name in ("VA", "EX", "TS")]
    more = [mcnemar, shown.get("EM", ""), f"{usage['model_calls'] / n:,.1f}"]
    return [str(report["n"]), *metrics, *against, tokens, seconds, *more]


def spread_rows(runs: Iterable[Run]) -> list[list[str]]:
    """Rows of mean ± standard deviation for runs that differ in nothing but their seed; none for single ones.

    runs: also those with ``--seeds``, each of whose seeds counts as one. The columns are those of ``HEAD``; ``n`` is
    the questions of each.
    """
    groups: dict[str, tuple[Mapping[str, Any], list[Mapping[str, Any]]]] = {}
    for run in runs:
        plan = {name: value for name, value in run.manifest["plan"].items() if name != "seeds"}
        config = {name: value for name, value in run.manifest["config"].items() if name != "seed"}
        key = json.dumps([plan, config, run.report["n"]], sort_keys=True)
        _, members = groups.setdefault(key, (run.report, []))
        members += run.report.get("seeds", {"": run.report}).values()
    return [_spread(report, members) for report, members in groups.values() if len(members) > 1]


def _spread(report: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> list[str]:
    n = max(1, report["n"])
    drawn = [{name[:2]: metric["value"] for name, metric in of["metrics"].items()} for of in members]
    shown = [_mean([100 * of[name] for of in drawn]) if name in drawn[0] else "" for name in ("VA", "EX", "TS")]
    usages = [of["usage"] for of in members]
    tokens = _mean([(usage["prompt_tokens"] + usage["completion_tokens"]) / n for usage in usages], 0)
    cached = any(usage.get("cached_calls") for usage in usages)
    seconds = "cached" if cached else _mean([usage["seconds"] / n for usage in usages], 2)
    name = f"{report['controller']}, mean of {len(members)} seeds ± SD"
    return [report["model"], report["benchmark"], name, str(report["n"]), *shown, "", "", "", tokens, seconds]


def _mean(values: Sequence[float], digits: int = 1) -> str:
    return f"{mean(values):,.{digits}f} ± {stdev(values):,.{digits}f}"
