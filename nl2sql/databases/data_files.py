"""CSV, Parquet, JSON and Excel files as a database: each a table of a SQLite file in the cache.

    people.csv with the columns "First Name", "Age"   ->   people(first_name TEXT, age INTEGER)

SQLite is what the sandbox, the grammars and value grounding know, so files are copied into it, once for each content.
Whoever made a file may have meant harm, so another process reads it (``data_readers``), within bounds of columns, cells
and memory, and is ended where it gets no further. A file that takes longer shows a bar.

What is no regular file is refused, and in a folder a link, which may lead to any file of yours; a link that you name
yourself is followed. Not covered: a file that is changed while it is read.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from nl2sql.databases.data_readers import HEAD, MOST_TABLES, READERS, SNIFFED, identifier
from nl2sql.databases.sqlite.disk import BYTES_PER_S, resolved, stored_bytes
from nl2sql.databases.sqlite.files import shown_path
from nl2sql.databases.sqlite.process import PATIENCE, Children
from nl2sql.errors import UsageError, one_line
from nl2sql.machine import cache_dir
from nl2sql.safe_files import open_regular

__all__ = ["READERS", "as_sqlite", "identifier", "is_data"]

FORMAT = 7  # of the copies in the cache
MOST_FILES = 10_000  # names in a folder
HOLES, HOLES_PER_BYTE = 2**26, 64  # bytes of a file by its length, of which fewer lie on the disk (sparse, compressed)
STALLED_S = 3.0  # without a step, and a second more for every BYTES_PER_S on the disk
SHOWN_S = 1.0  # before a bar appears
LISTED = re.compile(rb"\s*\[\s*\{")


def is_data(path: Path) -> bool:
    """Whether a path is a data file, or a folder with any; one of ``.json`` beside folders is a benchmark's."""
    if not path.is_dir():
        return path.suffix.lower() in READERS
    found = _inside(path)
    tables = {file.suffix.lower() for file in found if _in_folder(file)}
    return bool(tables - {".json"}) or (bool(tables) and not any(file.is_dir() for file in found))


def _inside(folder: Path) -> list[Path]:
    found = sorted(itertools.islice(folder.iterdir(), MOST_FILES + 1))
    if len(found) > MOST_FILES:
        raise UsageError(f"{shown_path(folder)} holds more than {MOST_FILES:,} files; give a folder with tables alone")
    return found


def _in_folder(file: Path) -> bool:
    """Whether a file is a table of its folder: of ``.json``, as often a setting, what begins as a list of objects."""
    kind = file.suffix.lower()
    if kind not in READERS or file.name.startswith((".", "~$")):  # hidden, or Excel's lock beside an open book
        return False
    if kind != ".json":
        return True
    try:
        with open_regular(file) as opened:
            return LISTED.match(opened.read(SNIFFED)) is not None
    except (OSError, UsageError):
        return not file.is_dir()  # as_sqlite says why


def as_sqlite(path: Path) -> Path:
    """The SQLite copy of a data file, or of all data files in a folder; made anew when they change.

    Raises UsageError for a file that cannot be read, or holds no rows and columns; the message names the file.
    """
    files = list(filter(_in_folder, _inside(path))) if path.is_dir() else [path]
    if len(files) > MOST_TABLES:
        raise UsageError(f"{shown_path(path)} holds {len(files):,} tables; at most {MOST_TABLES:,} are read")
    digest, stored = hashlib.sha256(str(FORMAT).encode()), 0
    for file in files:
        try:
            real = file if path.is_dir() else resolved(file)
            stored += (on_disk := stored_bytes(real))
            with open_regular(real, most=HOLES + HOLES_PER_BYTE * on_disk) as opened:
                content = hashlib.file_digest(cast(Any, opened), "sha256")
            digest.update(os.fsencode(file.name) + b"\0" + content.digest())
        except OSError as error:
            raise UsageError(f"{shown_path(file)} cannot be read: {error.strerror}") from None
    copy = cache_dir("data-files") / f"{digest.hexdigest()[:32]}.sqlite"
    if not copy.exists():
        handle, name = tempfile.mkstemp(dir=copy.parent, suffix=".part")
        os.close(handle)
        try:
            _convert(path, files, Path(name), stored)
            Path(name).replace(copy)
        finally:
            Path(name).unlink(missing_ok=True)
            Path(f"{name}.rows").unlink(missing_ok=True)  # of a process that was ended
    return copy


_readers = Children("nl2sql.databases.data_readers")


def _convert(path: Path, files: Sequence[Path], target: Path, stored: int) -> None:
    """Have the tables of files written to ``target``. Raises UsageError."""
    from tqdm.auto import tqdm

    seconds = STALLED_S + stored / BYTES_PER_S
    request = {"files": list(map(str, files)), "follow": not path.is_dir(), "target": str(target.absolute())}
    # a kept process is where this one was when it was started
    request |= {"stored": stored, "seconds": seconds, "folder": "/" if path.is_absolute() else str(Path.cwd())}
    sizes = [file.stat().st_size for file in files]
    size = sum(2 * size + min(size, HEAD) for size in sizes)  # each is looked through and read, its head once more
    try:
        with (
            _readers.lent() as reader,
            tqdm(
                total=size,
                desc=one_line(path.name, 30),
                unit="B",
                unit_scale=True,
                miniters=1,
                delay=SHOWN_S,
                leave=False,
            ) as bar,
        ):
            while "read" in (answer := reader.ask(request, seconds, patience=PATIENCE)):
                bar.update(min(answer["read"], size) - bar.n)
                request = {"go on": True}
            if "error" in answer:
                reader.close()  # what it holds is not given back
    except TimeoutError:
        answer = {"error": f"it got no further for {seconds:.0f} s"}
    except ConnectionError:
        answer = {"error": "the process that reads it died, most likely of too much memory"}
    if "refused" in answer:
        raise UsageError(answer["refused"])
    if "error" in answer:
        raise UsageError(f"{shown_path(path)} cannot be read: {answer['error']}; give a smaller part of it")
