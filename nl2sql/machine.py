"""The resources that this machine lets the process use: processor cores, memory, and the cache folder.

The cache folder (converted weights, built databases, replicas) is ``NL2SQL_CACHE``, else ``~/.cache/nl2sql``.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from nl2sql.errors import Nl2SqlError

KEY_VARIABLE = "NL2SQL_API_KEY"
SHORTEST_KEY = 8  # characters; shorter ones ("EMPTY") are no secret, and their letters occur everywhere
_DISK_FULL = ("no space left", "errno 28", "os error 28", "file too large", "os error 27", "disk quota")


def api_key() -> str:
    """The key of the model's server; "" without one."""
    return os.environ.get(KEY_VARIABLE, "").strip()


def masked(text: str, key: str | None = None) -> str:
    """``text`` without the server's key, or any end of it of eight characters or more. key: default, ``api_key()``."""
    key = api_key() if key is None else key
    if len(key) < SHORTEST_KEY or key[-SHORTEST_KEY:] not in text:
        return text
    return _ends(key).sub("***", text)


def masked_data(value: Any, key: str) -> Any:
    """What was read from JSON, with every text in it ``masked``."""
    if isinstance(value, str):
        return masked(value, key)
    if isinstance(value, list):
        return [masked_data(item, key) for item in value]
    if isinstance(value, dict):
        return {masked(name, key): masked_data(item, key) for name, item in value.items()}
    return value


@cache
def _ends(key: str) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(key[at:]) for at in range(len(key) - SHORTEST_KEY + 1)))


def cores() -> int:
    """Processor cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def all_bytes() -> int | None:
    """Memory of the machine, or of the control group; None where the system does not say."""
    whole = _meminfo("MemTotal")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no group, or one without a limit
        return whole
    return limit if whole is None else min(whole, limit)


def free_bytes() -> int | None:
    """Memory that can still be taken, of the machine and of the control group; None where the system does not say."""
    available = _meminfo("MemAvailable")
    if available is None:
        return None
    try:
        group = Path("/sys/fs/cgroup")
        return min(available, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no group, or one without a limit
        return available


def _meminfo(key: str) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines[key].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def cache_dir(*parts: str) -> Path:
    """The cache folder (or a folder inside it), created when missing."""
    base = os.environ.get("NL2SQL_CACHE")
    if base:
        root = Path(base).expanduser()
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nl2sql"
    path = root.joinpath(*parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "set NL2SQL_CACHE to a folder you can write"
        raise Nl2SqlError(f"cache folder {path} cannot be created ({error.strerror}); {hint}") from None
    return path


def is_disk_full(text: str) -> bool:
    """Does the text of an error, a program's or an exception's, say that a disk is full?"""
    return any(sign in text.lower() for sign in _DISK_FULL)
