"""The cells of an ablation: a YAML file with a base, axes and named cells, expanded and checked before anything runs.

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

The first cell is always ``base`` itself; the others are compared with it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from nl2sql.agents.controllers import get_controller, timeless
from nl2sql.config import build_config, config_keys, known_keys, merge, read_override
from nl2sql.errors import UsageError
from nl2sql.machine import from_yaml
from nl2sql.runs.job import Cell
from nl2sql.runs.plan import Plan, absolute, default_split

BASE = "base"
DESIGNS = ("one-at-a-time", "grid")
SHARED = (  # options of every cell alike: cells are compared question by question, on one machine
    *("benchmark", "split", "limit", "sample_seed", "device", "batch_size", "server", "cache", "control"),
    *("equal_tokens", "engine_url", "history", "corrections", "tools", "gates"),
)
LISTS = {"server": "price_in=0.1", "tools": "my_tools.py:look_up", "gates": "my_gates.py:no_star"}
PLAN_AXES = ("controller", "model", "adapter", "dtype", "engine")
MOST_CELLS = 500
TABLE = "ablation.json"  # in the folder of the cells
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,=+-]{0,80}")


def read_grid(path: str | Path, overrides: Sequence[str] = ()) -> list[Cell]:
    """The cells of a grid file, base first. Raises UsageError with one line that names what is wrong and where.

    overrides: ``key=value`` settings over the config of its base.
    """
    return _read(path, overrides)[1]


def grid_data(path: str | Path) -> dict[str, Any]:
    """A grid file's contents as plain data, checked, for scripts that change the base. Raises UsageError likewise."""
    return _read(path)[0]


def _read(path: str | Path, overrides: Sequence[str] = ()) -> tuple[dict[str, Any], list[Cell]]:
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


def expand(data: Any, overrides: Sequence[str] = ()) -> list[Cell]:
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
    if design == "grid" and (size := _product(axes)) > MOST_CELLS:
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
    axes: dict[str, list[Any]] = {}
    for key, values in data.items():
        _check_axis(key, "axes")
        if not isinstance(values, list) or not values:
            raise UsageError(f"axis {key} is {_shown(values)}; expected a list of values, e.g. [true, false]")
        texts = [_shown(value) for value in values]
        if twice := [text for text in texts if texts.count(text) > 1]:
            raise UsageError(f"axis {key} lists {twice[0]} twice")
        axes[key] = values
    return axes


def _check_axis(key: str, what: str) -> None:
    if key in SHARED:
        raise UsageError(
            f"{key!r} in {what} has to be the same for all cells, which are compared by question; put it in base"
        )
    keys = config_keys()
    known = [*PLAN_AXES, *keys]
    if key not in known and not (key.startswith("prompts.") and "prompts" in keys):
        raise UsageError(f"unknown key {key!r} in {what}{known_keys(key, known)}")


def _product(axes: Mapping[str, Sequence[Any]]) -> int:
    size = 1
    for values in axes.values():
        size *= len(values)
    return size


def _from_axes(design: str, axes: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    if design == "grid":
        for combination in itertools.product(*axes.values()) if axes else ():
            changed = dict(zip(axes, combination, strict=True))
            yield ",".join(_named(key, value) for key, value in changed.items()), changed
        return
    for key, values in axes.items():
        for value in values:
            yield _named(key, value), {key: value}


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


def _cell(name: str, changed: Mapping[str, Any], base: Mapping[str, Any]) -> Cell:
    options = {key: value for key, value in base.items() if key != "config"}
    options |= {key: value for key, value in changed.items() if key in PLAN_AXES}
    for key, example in LISTS.items():
        if key in options:
            value = options[key]
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise UsageError(f"{key} is {_shown(value)}; expected a list of texts, e.g. [{example}]")
            options[key] = tuple(value)
    plan = Plan(**options)
    try:
        _check_options(plan)
        plan = absolute(replace(plan, split=default_split(plan.benchmark, plan.split)))
        data: dict[str, Any] = {}
        merge(data, timeless(get_controller(plan.controller).preset))
        merge(data, base["config"])
        for key, value in changed.items():
            if key not in PLAN_AXES:
                merge(data, _nested(key, value))
        return Cell(name, dict(changed), plan, build_config(data))
    except UsageError as error:
        raise UsageError(f"cell {name}: {error}") from None


def _check_options(plan: Plan) -> None:
    """The kinds of a plan's values; whether they name something is found out when they are opened."""
    texts = (
        "benchmark",
        "controller",
        "model",
        "adapter",
        "device",
        "engine",
        "corrections",
        "engine_url",
        "history",
        "split",
        "dtype",
    )
    for key in texts:
        value = getattr(plan, key)
        if not isinstance(value, str) and not (value is None and key in ("split", "dtype")):
            raise UsageError(f"{key} is {_shown(value)}; expected text")
    for key, least in (("limit", 1), ("batch_size", 1), ("sample_seed", 0)):
        value = getattr(plan, key)
        if not (value is None and key == "limit") and (
            isinstance(value, bool) or not isinstance(value, int) or value < least
        ):
            raise UsageError(f"{key} is {_shown(value)}; expected a whole number, {least} or more")
    for key in ("cache", "control", "equal_tokens"):
        if not isinstance(getattr(plan, key), bool):
            raise UsageError(f"{key} is {_shown(getattr(plan, key))}; expected true or false")


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)
