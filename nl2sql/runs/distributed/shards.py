"""Questions cut into shards by database, each with what a worker needs to open that database."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.benchmarks.on_engine import OnEngine
from nl2sql.databases.sqlite.files import sqlite_file
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.interfaces import Benchmark, Question

SIZE = 48  # questions at most: what is lost with a worker, against replicas and models that each shard opens


@dataclass(frozen=True)
class Shard:
    """Questions of one database of a benchmark. ``file`` is None where the benchmark has no such file."""

    benchmark: str
    source: str
    questions: tuple[Question, ...]
    file: Path | None
    length: int = 0  # of the file, in bytes
    url: str = ""  # of a benchmark on another engine

    def open(self) -> Benchmark:
        """The benchmark, as far as the shard goes. Raises UsageError where this machine does not have the file."""
        if self.url:
            return OnEngine(self.benchmark, self.questions, {}, self.url)
        files = {}
        if self.file is not None:
            if not self.file.exists() or self.file.stat().st_size != self.length:
                raise UsageError(
                    f"the worker on {platform.node()} has no such {self.file}; databases have to lie in a folder "
                    "that all nodes share, under the same path"
                )
            files[self.questions[0].db_id] = self.file
        return FolderBenchmark(self.benchmark, self.questions, {}, files, source=self.source)


def cut(benchmark: Benchmark, questions: Sequence[Question], size: int = SIZE) -> list[Shard]:
    """The questions by database; those of a database that has more than ``size`` in parts of nearly the same size.

    The cut depends on the questions alone, not on the cluster. The largest shards come first.
    """
    by_database: dict[str, list[Question]] = {}
    for question in questions:
        by_database.setdefault(question.db_id, []).append(question)
    shards = []
    for db_id, members in by_database.items():
        url = benchmark.url if isinstance(benchmark, OnEngine) else ""
        file = _file_of(benchmark, db_id) if not url else None
        length = file.stat().st_size if file is not None else 0
        parts = -(-len(members) // size)
        for part in range(parts):
            chosen = members[part * len(members) // parts : (part + 1) * len(members) // parts]
            shards.append(Shard(benchmark.name, getattr(benchmark, "source", ""), tuple(chosen), file, length, url))
    return sorted(shards, key=lambda shard: -len(shard.questions))


def _file_of(benchmark: Benchmark, db_id: str) -> Path | None:
    """The SQLite file of a database, without opening it where the benchmark says where it lies."""
    files = getattr(benchmark, "files", None)
    if isinstance(files, Mapping):
        path = files.get(db_id)
    else:
        try:
            database = benchmark.database(db_id)
        except Nl2SqlError:
            return None
        path = sqlite_file(database)
        if path is None:
            raise UsageError(
                f"{db_id} is a {database.dialect} database of an object of this process, and workers open databases by "
                "name; give the benchmark's name with engine_url=, or use --executor local"
            )
    return path.absolute() if path is not None and path.exists() else None
