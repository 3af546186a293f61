"""Ablations: the cells of a grid as ordinary, resumable runs in one folder, and the table that compares them.

Every cell lies in ``OUT/<name>`` and can be resumed, replayed and reported like any run. What is finished is not done
again: carrying the same grid out again does what is owed. Cells are compared with the base question by question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from nl2sql import __version__
from nl2sql.agents.controllers import get_controller
from nl2sql.agents.prompts import prompt_hashes
from nl2sql.agents.resources import members
from nl2sql.config.plugins import named_functions
from nl2sql.errors import Cancelled, UsageError
from nl2sql.eval.scores import item_field, one_metric
from nl2sql.eval.scoring import metric_names
from nl2sql.eval.settings import Settings
from nl2sql.eval.stats import PairedTest, adjusted, paired_test, percent
from nl2sql.eval.tables import table_html, table_text
from nl2sql.machine import from_json
from nl2sql.models.spec import resolve_spec
from nl2sql.runs.ablation.grid import BASE, TABLE
from nl2sql.runs.carry_out import carry_out
from nl2sql.runs.folder import left_as_found, locked, read_manifest, write_json
from nl2sql.runs.job import LOCAL, Cell, Executor, Opened, model_options
from nl2sql.runs.metrics import cell_notes, vizql_notes
from nl2sql.runs.plan import Plan, control_stores, read_plan, weights_of
from nl2sql.runs.rescore import owed_of
from nl2sql.runs.run import Run, shared_ex
from nl2sql.runs.summary import seconds_text

FORMAT = 1


@dataclass(frozen=True, repr=False)
class Ablation:
    """The finished cells of a grid, base first."""

    folder: Path
    cells: Sequence[Cell]
    runs: Mapping[str, Run]

    def tests(self, metric: str | None = None) -> dict[str, PairedTest]:
        """Cell -> its paired tests against the base by ``metric`` (default: EX), adjusted over all cells by Holm.

        Raises UsageError for a metric that the runs have not.
        """
        chosen = self.metric(metric)
        verdicts = {
            name: {item["id"]: bool(item[item_field(chosen)]) for item in run.report["items"]}
            for name, run in self.runs.items()
        }
        databases = {item["id"]: item["db_id"] for run in self.runs.values() for item in run.report["items"]}
        names = [cell.name for cell in self.cells if cell.name != BASE]
        tests = adjusted([paired_test(BASE, verdicts[name], verdicts[BASE], databases.get) for name in names])
        return dict(zip(names, tests, strict=True))

    def metric(self, name: str | None) -> str:
        """A metric that every cell has; EX under the runs' rule where none is named. Raises UsageError."""
        known = [
            m for m in self.runs[BASE].report["metrics"] if all(m in r.report["metrics"] for r in self.runs.values())
        ]
        return one_metric(name, known) if name else shared_ex(list(self.runs.values()))

    def to_dict(self, metric: str | None = None) -> dict[str, Any]:
        """The table as plain data: per cell what was changed, its run, metrics, usage, alarms and test."""
        tests = self.tests(metric)
        base = self.runs[BASE].report
        cells = []
        for cell in self.cells:
            report = self.runs[cell.name].report
            shown = {name: report[name] for name in ("run", "n", "metrics", "usage", "counts", "alarms", "warnings")}
            shown |= {part: report[part] for part in ("dialogues", "vizql") if part in report}
            test = asdict(tests[cell.name]) if cell.name in tests else None
            cells.append({"name": cell.name, "changed": dict(cell.changed), **shown, "test": test})
        about = {"benchmark": base["benchmark"], "split": self.cells[0].plan.split, "n": base["n"]}
        control = {name: control["metrics"] for name, control in base["control"].items()}
        return {"folder": str(self.folder), **about, "metric": self.metric(metric), "control": control, "cells": cells}

    def __repr__(self) -> str:
        return f"<ablation {self.folder.name}: {len(self.cells)} cells>"

    def _repr_html_(self) -> str:
        data = self.to_dict()
        return table_html(ablation_rows(data), ablation_notes(data))


def ablate(
    cells: Sequence[Cell],
    out: str | Path,
    *,
    command: str = "",
    progress: bool = True,
    executor: Executor = LOCAL,
) -> Ablation:
    """Carry out what the cells of a grid still owe in ``out`` and return all of them.

    command: what continues an interrupted ablation, for messages. executor: carries out every cell's episodes and
    scoring. Raises UsageError where ``out`` holds anything but an ablation of this version,
    a cell that was run with other settings, or a model that is none; Cancelled when interrupted.
    """
    new = not Path(out).expanduser().exists()
    folder = _open(Path(out))
    head = {"format": FORMAT, "nl2sql": __version__, "command": command}
    with left_as_found(folder, new), locked(folder):
        _check_rules(cells)
        _check_started(folder, cells)
        finished = {cell.name: run for cell in cells if (run := _finished(folder / cell.name, cell)) is not None}
        owed = sorted((cell for cell in cells if cell.name not in finished), key=lambda cell: model_options(cell.plan))
        if owed:
            _check_owed(owed, executor)
            with Opened(owed[0].plan, executor=executor) as opened:
                opened.fit(owed[0])
                write_json(folder / TABLE, head | {"cells": _described(cells)})
                finished |= _carried_out(owed, folder, opened, command, progress, len(cells))
        _check_comparable(folder, cells, finished)
        ablation = Ablation(folder, cells, {cell.name: finished[cell.name] for cell in cells})
        write_json(folder / TABLE, head | ablation.to_dict())
    return ablation


