"""Ablations: a grid of cells, each an ordinary, resumable run in one folder, and the table that compares them.

    base:                                   # what all cells share: options of nl2sql eval, and a config
      benchmark: packaged
      split: dev
      limit: 120
      model: smollm2-135m
      config: {eval: {replicas: 0}}
    design: one-at-a-time                   # or grid: every combination of the axes
    axes:                                   # any config key, or controller, model, adapter, dtype, engine
      react.repair: [false]
      react.max_steps: [4, 8]
    cells:                                  # further cells by name, each a set of keys over the base
      renamed: {}
      bare: {react.guardrails: false, react.repair: false}

The grid is expanded and checked before anything runs. The first cell is always ``base`` itself; the others are compared
with it question by question. Every cell lies in ``OUT/<name>`` and can be resumed, replayed and reported like any run.
What is finished is not done again: carrying the same grid out again does what is owed.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from tqdm.auto import tqdm

from nl2sql import __version__
from nl2sql.agents.controllers import get_controller, timeless
from nl2sql.agents.prompts import prompt_hashes
from nl2sql.agents.resources import part_fingerprints
from nl2sql.config import build_config, config_keys, known_keys, merge, read_override
from nl2sql.config.plugins import named_functions
from nl2sql.errors import Cancelled, UsageError
from nl2sql.eval.scores import item_field, one_metric
from nl2sql.eval.scoring import metric_names
from nl2sql.eval.settings import Settings
from nl2sql.eval.stats import PairedTest, adjusted, paired_test, percent
from nl2sql.eval.tables import table_html, table_text
from nl2sql.machine import from_json, from_yaml
from nl2sql.models.load import resolve_spec
from nl2sql.runs.dialogues import cell_notes
from nl2sql.runs.evaluate import run_trial
from nl2sql.runs.folder import TABLE, holds_files, left_as_found, locked, made, read_manifest, write_json
from nl2sql.runs.job import LOCAL, Executor, RunContext, Trial, model_options
from nl2sql.runs.plan import (
    RunSpec,
    absolute,
    control_stores,
    default_split,
    flat,
    kinds_of_plan,
    read_plan,
    weights_of,
)
from nl2sql.runs.rescore import pending_of
from nl2sql.runs.run import Run, shared_ex
from nl2sql.runs.summary import seconds_text, vizql_notes

FORMAT = 1
BASE = "base"
DESIGNS = ("one-at-a-time", "grid")
SHARED = (  # options of every cell alike: cells are compared question by question, on one machine
    *("benchmark", "split", "limit", "sample_seed", "device", "batch_size", "server", "cache", "control"),
    *("equal_tokens", "engine_url", "history", "corrections", "tools", "gates"),
)
LISTS = {"server": "price_in=0.1", "tools": "my_tools.py:look_up", "gates": "my_gates.py:no_star"}
PLAN_AXES = ("controller", "model", "adapter", "dtype", "engine")
MOST_CELLS = 500
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,=+-]{0,80}")


def read_grid(path: str | Path, overrides: Sequence[str] = ()) -> list[Trial]:
    """The cells of a grid file, base first. Raises UsageError with one line that names what is wrong and where.

    overrides: ``key=value`` settings over the config of its base.
    """
    return grid_data(path, overrides)[1]


def grid_data(path: str | Path, overrides: Sequence[str] = ()) -> tuple[dict[str, Any], list[Trial]]:
    """A grid file's contents as plain data, for scripts that change the base, and its cells. Raises UsageError."""
    file = Path(path)
    try:
        data = from_yaml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"grid {file} does not exist; copy some with: nl2sql new examples my-examples") from None
    except IsADirectoryError:
        raise UsageError(f"grid {file} is a folder; name a YAML file: nl2sql ablate GRID.yaml --out DIR") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"grid {file} cannot be read: {' '.join(str(error).split())[:200]}") from None
    try:
        return data, expand(data, overrides)
    except UsageError as error:
        raise UsageError(f"grid {file}: {error}") from None


