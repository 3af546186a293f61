"""Files that users give and take: JSON and YAML read with every error a plain one, and files written whole.

Python's own readers have more than one way to fail: a number of ten thousand digits, ten thousand
brackets, and a date that is none raise what no caller expects.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

MOST_DIGITS = 300  # of a whole number: longer ones are no float's, and no count of anything
_DEEP = "it is nested too deeply"


def from_json(text: str | bytes, *, pairs: bool = False) -> Any:
    """What ``text`` holds; ``pairs``: objects as lists of pairs. Raises ValueError, with one line, and nothing else."""
    try:
        return json.loads(text, parse_int=_whole_number, object_pairs_hook=list if pairs else None)
    except RecursionError:
        raise ValueError(_DEEP) from None


def from_yaml(text: str) -> Any:
    """What ``text`` holds. Raises yaml.YAMLError and nothing else."""
    import yaml

    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise yaml.YAMLError(_DEEP) from None
    except ValueError as error:  # a date such as 2020-99-99, or a number that is too long
        long = "integer string conversion" in str(error)
        raise yaml.YAMLError("a number is too long" if long else str(error)) from None


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits; expected at most {MOST_DIGITS}")
    return int(digits)


def write_whole(path: Path, parts: str | Iterable[str], *, new: bool = False) -> None:
    """Write a text file as a whole or not at all: beside its place first. ``new``: never over one that is there.

    Raises OSError (FileExistsError among them); what was at ``path`` is there then as it was.
    """
    with written_whole(path, new=new) as file:
        for part in [parts] if isinstance(parts, str) else parts:
            file.write(part)


@contextlib.contextmanager
def written_whole(path: Path, *, new: bool = False) -> Iterator[IO[str]]:
    """A file to write to that appears at ``path`` when the block has ended well; see ``write_whole``."""
    if not new and path.exists() and not path.is_file():  # /dev/stdout, a pipe: there is nothing to replace
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    if new and os.path.lexists(path):
        raise FileExistsError(f"{path} exists")
    real = path.resolve()  # a link stays one
    beside = real.with_name(f".{real.name[:100]}.{os.getpid()}.{threading.get_ident()}.tmp")
    place: Callable[[Path, Path], object] = _place_new if new else Path.replace
    try:
        with beside.open("w", encoding="utf-8", newline="") as file:
            yield file
        place(beside, real)
    finally:
        beside.unlink(missing_ok=True)


def _place_new(beside: Path, path: Path) -> None:
    """Give a file its name where nobody else has taken it meanwhile."""
    try:
        path.hardlink_to(beside)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        beside.replace(path)
