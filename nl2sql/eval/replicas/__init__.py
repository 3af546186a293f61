"""Perturbed copies of a SQLite database for TS, and a copy whose rows lie in another order for ``check-data``.

``perturbed_replicas(path, n)`` is the plain perturbation of the specification (suite-based robustness [18], not a
distilled test suite): the same schema, with rows dropped, duplicated and reordered and values changed in a seeded,
typed way, while keys stay unique, foreign keys refer, and NOT NULL and CHECK hold. Tables above a stated size are
sampled down. Files are built once and kept in the cache, under the content of the original and the method.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path

from nl2sql.errors import DatabaseError, UsageError
from nl2sql.machine import cache_dir

METHOD = "perturb-2"  # part of every cache key: change it whenever the same input is to give other replicas
SHUFFLE_METHOD = "shuffle-2"

__all__ = ["METHOD", "perturbed_replicas", "shuffled_copies"]


def perturbed_replicas(path: str | Path, n: int, *, seed: int = 0) -> list[Path]:
    """``n`` perturbed replicas of the database at ``path``; replica i is the same file for every ``n`` above i.

    Raises UsageError for a negative ``n`` and DatabaseError where the original cannot be read. Safe to call from
    several threads and processes: a file appears in the cache only when it is complete.
    """
    from nl2sql.eval.replicas.perturb import Perturber

    if n < 0:
        raise UsageError(f"{n} replicas asked for; expected 0 or more")
    path = Path(path)
    folder = _folder(path, f"{METHOD}|{seed}")
    targets = [folder / f"{number:03d}.sqlite" for number in range(n)]
    present = set(folder.iterdir())
    wanted = [number for number, target in enumerate(targets) if target not in present]
    if wanted:
        with _reading(path):
            perturber = Perturber(path, seed=str(seed))
            for number in wanted:
                _build(targets[number], partial(perturber.write, number=number))
    return targets


def shuffled_copies(path: str | Path, seeds: Sequence[int | None]) -> list[Path]:
    """Copies with the same rows in other physical orders: queries whose answer rests on row order change theirs.

    An order is drawn with its seed; None reverses the rows exactly, which turns every tie the other way round.

    Keys and constraints are left out of the copies (an INTEGER PRIMARY KEY would fix the order again); types,
    collations, indexes and views are kept. Raises DatabaseError where the original cannot be read.
    """
    from nl2sql.eval.replicas.shuffle import write_shuffled

    path = Path(path)
    folder = _folder(path, SHUFFLE_METHOD)
    targets = {seed: folder / f"{'reversed' if seed is None else seed}.sqlite" for seed in seeds}
    present = set(folder.iterdir())
    for seed, target in targets.items():
        if target not in present:
            with _reading(path):
                _build(target, partial(write_shuffled, path, seed=seed))
    return [targets[seed] for seed in seeds]


def _folder(path: Path, method: str) -> Path:
    if not path.is_file():
        raise DatabaseError(f"database file {path} does not exist")
    stat = path.stat()
    content = _fingerprint(path.resolve(), stat.st_mtime_ns, stat.st_size)
    key = hashlib.sha256(f"{content}|{method}".encode()).hexdigest()
    return cache_dir("replicas", key[:24])


@lru_cache(maxsize=4096)
def _fingerprint(path: Path, modified_ns: int, size: int) -> str:
    """Content fingerprint, remembered for as long as the file does not change."""
    from nl2sql.databases.sqlite.files import fingerprint_sqlite

    return fingerprint_sqlite(path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns errors of reading the original or writing the copy into one line that names the file."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise DatabaseError(f"no replica of {path} could be built: {error}") from error


def _build(target: Path, write: Callable[[Path], None]) -> None:
    """Write into a temporary file beside ``target`` and move it there when it is complete."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}-", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
        Path(f"{temporary}-journal").unlink(missing_ok=True)
