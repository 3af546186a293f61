"""Checks of the machine for ``nl2sql models doctor``: versions, cache folder, sandbox, benchmarks, optional parts."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from nl2sql.errors import Nl2SqlError
from nl2sql.machine import cores, free_bytes, install_command
from nl2sql.models.doctor import Check

NEEDED_BYTES = 2 * 10**9  # free disk, or memory, for a small model, its conversion and replicas
OPTIONAL = {
    **{"torch": "local", "pandas": "data", "llguidance": "grammar", "jupyterlab": "notebooks"},
    **{"duckdb": "engines", "mcp": "mcp", "langgraph": "graph"},
}


def machine_checks() -> Iterator[Check]:
    """Everything that needs no model; yields each finding as it is made."""
    versions = ", ".join(f"{name} {_version(name)}" for name in ("torch", "transformers", "sqlglot"))
    yield Check("versions", "ok", f"Python {platform.python_version()}, {versions}, SQLite {sqlite3.sqlite_version}")
    yield _memory()
    yield _cache()
    yield _sandbox()
    yield _benchmarks()
    missing = [extra for module, extra in OPTIONAL.items() if importlib.util.find_spec(module) is None]
    hint = f"not installed: {', '.join(missing)} ({install_command(*missing)})"
    yield Check("optional parts", "warn" if missing else "ok", hint if missing else "all installed")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _memory() -> Check:
    free = free_bytes()
    if free is None:
        return Check("machine", "ok", f"{cores()} cores")
    summary = f"{cores()} cores, {free / 1e9:.1f} GB free"
    if free < NEEDED_BYTES:
        return Check("machine", "warn", f"{summary}: little; use a smaller --batch-size")
    return Check("machine", "ok", summary)


def _cache() -> Check:
    from nl2sql.machine import cache_dir

    try:
        folder = cache_dir()
        with tempfile.NamedTemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except (Nl2SqlError, OSError) as error:
        return Check("cache folder", "fail", f"{error}; set NL2SQL_CACHE to a folder that can be written")
    status = f"{folder}, {free / 1e9:.1f} GB free"
    if free < NEEDED_BYTES:
        return Check("cache folder", "warn", f"{status}: little; set NL2SQL_CACHE to a larger disk")
    return Check("cache folder", "ok", status)


def _sandbox() -> Check:
    """A query runs, a write is refused, and the file is what it was."""
    from nl2sql.databases.sqlite.database import QueryPool

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.sqlite"
        connection = sqlite3.connect(path)
        connection.executescript("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
        connection.close()
        before = path.read_bytes()
        pool = QueryPool(workers=1)
        try:
            read = pool.run(path, "SELECT a FROM t", timeout_s=10, max_rows=5)
            write = pool.run(path, "DELETE FROM t", timeout_s=10, max_rows=5)
        finally:
            pool.close()
        if read.success and not write.success and path.read_bytes() == before:
            return Check("sandbox", "ok", "a query runs in its worker process, a write is refused")
        return Check("sandbox", "fail", f"query: {read.error or 'ok'}; write: {write.error or 'was not refused'}")


def _benchmarks() -> Check:
    root = os.environ.get("NL2SQL_BENCHMARKS")
    if not root:
        return Check("benchmarks", "ok", "packaged (set NL2SQL_BENCHMARKS to a folder of others)")
    if not Path(root).is_dir():
        return Check(
            "benchmarks",
            "fail",
            f"NL2SQL_BENCHMARKS={root} is not a folder",
        )
    names = sorted(entry.name for entry in Path(root).iterdir() if entry.is_dir())
    return Check("benchmarks", "ok", f"packaged, and in {root}: {', '.join(names) or 'none'}"[:200])
