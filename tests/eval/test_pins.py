"""One method, one result: replicas, shuffled copies and suites are the same for ever as long as their method's name is.

TS figures of other days and machines are compared under that name. A line of ``method_pins.txt`` is the method, what it
was given, and a digest of what it made. Where a change of the results is meant: give the method a new name, and
``python tests/eval/test_pins.py > tests/fixtures/method_pins.txt``.
"""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from nl2sql.eval import suites
from nl2sql.eval.replicas import METHOD, SHUFFLE_METHOD, child, perturb
from nl2sql.eval.suites import arena
from nl2sql.eval.suites.arena import Arena, SourceDatabase, read_rows, read_source
from nl2sql.eval.suites.distil import distil, read_gold
from nl2sql.eval.suites.generate import Generator, read_hints
from nl2sql.eval.suites.neighbours import neighbours_of

FIXTURES = Path(__file__).parents[1] / "fixtures"
PINS = FIXTURES / "method_pins.txt"
SCRIPT = (FIXTURES / "replica_schemas.sql").read_text(encoding="utf-8")
NEIGHBOURS = (FIXTURES / "suite_neighbours.txt").read_text(encoding="utf-8")
SCHEMAS = dict(part.split("\n", 1) for part in SCRIPT.split("-- name: ")[1:])
GOLDS = [
    *(entry.split(" | ") for entry in (FIXTURES / "pinned_golds.txt").read_text(encoding="utf-8").splitlines()[1:]),
    *([next(iter(SCHEMAS)), entry.split(" | ")[0]] for entry in NEIGHBOURS.splitlines() if not entry.startswith("#")),
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        for schema, script in SCHEMAS.items():
            with closing(sqlite3.connect(Path(name) / schema)) as connection:
                connection.executescript(script)
        yield Path(name)


def content(file: Path) -> list[object]:
    with closing(sqlite3.connect(file)) as connection:
        shown = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2").fetchall()
        names = ['"{}"'.format(name.replace('"', '""')) for kind, name, _ in shown if kind == "table"]
        return [shown, *(connection.execute(f"SELECT * FROM {name}").fetchall() for name in names)]


def line(method: str, given: str, made: object) -> str:
    return f"{method} | {given} | {hashlib.sha256(repr(made).encode()).hexdigest()[:16]}"


def replicas(folder: Path) -> Iterator[str]:
    for schema, bound in itertools.product(SCHEMAS, (2000, 7)):
        work = child._Work()
        with patch.object(perturb, "max_rows", return_value=bound):
            work.done({"task": "read", "path": str(folder / schema), "seed": "0", "table_rows": perturb.TABLE_ROWS})
        files = [folder / f"{schema}-{bound}-{number}" for number in range(4)]
        for number, file in enumerate(files):
            work.done({"task": "write", "target": str(file), "number": number})
        yield line(METHOD, f"{schema}, of {bound} rows", list(map(content, files)))


def shuffled(folder: Path) -> Iterator[str]:
    for schema, seed in itertools.product(SCHEMAS, (None, 0, 1)):
        copy = folder / f"{schema} by {seed}"
        child._Work().done({"task": "shuffle", "path": str(folder / schema), "target": str(copy), "seed": seed})
        yield line(SHUFFLE_METHOD, copy.name, content(copy))


def sources(folder: Path, start: str = "") -> Iterator[tuple[str, SourceDatabase]]:
    known = {schema: read_source(folder / schema) for schema in SCHEMAS}
    yield from ((gold, known[schema.lstrip("*")]) for schema, gold in GOLDS if schema.startswith(start))


def neighbours(folder: Path) -> Iterator[str]:
    for gold, source in dict(sources(folder)).items():
        yield line(suites.METHOD, f"neighbours: {gold}", neighbours_of(gold, source))


def candidates(folder: Path) -> Iterator[str]:
    """Rows of the tables that a gold needs, and of all."""
    for gold, source in list(dict(sources(folder)).items())[:40]:
        read = read_gold(gold, Arena(source), 0)
        assert read.tree is not None
        generator = Generator(source, read_hints([read.tree], read.live, source), 0)
        rows = [generator.rows(n, whole=n % 5 == 4) for n in range(24)]
        yield line(suites.METHOD, f"candidates: {gold}", rows)


def chosen(folder: Path) -> Iterator[str]:
    with patch.object(arena, "STATEMENT_S", 60.0):  # a slow machine is no reason for another suite
        for gold, source in sources(folder, "*"):
            made = distil(Arena(source), [gold], 3, 0)
            rows = [read_rows(image, source, source.by_name) for image in made.images]
            yield line(suites.METHOD, f"chosen: {gold}", (rows, sorted(made.killed.items()), made.candidates))


MAKERS = (replicas, shuffled, neighbours, candidates, chosen)


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_a_method_makes_what_it_always_made(maker: object, folder: Path) -> None:
    assert callable(maker)
    known = PINS.read_text(encoding="utf-8").splitlines()
    assert [new for new in maker(folder) if new not in known] == []


if __name__ == "__main__":
    for directory in folder.__wrapped__():  # type: ignore[attr-defined]
        print(*(new for maker in MAKERS for new in maker(directory)), sep="\n")
