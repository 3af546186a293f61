"""Commands and scripts in the process of the tests: torch is imported once, the embedded model is opened once.

A test of what a process does (its exit at Ctrl-C, what it imports, how it is killed) starts one of its own.
"""

from __future__ import annotations

import contextlib
import io
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def command(*words: object, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """``nl2sql WORDS`` in the folder ``cwd``; ``stdin`` is what is piped to it."""
    from nl2sql.cli import main

    piped = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
    with contextlib.chdir(cwd), _models_kept(), mock.patch.object(sys, "stdin", piped):
        return _ended(["nl2sql", *map(str, words)], main)


def code(text: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """``python -c TEXT`` in the folder ``cwd``."""
    with contextlib.chdir(cwd), _models_kept():
        return _ended(["-c"], lambda: exec(compile(text, "<code>", "exec"), {"__name__": "__main__"}))


def script(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    """``python scripts/NAME WORDS`` in the current folder."""
    return _ended([name, *map(str, words)], lambda: runpy.run_path(str(SCRIPTS / name), run_name="__main__"))


def _ended(words: list[str], program: Callable[[], Any]) -> subprocess.CompletedProcess[str]:
    code = 0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:  # files, which a child can write to
        called = mock.patch.object(sys, "argv", words), mock.patch.object(sys.modules["__main__"], "__package__", None)
        with called[0], called[1], contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                program()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(bool(end.code))
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


@contextlib.contextmanager
def _models_kept() -> Iterator[None]:
    """Within it, an embedded model that was opened so before answers again, with the prompts it has read."""
    import nl2sql.models

    with mock.patch.object(nl2sql.models, "_open", partial(_opened, nl2sql.models._open)):
        yield


def _opened(real: Callable[..., Any], source: Any, *how: Any) -> Any:
    return _kept(real, source, *how) if source.kind == "embedded" else real(source, *how)


@lru_cache(maxsize=2)
def _kept(real: Callable[..., Any], *how: Any) -> Any:
    model = real(*how)
    model.close = lambda: None  # what a command that was lent it would do; it ends with this process
    return model
