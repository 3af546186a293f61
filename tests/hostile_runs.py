"""Hostile run folders, made from an honest one: links, pipes, bombs, wrong types, and names of code and places.

``files`` lays something else where a run has a file, ``fields`` puts another value into a JSON file, ``names`` lets the
manifest name what is not packaged. Each gives kind -> a function that spoils a copy of a run folder. ``outside`` is the
folder of somebody else's files: nothing in it may change.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

Spoil = Callable[[Path], None]
TERABYTE = 2**40
FILES = (
    *("manifest.json", "report.json", "predictions.jsonl", "traces.jsonl", "phases.jsonl", "notes.jsonl", ".lock"),
    *("report.html", "control", "control/predictions.jsonl", "control/traces.jsonl"),
)
VALUES: dict[str, Any] = {
    "5": 5,
    "a text": "\x1b]0;x\x07\nx",
    "a list": [5, None],
    "an object": {"x": {"y": 5}},
    "null": None,
    "no number": float("nan"),
    "a number without end": 10**250,
}
BOMBS: dict[str, bytes] = {
    "brackets": b"[" * 1_000_000,
    "a million lists": b"[" + b"[]," * 2_000_001 + b"[]]",
    "digits": b"1" * 1_000_000,
    "no UTF-8": b"\xff\xfe\x00" * 1000,
    "NUL": b"\0" * 1000,
    "nothing": b"",
    "an escape": b'{"\\ud800": "\\udfff"}\n',
    "a list": b"[]\n",
    "lines of nothing": b"{}\n" * 100_001,
    "other lines": b'{"id": 5}\n{"id": "x", "key": []}\n' * 10,
    "empty lines": b"\n" * 10,
}


def files(outside: Path) -> dict[str, Spoil]:
    """Something else in the place of each file of a run."""
    victim = outside / "victim"
    made: dict[str, Callable[[Path], None]] = {
        "a link": lambda path: path.symlink_to(victim),
        "a link to nothing": lambda path: path.symlink_to(outside / "made"),
        "a link to a folder": lambda path: path.symlink_to(outside),
        "a link to a device": lambda path: path.symlink_to("/dev/zero"),
        "a link to itself": lambda path: path.symlink_to(path.name),
        "a second name": lambda path: path.hardlink_to(victim),
        "a pipe": os.mkfifo,
        "a folder": Path.mkdir,
        "a terabyte": _sparse,
    }
    kinds: dict[str, Spoil] = {
        f"{what} as {name}": partial(_replaced, name=name, make=make) for name in FILES for what, make in made.items()
    }
    for name in FILES:
        if name.endswith((".json", ".jsonl")):
            kinds |= {f"{what} in {name}": partial(_filled, name=name, data=data) for what, data in BOMBS.items()}
    return kinds


def _replaced(folder: Path, name: str, make: Callable[[Path], None]) -> None:
    path = folder / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    make(path)


def _filled(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, TERABYTE)


def fields(run: Path) -> dict[str, Spoil]:
    """Each field of each JSON file of ``run`` with a value that it cannot have, or without it."""
    kinds: dict[str, Spoil] = {}
    for name in ("manifest.json", "report.json", "predictions.jsonl", "traces.jsonl", "phases.jsonl"):
        lines = (run / name).read_text().split("\n") if name.endswith("l") else [(run / name).read_text()]
        for number, path in enumerate(_paths(json.loads(lines[0]))):
            what, value = list(VALUES.items())[number % len(VALUES)]
            where = f"{name} {'.'.join(map(str, path))}"
            kinds[f"{what} as {where}"] = partial(_set, name=name, path=path, value=value)
            if path != ("plan", "model"):  # the default is a model that has to be loaded
                kinds[f"no {where}"] = partial(_set, name=name, path=path)
    for what, value in {
        "year one": "0001-01-01",
        "year 9999": "9999-12-31T23:59:59-14:00",
        "a day that is none": "2020-99-99",
    }.items():
        kinds[what] = partial(_set, name="manifest.json", path=("environment", "began"), value=value)
    for what, value in {
        "a million seeds": list(range(1_000_000)),
        "seeds elsewhere": ["../../x"],
        "minus one": [-1],
    }.items():
        kinds[what] = partial(_set, name="manifest.json", path=("plan", "seeds"), value=value)
    return kinds


def _paths(data: Any, depth: int = 2) -> Iterator[tuple[Any, ...]]:
    """The paths of the fields of nested JSON, and of the first items of its lists."""
    inside = data.items() if isinstance(data, dict) else enumerate(data[:1]) if isinstance(data, list) else ()
    for key, value in inside:
        yield (key,)
        if depth and key != "config":
            yield from ((key, *path) for path in _paths(value, depth - 1))


GONE = object()


def _set(folder: Path, name: str, path: tuple[Any, ...], value: Any = GONE) -> None:
    file = folder / name
    head, *rest = file.read_text().split("\n", 1) if name.endswith("l") else [file.read_text()]
    data = node = json.loads(head)
    for key in path[:-1]:
        node = node[key]
    if value is GONE:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    file.write_text("\n".join([json.dumps(data), *rest]))


def names(outside: Path, port: int) -> Mapping[str, Mapping[str, Any]]:
    """Kind -> dotted settings of a manifest that name code, an address or a place: none may be opened."""
    code = outside / "evil.py"
    here = f"127.0.0.1:{port}"
    return {
        "a controller": {"plan.controller": f"{code}:f"},
        "a controller of a module": {"plan.controller": "evil:f"},
        "a tool": {"plan.tools": [f"{code}:f"], "plan.controller": "react"},
        "a gate": {"plan.gates": ["evil:f"], "plan.controller": "react"},
        "a rule": {"config.eval.rule": f"{code}:f"},
        "a rule of a module": {"config.eval.rule": "evil:f"},
        "a server": {"plan.model": f"http://{here}/v1#m"},
        "a server in capitals": {"plan.model": f"HTTP://{here}/v1#m"},
        "a provider": {"plan.model": "openai/m"},
        "a script": {"plan.model": f"scripted:{outside / 'script.json'}"},
        "a model's folder": {"plan.model": str(outside)},
        "an adapter": {"plan.adapter": str(outside)},
        "PostgreSQL with a key": {"plan.engine_url": f"postgresql://me:$NL2SQL_API_KEY@{here}/x"},
        "MariaDB with a key": {"plan.engine_url": f"mysql://me:$NL2SQL_API_KEY@{here}/x"},
        "a key as a user": {"plan.engine_url": f"mysql://$NL2SQL_API_KEY@{here}/x"},
        "a key as a database": {"plan.engine_url": f"postgresql://me@{here}/$NL2SQL_API_KEY"},
        "PostgreSQL without a key": {"plan.engine_url": f"postgresql://me@{here}/x"},
        "DuckDB": {"plan.engine_url": f"duckdb:{outside}/x.duckdb"},
        "a benchmark elsewhere": {"plan.benchmark": str(outside)},
        "a benchmark above": {"plan.benchmark": "../../../../" + str(outside)},
        "a data set": {"plan.benchmark": f"hf:{outside}"},
        "replicas elsewhere": {"config.eval.replicas": str(outside)},
        "a million replicas": {"config.eval.replicas": 1_000_000},
        "a day for a statement": {"config.eval.timeout_s": 86400},
        "a corpus": {"config.repair.corpus": str(outside / "victim")},
        "Milvus": {"config.repair.milvus": f"http://{here}"},
        "a pool": {"config.few_shot.pool": str(outside / "pool.jsonl"), "config.few_shot.k": 1},
        "a data source": {"config.vizql.source": str(outside / "victim")},
    }


def name_in(folder: Path, settings: Mapping[str, Any]) -> None:
    """Let the manifest of a run name ``settings``."""
    for dotted, value in settings.items():
        _set(folder, "manifest.json", tuple(dotted.split(".")), value)
