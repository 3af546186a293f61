"""The identity of code, a hash: a function edited in a notebook cell is another one, and so is a changed package.

>>> [code_identity(json.dumps) == code_identity(other) for other in (json.dumps, json.loads)]
[True, False]
"""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path
from typing import Any

_READERS = ("cli", "runs", "eval", "benchmarks")  # rooms that no controller reaches


def reachable_code_hash() -> str:
    """Hash of the package's code that a controller can reach: everything but the rooms that only read runs."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for file in sorted([*package.rglob("*.py"), *package.rglob("*.yaml")]):
        if file.relative_to(package).parts[0] not in _READERS:
            digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _is_plain(value: Any) -> bool:
    """Does its text say all of it, and the same in another process?"""
    if isinstance(value, (dict, list)):
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            return False
        return True
    return isinstance(value, (str, int, float, bool, bytes, tuple, type(None)))


def code_identity(function: Any) -> str:
    """Source of a function (or of an object's class), with its defaults, closure values or attributes."""
    target = function if hasattr(function, "__code__") else type(function)
    try:
        source = inspect.getsource(target)
    except (OSError, TypeError):  # built in a REPL: no source to hash, name and code must do
        code = getattr(target, "__code__", None)
        source = f"{target.__qualname__}{code.co_code + repr(code.co_consts).encode() if code else ''}"
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    held = [*cells, *(getattr(function, "__defaults__", None) or ()), *getattr(function, "__dict__", {}).values()]
    plain = [value for value in held if _is_plain(value)]
    return hashlib.sha256(f"{source}{plain!r}{reachable_code_hash()}".encode()).hexdigest()[:16]
