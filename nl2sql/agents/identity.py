"""The identity of code, a hash: a function edited in a notebook cell is another one, and so is a changed package.

>>> [code_identity(json.dumps) == code_identity(other) for other in (json.dumps, json.loads)]
[True, False]
"""

from __future__ import annotations

import functools
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
    """Source of a function (or of an object's class), with its defaults, closure values or attributes.

    What a ``functools.partial`` fixes counts, the object that a method is of, and functions among these values. Of
    other objects among them only the class does: what they hold may be counts, which change while a run goes on.
    """
    return hashlib.sha256(f"{_content(function, ())}{reachable_code_hash()}".encode()).hexdigest()[:16]


def _content(value: Any, around: tuple[Any, ...]) -> str:
    """The text that tells a callable or object from others; ``around``: those that hold it."""
    held: list[Any]
    owner = value.__self__ if inspect.ismethod(value) else None
    if isinstance(value, functools.partial):
        source, held = "partial", [value.func, *value.args, *sorted(value.keywords), *value.keywords.values()]
    else:
        source = _source(value if _is_code(value) else type(value))
        held = [] if isinstance(value, type) else _held(value)
        held += [] if owner is None else [owner]
    told = []
    for part in held:
        if _is_plain(part):
            told.append(repr(part))
        elif (part is owner or _is_code(part)) and not any(part is one for one in around):
            told.append(_content(part, (*around, value)))
        elif callable(part):
            told.append(_source(type(part)))
    return f"{source}[{', '.join(told)}]"


def _is_code(value: Any) -> bool:
    code = hasattr(value, "__code__") or isinstance(value, (type, functools.partial))
    return code or inspect.isbuiltin(value)


def _source(target: Any) -> str:
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):  # built in a REPL: no source to hash, name and code must do
        code = getattr(target, "__code__", None)
        return f"{target.__qualname__}{code.co_code + repr(code.co_consts).encode() if code else ''}"


def _held(value: Any) -> list[Any]:
    """A function's closure values, defaults and attributes."""
    cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
    defaults = [*(getattr(value, "__defaults__", None) or ()), *(getattr(value, "__kwdefaults__", None) or {}).values()]
    return [*cells, *defaults, *getattr(value, "__dict__", {}).values()]