def _open(folder: Path) -> Path:
    """The folder of an ablation, new or begun."""
    folder = folder.expanduser()
    path = folder / TABLE
    if (folder / "manifest.json").exists():
        raise UsageError(f"--out {folder} holds a run of nl2sql eval; name another folder for the ablation")
    if path.exists():
        try:
            begun = from_json(path.read_text(encoding="utf-8"))
            format_, writer = begun["format"], begun["nl2sql"]
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{path} is not an ablation's; name another --out") from None
        if format_ != FORMAT:
            raise UsageError(
                f"--out {folder} has ablation format {format_!r} of nl2sql {writer}; version {__version__} writes "
                f"format {FORMAT}: name another --out"
            )
    elif folder.exists() and (not folder.is_dir() or any(not p.name.startswith(".") for p in folder.iterdir())):
        raise UsageError(f"--out {folder} is not empty and no ablation; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be created: {error.strerror}") from None
    return folder


def _check_rules(cells: Sequence[Cell]) -> None:
    """All cells are scored by one rule. Raises UsageError."""
    rule = cells[0].config.eval.rule
    for cell in cells:
        if cell.config.eval.rule != rule:
            raise UsageError(
                f"cell {cell.name} is scored by {cell.config.eval.rule} and cell {cells[0].name} by {rule}, so nothing "
                f"compares them; score all by one, e.g. nl2sql ablate GRID -c eval.rule={cell.config.eval.rule}"
            )


def check_metric(cells: Sequence[Cell], metric: str) -> None:
    """``Ablation.metric`` before a cell has run. Raises UsageError for a metric that the cells will not all have."""
    first, *others = (metric_names(cell.config.eval) for cell in cells)
    one_metric(metric, [name for name in first if all(name in names for names in others)])


def _check_owed(cells: Sequence[Cell], executor: Executor) -> None:
    """What can be known before the first cell runs. Raises UsageError."""
    for cell in cells:
        try:
            Settings(cell.config.eval)
            resolve_spec(cell.plan.model)
            executor.check(cell.plan, cell.config)
        except UsageError as error:
            raise UsageError(f"cell {cell.name}: {error}") from None


