"""Commands and scripts in the process of the tests: torch is imported once, the embedded model is loaded once.

A test of what a process does (its exit at Ctrl-C, what it imports, how it is killed) starts one of its own.
"""

from __future__ import annotations

import contextlib
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def command(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """``nl2sql WORDS`` in the folder ``cwd``."""
    from nl2sql.cli import main

    with contextlib.chdir(cwd), _weights_kept():
        return _ended(["nl2sql", *map(str, words)], main)


def script(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    """``python scripts/NAME WORDS`` in the current folder."""
    return _ended([name, *map(str, words)], lambda: runpy.run_path(str(SCRIPTS / name), run_name="__main__"))


def _ended(words: list[str], program: Callable[[], Any]) -> subprocess.CompletedProcess[str]:
    code = 0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:  # files, which a child can write to
        with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                program()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(bool(end.code))
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


@contextlib.contextmanager
def _weights_kept() -> Iterator[None]:
    """Within it, weights that were loaded in the same way before are taken again; engines are new each time."""
    import nl2sql.models.local

    with mock.patch.object(nl2sql.models.local, "load_parts", _load_parts):
        yield


@lru_cache(maxsize=2)
def _load_parts(*source: Any, **how: Any) -> Any:
    from nl2sql.models.load import load_parts

    return load_parts(*source, **how)
