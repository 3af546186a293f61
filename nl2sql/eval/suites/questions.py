"""The databases of single questions: suites in the cache, or a folder that ``data replicas build --out`` wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nl2sql.errors import DatabaseError, UsageError
from nl2sql.eval.suites import SuiteOrder, build_suites
from nl2sql.interfaces import Question
from nl2sql.machine import from_json, write_whole

INDEX = "index.json"


@dataclass
class QuestionSuites:
    """Databases by question id; None where a suite could not be built. ``warnings``: what a reader has to know."""

    files: dict[str, list[Path] | None] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def suites_of(
    questions: Sequence[Question],
    path_of: Callable[[str], Path | None],
    n: int,
    *,
    seed: int = 0,
    workers: int = 2,
    progress: bool = False,
) -> QuestionSuites:
    """The suite of every question, built where the cache has none; a suite is for all accepted golds of its question.

    ``path_of`` gives the file of a database id, None where there is none (the question is then left out).
    """
    from tqdm.auto import tqdm

    suites = QuestionSuites()
    asked = [(question, path) for question in questions if (path := path_of(question.db_id)) is not None]
    orders: list[SuiteOrder] = []
    kept: list[str] = []
    for question, path in asked:
        order = SuiteOrder(path, tuple(question.gold), n, seed)
        try:
            order.folder()
        except DatabaseError as error:
            suites.files[question.id] = None
            suites.warnings.append(f"no suite for question {question.id!r}, TS counts as failed there: {error}")
            continue
        orders.append(order)
        kept.append(question.id)
    without = 0
    building = build_suites(orders, workers=workers)
    for index, suite in tqdm(building, total=len(orders), desc="building suites", disable=not progress):
        id_ = kept[index]
        suites.files[id_] = None if suite.error else list(suite.databases)
        if suite.error:
            suites.warnings.append(f"no suite for question {id_!r}, TS counts as failed there: {suite.error}")
        elif not suite.databases:
            without += 1
    if without:
        suites.warnings.append(
            f"{without} of {len(orders)} questions have no suite (their golds do not parse or run, or rest on the "
            "order of rows): TS rests on the original alone there"
        )
    return suites


def write_index(folder: Path, files: dict[str, list[Path]]) -> None:
    """Say which databases under ``folder`` belong to which question."""
    names = {id_: [file.relative_to(folder).as_posix() for file in databases] for id_, databases in files.items()}
    write_whole(folder / INDEX, json.dumps(names, indent=1, ensure_ascii=False))


def read_index(folder: Path) -> dict[str, list[Path] | None] | None:
    """Databases by question id, where ``folder`` has an index; None where it has none.

    Raises UsageError for an index that is damaged, or that names what is not in the folder.
    """
    file = folder / INDEX
    if not file.is_file():
        return None
    try:
        names: Any = from_json(file.read_text(encoding="utf-8"))
        index: dict[str, list[Path] | None] = {
            str(id_): [folder / name for name in databases] for id_, databases in names.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} is no index of databases: {str(error).splitlines()[0]}") from None
    inside = folder.resolve()
    for databases in index.values():
        for database in databases or ():
            if inside not in database.resolve().parents or not database.is_file():
                raise UsageError(f"{file} names {database}, which is not there; build the folder again")
    return index