def _described(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    return [{"name": cell.name, "changed": dict(cell.changed)} for cell in cells]


def _check_started(folder: Path, cells: Sequence[Cell]) -> None:
    """No cell was begun with other settings. All are looked at before one of them is run."""
    for cell in cells:
        place = folder / cell.name
        if not (place / "manifest.json").exists():
            continue
        plan, config = read_plan(place)
        before, now = _flat(plan, config), _flat(cell.plan, cell.config)
        changed = [key for key in now if before.get(key) != now[key]]
        if changed:
            key = changed[0]
            raise UsageError(
                f"cell {cell.name} in {folder} was begun with {key}={before.get(key)!r}, and the grid now says "
                f"{now[key]!r}; name another --out, or give the cell another name"
            )


def _flat(plan: Plan, config: Any) -> dict[str, Any]:
    """Every setting of a run by its dotted key."""
    settings: dict[str, Any] = {key: value for key, value in asdict(plan).items() if key not in ("batch_size", "cache")}

    def walk(node: Any, prefix: str) -> None:
        for key, value in node.items():
            if isinstance(value, dict) and value:
                walk(value, f"{prefix}{key}.")
            else:
                settings[f"{prefix}{key}"] = value

    walk(config.model_dump(), "")
    return settings


def _finished(place: Path, cell: Cell) -> Run | None:
    """The run of a cell that owes nothing and rests on what is there now; None: it has to be carried out or scored."""
    if not (place / "manifest.json").exists() or not (place / "report.json").exists():
        return None
    manifest = read_manifest(place)
    if manifest["controller"]["identity"] != get_controller(cell.plan.controller).identity:
        return None  # carry_out says what changed
    if manifest["prompts"] != prompt_hashes(cell.config.prompts):
        return None
    tools, gates = (named_functions(kind, getattr(cell.plan, kind)) for kind in ("tools", "gates"))
    if manifest.get("members", {}) != members(cell.config, tools, gates):
        return None
    return None if owed_of(place) else Run.load(place)


def _check_comparable(folder: Path, cells: Sequence[Cell], runs: Mapping[str, Run]) -> None:
    """All cells were run on the same questions and databases, and those of one model on the same weights."""
    first = runs[BASE].manifest["fingerprints"]
    weights: dict[tuple[str, ...], tuple[str, Any]] = {}
    for cell in cells:
        manifest = runs[cell.name].manifest
        prints = manifest["fingerprints"]
        changed = [name for name in {**first, **prints} if first.get(name) != prints.get(name)]
        used = weights_of(manifest["model"])
        other, theirs = weights.setdefault(model_options(cell.plan), (cell.name, used))
        if used != theirs:
            changed.append(f"model {cell.plan.model} (since cell {other})")
        if changed:
            raise UsageError(
                f"cell {cell.name} in {folder} cannot be compared: {', '.join(changed)} changed between the cells; "
                "name another --out"
            )


def _carried_out(
    owed: Sequence[Cell], folder: Path, opened: Opened, command: str, progress: bool, cells: int
) -> dict[str, Run]:
    """The owed ones of ``cells`` cells, one after the other; one bar counts the questions of all."""
    total = sum(len(opened.questions) * _phases(cell) for cell in owed)
    runs: dict[str, Run] = {}
    with tqdm(total=total, unit="question", disable=not progress) as bar:
        for number, cell in enumerate(owed, cells - len(owed) + 1):
            bar.set_description(f"{cell.name} ({number} of {cells})")
            try:
                runs[cell.name] = carry_out(cell, folder / cell.name, opened, advance=bar.update)
            except (Cancelled, KeyboardInterrupt):
                again = f"; continue with: {command}" if command else ""
                raise Cancelled(
                    f"interrupted in cell {cell.name}; what is finished is kept in {folder}{again}"
                ) from None
    return runs


def _phases(cell: Cell) -> int:
    """How often a cell asks each question: the run and its controls."""
    return 1 + len(control_stores(cell.plan, get_controller(cell.plan.controller)))


# --------------------------------------------------------------------------------------------------- showing


def ablation_rows(data: Mapping[str, Any]) -> list[list[str]]:
    """The table of ``Ablation.to_dict`` as text cells; the first row is the header."""
    name = data["metric"]
    rows = [
        [
            "cell",
            name,
            "points",
            "won",
            "lost",
            "p",
            "p (Holm)",
            "by database (Holm)",
            "detects",
            "overrides",
            "repairs",
            "tokens / question",
            "seconds",
        ]
    ]
    for cell in data["cells"]:
        usage, test = cell["usage"], cell["test"]
        spent = (usage["prompt_tokens"] + usage["completion_tokens"]) / max(1, cell["n"])
        against = [""] * 7
        if test:
            detects = "nothing" if test["detectable"] is None else f"{100 * test['detectable']:.1f}"
            counts = [f"{100 * test['difference']:+.1f}", str(test["wins"]), str(test["losses"])]
            ps = [f"{test[name]:.3g}" for name in ("p", "p_holm", "p_databases_holm")]
            against = [*counts, *ps, detects]
        shown = percent(cell["metrics"][name])
        counts = cell["counts"]
        repairs = f"{counts['repairs_accepted']} of {counts['repairs_forced'] + counts['repairs_asked']}"
        looped = [str(counts["overrides"]), repairs]
        rows.append([cell["name"], shown, *against, *looped, f"{spent:,.0f}", seconds_text(usage)])
    for kind, metrics in data["control"].items():
        rows.append([f"single_shot, {kind.replace('_', ' ')}", percent(metrics[name]), *[""] * 11])
    return rows


def ablation_notes(data: Mapping[str, Any]) -> list[str]:
    """The lines under the table."""
    alarms = [f"ALARM {cell['name']}: {alarm}" for cell in data["cells"] for alarm in cell["alarms"]]
    cached = [cell["name"] for cell in data["cells"] if cell["usage"].get("cached_calls")]
    answered = (
        f"answered by the response cache, in part or whole, their seconds are no measurement: {', '.join(cached)}"
    )
    return [
        *alarms,
        *([answered] if cached else []),
        *cell_notes(data["cells"]),
        *(line for cell in data["cells"] if "vizql" in cell for line in vizql_notes(cell["vizql"], cell["name"])),
        f"points, won, lost: against {BASE}; p: exact McNemar over the same questions, and adjusted over cells (Holm)",
        "overrides: actions that the loop forced; repairs: calls of repair_sql whose query was accepted, of all calls",
        "detects: the smallest difference, in points, that such a test is likely to find (power 0.8, without Holm)",
    ]


def ablation_text(ablation: Ablation, metric: str | None = None) -> str:
    """The table of an ablation with its notes, as plain text."""
    data = ablation.to_dict(metric)
    about = f"{data['n']} questions of {data['benchmark']} ({data['split'] or 'all'})"
    return "\n".join([about, "", *table_text(ablation_rows(data)), "", *ablation_notes(data)])
