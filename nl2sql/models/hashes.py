"""Content hashes of weights: the revision that manifests record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from nl2sql.databases.sqlite.disk import stored_bytes
from nl2sql.errors import ModelError
from nl2sql.machine import cache_dir

HOLES = 64 * 2**20  # bytes that a weights file may have beyond twice those that lie on the disk


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_hash(file: Path) -> str:
    """SHA-256 of a weights file, remembered in the cache by path, size and time of change.

    Raises ModelError for a file of holes, which would be read for hours."""
    stat = file.stat()
    if stat.st_size > HOLES + 2 * (stored := stored_bytes(file)):
        raise ModelError(f"{file} has {stat.st_size:,} bytes, of which {stored:,} lie on the disk; fetch it again")
    key = hashlib.sha256(f"{file.resolve()}:{stat.st_size}:{stat.st_mtime_ns}".encode()).hexdigest()[:32]
    memo = cache_dir("models", "hashes") / f"{key}.json"
    try:
        sha256: str = json.loads(memo.read_text(encoding="utf-8"))["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        sha256 = file_sha256(file)
        memo.write_text(json.dumps({"file": str(file), "sha256": sha256}), encoding="utf-8")
    return sha256


def weights_files(folder: Path) -> list[Path]:
    """The weights of a transformers folder: its safetensors, else its .bin files."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))


def folder_files(folder: Path) -> list[Path]:
    """The files that decide a folder's answers: its weights, and the JSON and template files beside them."""
    return [*weights_files(folder), *sorted([*folder.glob("*.json"), *folder.glob("*.jinja")])]


def weights_revision(files: Sequence[Path]) -> str:
    """``sha256:...`` of one file, or of the list of names and hashes of several."""
    if len(files) == 1:
        return f"sha256:{weights_hash(files[0])}"
    joined = "\n".join(f"{file.name} {weights_hash(file)}" for file in files)
    return f"sha256:{hashlib.sha256(joined.encode()).hexdigest()}"
