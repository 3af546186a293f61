"""Hugging Face ``datasets`` as benchmarks: ``hf:ORG/NAME[:split]`` from the hub, ``hf:/folder[:split]`` from disk.

The rows need a question, a gold query and a database id (the field names of ``layouts``). Data sets rarely hold the
databases themselves: give their folder with ``databases=`` or ``NL2SQL_DATABASES``. Configurations of a data set
other than its default, and databases that are not SQLite files, are not covered.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.benchmarks.layouts import (
    DATABASE_FOLDERS,
    DB_KEYS,
    SQL_KEYS,
    TEXT_KEYS,
    assemble,
    questions_from,
    with_unique_ids,
)
from nl2sql.errors import BenchmarkError, UsageError
from nl2sql.machine import missing_part

ENVIRONMENT = "NL2SQL_DATABASES"


def load_hub(name: str, *, databases: str | Path | None = None) -> FolderBenchmark:
    """Read ``hf:WHERE[:split]``. Raises BenchmarkError where it cannot be loaded, and says what to type."""
    where, split = _parse(name)
    local = Path(where).expanduser()
    on_disk = local.is_absolute() or where.startswith((".", "~"))
    parts = _local_splits(local, name) if on_disk else _hub_splits(where, split)
    if split is not None:
        if split not in parts:
            raise UsageError(f"data set {where!r} has no split {split!r}; it has: {', '.join(parts)}")
        parts = {split: parts[split]}
    short = local.name if on_disk else where.rpartition("/")[2]
    questions = []
    for part, rows in parts.items():
        _check_fields(where, rows.column_names)
        questions += questions_from(_plain(rows), f"{short}-{part}", split=part)
    folder = databases or os.environ.get(ENVIRONMENT) or (local if on_disk else "")
    roots = [Path(folder).expanduser() / sub for sub in ("", *DATABASE_FOLDERS)] if folder else []
    benchmark = assemble(short, with_unique_ids(questions), roots, source=name)
    if not benchmark.files:
        looked = f"in {folder}" if folder else "nowhere"
        raise BenchmarkError(
            f"no database of {name!r} was found ({looked}); set {ENVIRONMENT} to the folder that holds "
            "DB/DB.sqlite for each db_id"
        )
    return benchmark


def _parse(name: str) -> tuple[str, str | None]:
    where, _, split = name.removeprefix("hf:").partition(":")
    if not where:
        raise UsageError(f"{name!r} names no data set; expected hf:ORG/NAME, hf:ORG/NAME:SPLIT or hf:/folder")
    return where, split or None


def _check_installed() -> None:
    if missing := missing_part("datasets"):
        raise UsageError(f"hf: data sets are read with datasets, and {missing}")


def _hub_splits(where: str, split: str | None) -> dict[str, Any]:
    _check_installed()
    import datasets

    try:
        loaded = datasets.load_dataset(where)
    except Exception as error:
        shown = str(error).strip().splitlines() or [type(error).__name__]
        local = f"hf:/folder{':' + split if split else ''}"
        raise BenchmarkError(
            f"data set {where!r} could not be loaded from the hub ({type(error).__name__}: {shown[0]}); "
            f"download it where there is network with `hf download --repo-type dataset {where} --local-dir FOLDER` "
            f"and type --benchmark {local}"
        ) from error
    return dict(loaded)


def _local_splits(folder: Path, name: str) -> dict[str, Any]:
    _check_installed()
    import datasets

    if not folder.is_dir():
        raise BenchmarkError(f"{name!r}: folder {folder} does not exist")
    try:
        saved = (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()
        loaded = datasets.load_from_disk(str(folder)) if saved else datasets.load_dataset(str(folder))
    except Exception as error:
        raise BenchmarkError(
            f"{folder} is not a data set that `datasets` can read ({type(error).__name__}: {error}); expected what "
            "Dataset.save_to_disk writes, or a folder of parquet, JSON or CSV files"
        ) from error
    return {"all": loaded} if isinstance(loaded, datasets.Dataset) else dict(loaded)


def _plain(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the None that ``datasets`` writes for absent fields."""
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def _check_fields(where: str, names: list[str]) -> None:
    for what, keys in (("question", TEXT_KEYS), ("gold query", SQL_KEYS), ("database id", DB_KEYS)):
        if not set(keys) & set(names):
            expected = ", ".join(keys)
            raise BenchmarkError(
                f"data set {where!r} has no {what}: its fields are {', '.join(names)}; expected one of {expected}"
            )
