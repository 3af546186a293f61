"""Perturbed copies of a SQLite database for TS, and a copy whose rows lie in another order for ``data check``.

``perturbed_replicas(path, n)`` is the plain perturbation of the specification (suite-based robustness [18], not a
distilled test suite): the same schema, with rows dropped, duplicated and reordered and values changed in a seeded,
typed way, while keys stay unique, foreign keys refer, and NOT NULL and CHECK hold. Tables above a stated size are
sampled down. Files are built once and kept in the cache, under the content of the original and the method.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from nl2sql.databases.sqlite.disk import rows_deadline, stored_bytes
from nl2sql.databases.sqlite.files import fingerprint_sqlite, shown_path, unusable
from nl2sql.databases.sqlite.process import PATIENCE, Children, FramedChild
from nl2sql.errors import DatabaseError, UsageError, one_line
from nl2sql.machine import cache_dir

METHOD = "perturb-4"  # part of every cache key: change it whenever the same input is to give other replicas
SHUFFLE_METHOD = "shuffle-2"
ROWS_PER_S = 1000  # rows that are written at least, whatever the constraints that they are checked against

log = logging.getLogger(__name__)

__all__ = ["METHOD", "perturbed_replicas", "shuffled_copies"]


def perturbed_replicas(path: str | Path, n: int, *, seed: int = 0) -> list[Path]:
    """``n`` perturbed replicas of the database at ``path``; replica i is the same file for every ``n`` above i.

    Raises UsageError for a negative ``n`` and DatabaseError where the original cannot be read. Safe to call from
    several threads and processes: a file appears in the cache only when it is complete.
    """
    from nl2sql.eval.replicas import perturb

    if n < 0:
        raise UsageError(f"{n} replicas asked for; expected 0 or more")
    path = Path(path)
    folder = _folder(path, f"{METHOD}|{seed}")
    targets = [folder / f"{number:03d}.sqlite" for number in range(n)]
    present = set(folder.iterdir())
    wanted = [number for number, target in enumerate(targets) if target not in present]
    if wanted:
        with _children.lent() as child:
            ask = partial(_ask, child, path)
            rows = ask("read", seed=str(seed), table_rows=perturb.TABLE_ROWS)["rows"]
            for number in wanted:
                _build(targets[number], partial(ask, "write", rows, number=number))
    return targets


def shuffled_copies(path: str | Path, seeds: Sequence[int | None]) -> list[Path]:
    """Copies with the same rows in other physical orders: queries whose answer rests on row order change theirs.

    An order is drawn with its seed; None reverses the rows exactly, which turns every tie the other way round.

    Keys and constraints are left out of the copies (an INTEGER PRIMARY KEY would fix the order again); types,
    collations, indexes and views are kept. Raises DatabaseError where the original cannot be read.
    """
    path = Path(path)
    folder = _folder(path, SHUFFLE_METHOD)
    targets = {seed: folder / f"{'reversed' if seed is None else seed}.sqlite" for seed in seeds}
    present = set(folder.iterdir())
    for seed, target in targets.items():
        if target not in present:
            with _children.lent() as child:
                _build(target, partial(_ask, child, path, "shuffle", seed=seed))
    return [targets[seed] for seed in seeds]


def _folder(path: Path, method: str) -> Path:
    key = hashlib.sha256(f"{content(path)}|{method}".encode()).hexdigest()
    return cache_dir("replicas", key[:24])


def content(path: Path) -> str:
    """Fingerprint of a file's content, remembered while it does not change. Raises DatabaseError."""
    try:
        if not path.is_file():
            raise DatabaseError(f"database file {shown_path(path)} does not exist")
        stat = path.stat()
    except OSError as error:
        raise unusable(path, error) from None
    return _fingerprint(path.resolve(), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _fingerprint(path: Path, modified_ns: int, size: int) -> str:
    return fingerprint_sqlite(path)


_children = Children("nl2sql.eval.replicas.child")


def _ask(child: FramedChild, path: Path, task: str, rows: int = 0, **options: Any) -> dict[str, Any]:
    """The reply of the process that writes copies; it may take as long as reading the file and writing ``rows`` rows.

    Raises DatabaseError with one line that names the file.
    """
    seconds = rows_deadline(stored_bytes(path)) + rows / ROWS_PER_S
    # absolute: a kept process is where this one was when it was started
    request = {"task": task, "path": str(path.absolute()), "seconds": seconds, **options}
    try:
        answer = child.ask(request, seconds, patience=PATIENCE)
    except (TimeoutError, ConnectionError) as error:
        child.close()
        late = isinstance(error, TimeoutError)
        died = "the process that writes it died, most likely of too much memory"
        answer = {"log": (), "error": f"it took more than {seconds:.0f} s" if late else died}
    for line in answer["log"]:
        log.warning("%s", line)
    if "error" in answer:
        raise DatabaseError(f"no replica of {shown_path(path)} could be built: {one_line(answer['error'])}")
    return answer


def _build(target: Path, write: Callable[..., object]) -> None:
    """Write into a temporary file beside ``target`` and move it there when it is complete."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}-", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        write(target=name)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
        Path(f"{temporary}-journal").unlink(missing_ok=True)
