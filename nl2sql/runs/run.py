"""A finished run as a notebook holds it: manifest, report, predictions and traces, notes on its answers, a figure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.agents.display import Shown
from nl2sql.agents.record import json_text
from nl2sql.errors import UsageError, typed
from nl2sql.eval.scores import item_field
from nl2sql.eval.stats import mcnemar, wilson_interval
from nl2sql.machine import missing_part
from nl2sql.runs.folder import QuestionKey, RunFolder, iter_jsonl, parts_of, read_json, read_manifest
from nl2sql.runs.plan import systems_of
from nl2sql.safe_files import open_regular

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox


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
            name, number = run.folder.resolve().name, 1
            while name in reports:
                number += 1
                name = f"{run.folder.resolve().name} {number}"
            reports[name] = run.report
        return plot_reports(reports, shared_ex([self, *others]), self.confidences())

    def confidences(self) -> list[tuple[float, bool]]:
        """Of each answer that has one, its confidence between 0 and 1, and whether the answer is right under EX."""
        found = []
        for part in self.parts().values():
            right = {item["id"]: bool(item["ex"]) for item in part.report["items"]}
            sure = {trace["id"]: trace["flags"].get("confidence") for trace in part.traces(("flags",))}
            found += [(sure[id_], ex) for id_, ex in right.items() if sure.get(id_) is not None]
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


# --------------------------------------------------------------------------------------- the figure

_FIRST, _OTHERS, _CONTROLS = "#2f6bd8", ("#d9822b", "#12927f", "#8757cf", "#c4447c"), ("#8a94a6", "#b9c0cc", "#d6dae1")
MOST_BINS = 5  # of the confidence, equally many answers in each
Systems = Mapping[str, tuple[str, Mapping[str, Any]]]  # name -> colour and numbers


def plot_reports(
    reports: Mapping[str, Mapping[str, Any]], metric: str, sure: Sequence[tuple[float, bool]] = ()
) -> Figure:
    """EX by hardness, cost against accuracy and, where the first run has confidences, their reliability.

    reports: by the names of their folders; the controls of the first stand beside it. metric: the name of EX in all of
    them. sure: of the first run's answers the confidence, between 0 and 1, and whether the answer is right. Intervals
    are 95%, as the reports have them; those of the reliability are Wilson's [30].
    """
    from matplotlib import pyplot

    systems, report = _systems(reports), next(iter(reports.values()))
    widths = (5, 3, 3) if sure else (5, 3)
    figure = pyplot.figure(figsize=(1.15 * sum(widths) + 1, 3.8), layout="constrained")  # loads a notebook's backend
    pyplot.close(figure)  # or the notebook shows it twice
    axes = figure.subplots(1, len(widths), width_ratios=widths)
    _draw_ex(axes[0], systems, metric)
    labels = _draw_cost(axes[1], systems, metric)
    if sure:
        _draw_reliability(axes[2], sure)
    figure.suptitle(f"{report['benchmark']}, {report['n']} questions, {report['model']}", fontsize="medium")
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="y", color="#00000018")
        each.set_axisbelow(True)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(5, len(systems)))
    figure.draw_without_rendering()  # lays out the axes, before labels move down until none lies over another
    placed: list[Bbox] = []
    for label in sorted(labels, key=lambda each: -each.xy[1]):
        while any(label.get_window_extent().overlaps(other) for other in placed):
            x, y = label.get_position()
            label.set_position((x, y - 2))
        placed.append(label.get_window_extent())
    return figure


def _systems(reports: Mapping[str, Mapping[str, Any]]) -> Systems:
    """The first run, its controls, the other runs."""
    first = next(iter(reports.values()))
    name, *controls = systems_of(first)
    systems: dict[str, tuple[str, Mapping[str, Any]]] = {name: (_FIRST, first)}
    systems |= {name: (_CONTROLS[at % 3], systems_of(first)[name]) for at, name in enumerate(controls)}
    for at, (folder, report) in enumerate(list(reports.items())[1:]):
        label = str(report["controller"])
        label = f"{label} ({folder})" if label in systems else label
        systems[label] = (_OTHERS[at % len(_OTHERS)], report)
    return systems


def _draw_ex(axes: Axes, systems: Systems, metric: str) -> None:
    _, first = next(iter(systems.values()))
    levels = ["all", *first["by_hardness"]]
    width = 0.8 / len(systems)  # groups stand 1 apart
    for number, (name, (colour, system)) in enumerate(systems.items()):
        parts = {"all": system["metrics"], **system["by_hardness"]}
        metrics = [parts[level][metric] if level in parts else {"n": 0} for level in levels]
        drawn = [(group, each) for group, each in enumerate(metrics) if each["n"]]
        axes.bar(
            [group + (number - (len(systems) - 1) / 2) * width for group, _ in drawn],
            [each["value"] for _, each in drawn],
            width,
            yerr=_reach([each for _, each in drawn]),
            capsize=2,
            color=colour,
            ecolor="#3a4656",
            label=name,
        )
    sizes = [first["n"], *(first["by_hardness"][level][metric]["n"] for level in levels[1:])]
    axes.set_xticks(range(len(levels)), [f"{level}\nn = {n}" for level, n in zip(levels, sizes, strict=True)])
    _share_axis(axes, f"{metric}, 95% interval")
    axes.set_title("EX by hardness", fontsize="medium")


def _draw_cost(axes: Axes, systems: Systems, metric: str) -> list[Annotation]:
    """A point per system at its tokens a question; its seconds a question stand beside it, in the labels returned."""
    from matplotlib.ticker import EngFormatter, FixedLocator, NullLocator

    points: list[tuple[float, float]] = []
    labels: list[Annotation] = []
    for colour, system in reversed(list(systems.values())):  # the first run on top
        each, usage, n = system["metrics"][metric], system["usage"], max(1, system["n"])
        tokens = max(1.0, (usage["prompt_tokens"] + usage["completion_tokens"]) / n)
        axes.errorbar([tokens], [each["value"]], yerr=_reach([each]), fmt="o", capsize=3, color=colour, ecolor=colour)
        if (point := (tokens, each["value"])) not in points:
            points.append(point)
            seconds = f"{usage['seconds'] / n:.2g} s"
            labels.append(axes.annotate(seconds, point, (7, 4), textcoords="offset points", fontsize="small"))
    axes.set_xscale("log")
    axes.set_xlim(min(x for x, _ in points) / 2, 3 * max(x for x, _ in points))
    axes.xaxis.set_major_locator(FixedLocator([number * 10**power for power in range(8) for number in (1, 3)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("tokens a question (beside it: seconds)")
    _share_axis(axes, metric)
    axes.set_title("cost against accuracy", fontsize="medium")
    return labels


def _draw_reliability(axes: Axes, sure: Sequence[tuple[float, bool]]) -> None:
    """How many answers are right, over how sure the system was of them; on the diagonal it is as good as it says."""
    ordered = sorted(sure)
    bins = min(MOST_BINS, max(1, len(ordered) // 4))
    edges = [round(len(ordered) * at / bins) for at in range(bins + 1)]
    groups = [ordered[a:b] for a, b in pairwise(edges)]
    means = [sum(value for value, _ in group) / len(group) for group in groups]
    shares = [wilson_interval(sum(right for _, right in group) / len(group), len(group)) for group in groups]
    found = [share.to_dict() for share in shares]
    axes.plot([0, 1], [0, 1], linestyle="--", linewidth=1, color="#8a94a6")
    axes.errorbar(
        means, [share.value for share in shares], yerr=_reach(found), fmt="o-", capsize=3, color=_FIRST, linewidth=1
    )
    axes.set_xlim(0, 1)
    axes.set_xlabel(f"confidence, {len(groups)} groups of {len(ordered) // len(groups)} answers")
    _share_axis(axes, "share that is right")
    axes.set_title("reliability of the confidence", fontsize="medium")


def _share_axis(axes: Axes, label: str) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel(label)


def _reach(intervals: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """How far the intervals reach below and above their values."""
    below = [max(0.0, each["value"] - each["low"]) for each in intervals]
    return [below, [max(0.0, each["high"] - each["value"]) for each in intervals]]