def expand(data: Any, overrides: Sequence[str] = ()) -> list[Trial]:
    """The cells of a grid given as plain data, with ``key=value`` overrides of its base's config. Raises UsageError."""
    _check_keys(_mapping(data, "the grid"), ("base", "design", "axes", "cells"), "the grid")
    base = dict(_mapping(data.get("base") or {}, "base"))
    _check_keys(base, (*SHARED, *PLAN_AXES, "config"), "base")
    base["config"] = deepcopy(_mapping(base.get("config") or {}, "base config"))
    for item in overrides:
        merge(base["config"], read_override(item))
    design = data.get("design", DESIGNS[0])
    if design not in DESIGNS:
        raise UsageError(f"design {design!r}; expected {' or '.join(DESIGNS)}")
    axes = _axes(_mapping(data.get("axes") or {}, "axes"))
    named = _mapping(data.get("cells") or {}, "cells")
    if not axes and not named:
        raise UsageError("it has neither axes nor cells; nothing would be compared with the base")
    if design == "grid" and (size := math.prod(map(len, axes.values()))) > MOST_CELLS:
        raise UsageError(f"the axes have {size:,} combinations; at most {MOST_CELLS} cells, or design: one-at-a-time")
    cells = [_cell(BASE, {}, base)]
    for name, changed in (*_from_axes(design, axes), *_from_names(named)):
        cell = _cell(name, changed, base)
        twin = next((other for other in cells if other.name == name), None)
        if twin is not None:
            raise UsageError(f"two cells are called {name!r}; give one of them another name")
        if changed and name not in named and (cell.plan, cell.config) == (cells[0].plan, cells[0].config):
            continue  # an axis may list the base's own value
        cells.append(cell)
    return cells


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{what} is {_shown(value)}; expected a mapping of names")
    return value


