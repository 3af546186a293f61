"""The packaged databases: our own, kept as SQL and CSV in ``data/databases``.

>>> database_ids()[:2]
('campus_registry', 'chess_league')

Found in the wheel (``nl2sql/_data``) or in the source tree (``data/``, editable installs). Each SQLite file is built
once, from ``schema.sql`` and one CSV per table, into the cache folder under the hash of those files; concurrent
builders are safe, because a file appears there only when it is complete.

CSV convention: a field that is exactly ``\\N`` is NULL, an empty field is an empty string; numbers take the type of
their declared column (SQLite's affinity).
"""

from __future__ import annotations

import csv
import hashlib
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from nl2sql.errors import BenchmarkError, UsageError
from nl2sql.machine import cache_dir

NULL = r"\N"
BUILD_FORMAT = "1"  # part of the cache key: change it when the same files are to give another database


def data_root() -> Path:
    """The folder with ``questions.json`` and ``databases/``: inside the wheel, else in the source tree."""
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "_data", package.parent / "data")
    for folder in candidates:
        if (folder / "questions.json").is_file() and (folder / "databases").is_dir():
            return folder
    tried = ", ".join(map(str, candidates))
    raise BenchmarkError(f"the packaged benchmark is not in this installation (tried: {tried}); reinstall nl2sql")


def database_ids() -> tuple[str, ...]:
    """The packaged databases' names, sorted."""
    return tuple(sorted(path.parent.name for path in (data_root() / "databases").glob("*/schema.sql")))


def database_path(db_id: str) -> Path:
    """The SQLite file of a packaged database, built into the cache when it is not there yet.

    Raises UsageError for an unknown name and BenchmarkError when the files do not make a sound database.
    """
    if db_id not in database_ids():
        raise UsageError(f"no packaged database {db_id!r}; there are: {', '.join(database_ids())}")
    folder = data_root() / "databases" / db_id
    target = cache_dir("packaged", _content_hash(folder)[:16]) / f"{db_id}.sqlite"
    if not target.exists():
        handle, name = tempfile.mkstemp(prefix=f".{db_id}-", suffix=".building", dir=target.parent)
        os.close(handle)
        building = Path(name)
        try:
            build_database(folder, building)
            building.replace(target)
        finally:
            building.unlink(missing_ok=True)
    return target


def build_database(folder: Path, path: Path) -> None:
    """Write the SQLite file ``path`` (empty or absent) from ``folder/schema.sql`` and one CSV per table.

    Raises BenchmarkError for a missing CSV, other columns than the schema's, or a broken key.
    """
    try:
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
            connection.executescript((folder / "schema.sql").read_text(encoding="utf-8"))
            query = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid"
            for (table,) in connection.execute(query).fetchall():
                _fill(connection, table, folder / f"{table}.csv")
            connection.commit()
            broken = connection.execute("PRAGMA foreign_key_check").fetchall()
            sound = connection.execute("PRAGMA integrity_check").fetchone()[0]
    except (OSError, ValueError, sqlite3.Error) as error:
        raise BenchmarkError(f"packaged database {folder.name} cannot be built: {error}") from None
    if broken or sound != "ok":
        raise BenchmarkError(f"packaged database {folder.name} is broken: {len(broken)} foreign keys, check: {sound}")


def _fill(connection: sqlite3.Connection, table: str, path: Path) -> None:
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.reader(lines)
        header = next(reader, [])
        if header != columns:
            raise ValueError(f"{path.name} has the columns {header}, the schema {columns}")
        rows = [[None if field == NULL else field for field in row] for row in reader]
    connection.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(columns))})', rows)


def _content_hash(folder: Path) -> str:
    digest = hashlib.sha256(BUILD_FORMAT.encode())
    for path in sorted([folder / "schema.sql", *folder.glob("*.csv")]):
        digest.update(f"\0{path.name}\0".encode() + _normalised(path))
    return digest.hexdigest()


def _normalised(path: Path) -> bytes:
    """The bytes with Unix line ends, so that a checkout that converts them has the same identity."""
    return path.read_bytes().replace(b"\r\n", b"\n")