def _check_keys(data: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    for key in data:
        if key not in known:
            raise UsageError(f"unknown key {key!r} in {what}{known_keys(key, known)}")


def _axes(data: Mapping[str, Any]) -> dict[str, list[Any]]:
    for key, values in data.items():
        _check_axis(key, "axes")
        if not isinstance(values, list) or not values:
            raise UsageError(f"axis {key} is {_shown(values)}; expected a list of values, e.g. [true, false]")
        texts = [_shown(value) for value in values]
        if twice := [text for text in texts if texts.count(text) > 1]:
            raise UsageError(f"axis {key} lists {twice[0]} twice")
    return dict(data)


def _check_axis(key: str, what: str) -> None:
    if key in SHARED:
        why = "has to be the same for all cells, which are compared by question"
        raise UsageError(f"{key!r} in {what} {why}; put it in base")
    keys = config_keys()
    known = [*PLAN_AXES, *keys]
    if key not in known and not (key.startswith("prompts.") and "prompts" in keys):
        raise UsageError(f"unknown key {key!r} in {what}{known_keys(key, known)}")


def _from_axes(design: str, axes: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    combined = itertools.product(*([(key, value) for value in values] for key, values in axes.items()))
    single = ([(key, value)] for key, values in axes.items() for value in values)
    for changed in (combined if axes else ()) if design == "grid" else single:
        yield ",".join(_named(key, value) for key, value in changed), dict(changed)


def _from_names(named: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, changed in named.items():
        if not NAME.fullmatch(name) or name == TABLE:
            raise UsageError(f"cell name {name!r}; expected letters, digits and _.,=+- (it names a folder)")
        changed = _mapping(changed or {}, f"cell {name}")
        for key in changed:
            _check_axis(key, f"cell {name}")
        yield name, changed


def _named(key: str, value: Any) -> str:
    """A cell's name, which is also its folder's: the last part of the key, and the value."""
    text = re.sub(r"[^A-Za-z0-9_.+-]+", "-", _shown(value).strip("'\"")).strip("-")
    return f"{key.rpartition('.')[2]}={text[-50:] or 'empty'}"


def _cell(name: str, changed: Mapping[str, Any], base: Mapping[str, Any]) -> Trial:
    options = {key: value for key, value in base.items() if key != "config"}
    options |= {key: value for key, value in changed.items() if key in PLAN_AXES}
    for key, example in LISTS.items():
        if key in options:
            value = options[key]
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise UsageError(f"{key} is {_shown(value)}; expected a list of texts, e.g. [{example}]")
            options[key] = tuple(value)
    plan = RunSpec(**options)
    try:
        _check_options(plan)
        plan = absolute(replace(plan, split=default_split(plan.benchmark, plan.split)))
        data: dict[str, Any] = {}
        merge(data, timeless(get_controller(plan.controller).preset))
        merge(data, base["config"])
        for key, value in changed.items():
            if key not in PLAN_AXES:
                for part in reversed(key.split(".")):
                    value = {part: value}
                merge(data, value)
        return Trial(name, dict(changed), plan, build_config(data))
    except UsageError as error:
        raise UsageError(f"cell {name}: {error}") from None


def _check_options(plan: RunSpec) -> None:
    """Only the kinds of a plan's values: whether they name something is found out when they are opened."""
    for key, (kind, adapter) in kinds_of_plan().items():
        value, least = getattr(plan, key), int(key in ("limit", "batch_size"))
        try:
            adapter.validate_python(value, strict=True)
            right = not isinstance(value, int) or value >= least
        except ValidationError:
            right = False
        if not right:
            number = f"a whole number, {least} or more"
            wanted = {bool: "true or false", int: number, int | None: number}.get(kind, "text")
            raise UsageError(f"{key} is {_shown(value)}; expected {wanted}")


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)


# ------------------------------------------------------------------------------ the cells, carried out


@dataclass(frozen=True, repr=False)
class Ablation:
    """The finished cells of a grid, base first."""

    folder: Path
    cells: Sequence[Trial]
    runs: Mapping[str, Run]

    def tests(self, metric: str | None = None) -> dict[str, PairedTest]:
        """Cell -> its paired tests against the base by ``metric`` (default: EX), adjusted over all cells by Holm.

        Raises UsageError for a metric that the runs have not.
        """
        chosen = self.metric(metric)
        items = {name: run.report["items"] for name, run in self.runs.items()}
        verdicts = {
            name: {item["id"]: bool(item[item_field(chosen)]) for item in listed} for name, listed in items.items()
        }
        databases = {item["id"]: item["db_id"] for listed in items.values() for item in listed}
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
    cells: Sequence[Trial],
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
        _check_cells(folder, cells)
        finished = {cell.name: run for cell in cells if (run := _finished(folder / cell.name, cell)) is not None}
        pending = sorted(
            (cell for cell in cells if cell.name not in finished), key=lambda cell: model_options(cell.plan)
        )
        if pending:
            _check_pending(pending, executor)
            with RunContext(pending[0].plan, executor=executor) as context:
                context.fit(pending[0])
                begun = [{"name": cell.name, "changed": dict(cell.changed)} for cell in cells]
                write_json(folder / TABLE, head | {"cells": begun})
                stores = [control_stores(cell.plan, get_controller(cell.plan.controller)) for cell in pending]
                total = len(context.questions) * sum(1 + len(asked) for asked in stores)
                with tqdm(total=total, unit="question", disable=not progress) as bar:
                    for number, cell in enumerate(pending, len(cells) - len(pending) + 1):
                        bar.set_description(f"{cell.name} ({number} of {len(cells)})")
                        finished[cell.name] = _run_cell(cell, folder, context, command, bar.update)
        _check_comparable(folder, cells, finished)
        ablation = Ablation(folder, cells, {cell.name: finished[cell.name] for cell in cells})
        write_json(folder / TABLE, head | ablation.to_dict())
    return ablation


def _open(folder: Path) -> Path:
    folder = folder.expanduser()
    path = folder / TABLE
    if (folder / "manifest.json").exists():
        raise UsageError(f"--out {folder} holds a run of nl2sql eval; name another folder for the ablation")
    if path.exists():
        try:
            begun = from_json(path.read_text(encoding="utf-8"))
            written = f"ablation format {begun['format']!r} of nl2sql {begun['nl2sql']}"
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{path} is not an ablation's; name another --out") from None
        if begun["format"] != FORMAT:
            ours = f"version {__version__} writes format {FORMAT}"
            raise UsageError(f"--out {folder} has {written}; {ours}: name another --out")
    elif folder.is_file() or holds_files(folder):
        raise UsageError(f"--out {folder} is not empty and no ablation; name another folder")
    return made(folder)


def check_metric(cells: Sequence[Trial], metric: str) -> None:
    """``Ablation.metric`` before a cell has run. Raises UsageError for a metric that the cells will not all have."""
    first, *others = (metric_names(cell.config.eval) for cell in cells)
    one_metric(metric, [name for name in first if all(name in names for names in others)])


def _check_pending(cells: Sequence[Trial], executor: Executor) -> None:
    """What can be known before the first cell runs. Raises UsageError."""
    for cell in cells:
        try:
            Settings(cell.config.eval)
            resolve_spec(cell.plan.model)
            executor.check(cell.plan, cell.config)
        except UsageError as error:
            raise UsageError(f"cell {cell.name}: {error}") from None


def _check_cells(folder: Path, cells: Sequence[Trial]) -> None:
    """All cells are scored by one rule, and none was begun with other settings. Raises UsageError."""
    rule = cells[0].config.eval.rule
    for cell in cells:
        if cell.config.eval.rule != rule:
            raise UsageError(
                f"cell {cell.name} is scored by {cell.config.eval.rule} and cell {cells[0].name} by {rule}, so nothing "
                f"compares them; score all by one, e.g. nl2sql ablate GRID -c eval.rule={cell.config.eval.rule}"
            )
    for cell in (cell for cell in cells if (folder / cell.name / "manifest.json").exists()):
        before, now = _flat(*read_plan(folder / cell.name)), _flat(cell.plan, cell.config)
        for key in (key for key in now if before.get(key) != now[key]):
            raise UsageError(
                f"cell {cell.name} in {folder} was begun with {key}={before.get(key)!r}, and the grid now says "
                f"{now[key]!r}; name another --out, or give the cell another name"
            )


def _flat(plan: RunSpec, config: Any) -> dict[str, Any]:
    kept = {key: value for key, value in asdict(plan).items() if key not in ("batch_size", "cache")}
    return kept | flat(config.model_dump())


def _finished(place: Path, cell: Trial) -> Run | None:
    """The run of a cell that owes nothing and rests on what is there now; None: it has to be carried out or scored."""
    if not (place / "manifest.json").exists() or not (place / "report.json").exists():
        return None
    manifest = read_manifest(place)
    tools, gates = (named_functions(kind, getattr(cell.plan, kind)) for kind in ("tools", "gates"))
    then = (manifest["controller"]["identity"], manifest["prompts"], manifest.get("members", {}))
    identity = get_controller(cell.plan.controller).identity
    if then != (identity, prompt_hashes(cell.config.prompts), part_fingerprints(cell.config, tools, gates)):
        return None  # run_trial says what changed
    return None if pending_of(place) else Run.load(place)


def _check_comparable(folder: Path, cells: Sequence[Trial], runs: Mapping[str, Run]) -> None:
    """All cells were run on the same questions and databases, and those of one model on the same weights."""
    first = runs[BASE].manifest["fingerprints"]
    weights: dict[tuple[str, ...], tuple[str, Any]] = {}
    for cell in cells:
        manifest = runs[cell.name].manifest
        hashes = manifest["fingerprints"]
        changed = [name for name in {**first, **hashes} if first.get(name) != hashes.get(name)]
        used = weights_of(manifest["model"])
        other, theirs = weights.setdefault(model_options(cell.plan), (cell.name, used))
        if used != theirs:
            changed.append(f"model {cell.plan.model} (since cell {other})")
        if changed:
            why = f"{', '.join(changed)} changed between the cells"
            raise UsageError(f"cell {cell.name} in {folder} cannot be compared: {why}; name another --out")


def _run_cell(cell: Trial, folder: Path, context: RunContext, command: str, advance: Callable[[int], object]) -> Run:
    try:
        return run_trial(cell, folder / cell.name, context, advance=advance)
    except (Cancelled, KeyboardInterrupt):
        again = f"; continue with: {command}" if command else ""
        said = f"interrupted in cell {cell.name}; what is finished is kept in {folder}{again}"
        raise Cancelled(said) from None


# --------------------------------------------------------------------------------------------------- showing

HEAD = "points|won|lost|p|p (Holm)|by database (Holm)|detects|overrides|repairs|tokens / question|seconds"


def ablation_rows(data: Mapping[str, Any]) -> list[list[str]]:
    """The table of ``Ablation.to_dict`` as text cells; the first row is the header."""
    name = data["metric"]
    rows = [["cell", name, *HEAD.split("|")]]
    for cell in data["cells"]:
        usage, test, counts = cell["usage"], cell["test"], cell["counts"]
        spent = (usage["prompt_tokens"] + usage["completion_tokens"]) / max(1, cell["n"])
        against = [""] * 7
        if test:
            detects = "nothing" if test["detectable"] is None else f"{100 * test['detectable']:.1f}"
            won = [f"{100 * test['difference']:+.1f}", str(test["wins"]), str(test["losses"])]
            ps = [f"{test[name]:.3g}" for name in ("p", "p_holm", "p_databases_holm")]
            against = [*won, *ps, detects]
        repairs = f"{counts['repairs_accepted']} of {counts['repairs_forced'] + counts['repairs_asked']}"
        costs = [str(counts["overrides"]), repairs, f"{spent:,.0f}", seconds_text(usage)]
        rows.append([cell["name"], percent(cell["metrics"][name]), *against, *costs])
    for kind, metrics in data["control"].items():
        rows.append([f"single_shot, {kind.replace('_', ' ')}", percent(metrics[name]), *[""] * 11])
    return rows


def ablation_notes(data: Mapping[str, Any]) -> list[str]:
    """The lines under the table."""
    alarms = [f"ALARM {cell['name']}: {alarm}" for cell in data["cells"] for alarm in cell["alarms"]]
    cached = [cell["name"] for cell in data["cells"] if cell["usage"].get("cached_calls")]
    answered = "answered by the response cache, in part or whole, their seconds are no measurement"
    return [
        *alarms,
        *([f"{answered}: {', '.join(cached)}"] if cached else []),
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
