"""Code of the user's own, by name: a file, an installed module, or an entry point of an installed package.

A package says in its ``pyproject.toml`` what it adds (docs/adding/plugin.md); nothing of it is imported before its name
is asked for:

    [project.entry-points."nl2sql.controllers"]
    my_loop = "my_package.loops:my_loop"

>>> own_function("controllers", "react") is None  # no file, no module, no plugin: a packaged name
True
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nl2sql.errors import Nl2SqlError, UsageError, one_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KINDS = {  # what a plugin may be, and what its object is
    "controllers": "(question, resources, config) -> Episode",
    "tools": "(state, args) -> observation",
    "gates": "(state, action, args) -> reason or None",
    "rules": "a comparison of results, or a Rule",
    "benchmarks": "() -> Benchmark",
    "models": "(text after 'NAME:') -> Model",
    "engines": "(address 'NAME:...') -> Database",
}
MADE = {  # what the function of a plugin gives, and what that must have
    "benchmarks": ("Benchmark", ("name", "questions", "splits", "database")),
    "models": ("Model", ("generate", "count_tokens", "describe", "close", "name", "context_window")),
    "engines": ("Database", ("dialect", "run", "schema")),
}
FORMS = "FILE.py:function, package.module:function, or a plugin's name"
_IN_MODULE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")


@dataclass(frozen=True)
class Own:
    """A function (or other object) that was named: what it is called here, and the file that holds it, if known."""

    name: str
    function: Any
    file: Path | None


def own_function(kind: str, spec: str) -> Own | None:
    """The object that ``spec`` names in one of ``FORMS``; None where it has none of these forms. kind: of ``KINDS``.

    Raises UsageError where the file, module or function is missing, and where its import fails.
    """
    what = kind.removesuffix("s")
    head, _, name = spec.rpartition(":")
    if head.endswith(".py"):
        path = Path(head).expanduser().resolve()
        if not path.is_file():
            raise UsageError(f"{what} file {path} does not exist")
        return _member(kind, f"{what} file {path}", partial(_run, path), name)
    if match := _IN_MODULE.fullmatch(spec):
        module, name = match.groups()
        return _member(kind, f"{what} module {module!r}", partial(importlib.import_module, module), name)
    return _of_plugin(kind, spec)


def named_functions(kind: str, specs: Iterable[str]) -> dict[str, Any]:
    """Tools or gates by the names under which a loop has them. Raises UsageError for what names none, or one twice."""
    named: dict[str, Any] = {}
    for spec in specs:
        own = own_function(kind, spec)
        if own is None:
            raise UsageError(f"no {kind.removesuffix('s')} {spec!r}; give {FORMS} (nl2sql new plugins lists them)")
        if own.name in named:
            raise UsageError(f"two {kind} are called {own.name!r}; leave one out")
        named[own.name] = own.function
    return named


def plugin(kind: str, name: str) -> Any:
    """The object of the plugin of that name, None where there is none. Raises UsageError where it cannot be loaded."""
    own = _of_plugin(kind, name)
    return own.function if own else None


def made_by_plugin(kind: str, name: str, *given: str) -> Any:
    """What the function of the plugin of that name gives for ``given``; None where there is no such plugin.

    kind: of ``MADE``. Raises UsageError where the plugin cannot be loaded, raises another error than ours, or gives
    something else.
    """
    function = plugin(kind, name)
    if function is None:
        return None
    what, members = MADE[kind]
    try:
        made = function(*given)
    except Nl2SqlError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{_called(kind, name)} failed: {_said(error)}") from error
    if missing := [member for member in members if not hasattr(made, member)]:
        raise UsageError(f"{_called(kind, name)} gave no {what}: {type(made).__name__} has no {missing[0]!r}")
    return made


@cache
def plugins(kind: str) -> dict[str, EntryPoint]:
    """The plugins of a kind, by name. Of two with one name the first that Python finds is taken. Imports none."""
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=f"nl2sql.{kind}"):
        found.setdefault(entry.name, entry)
    return dict(sorted(found.items()))


def _of_plugin(kind: str, name: str) -> Own | None:
    entry = plugins(kind).get(name)
    if entry is None:
        return None
    try:
        loaded = entry.load()
    except (Exception, SystemExit) as error:
        raise UsageError(f"{_called(kind, name)} cannot be loaded: {_said(error)}") from error
    if not _usable(kind, loaded):
        raise UsageError(f"{_called(kind, name)} is no function: {one_line(repr(loaded), 100)}")
    return Own(name, loaded, _file_of(sys.modules.get(entry.module)))


def _called(kind: str, name: str) -> str:
    """A plugin as a message names it."""
    entry = plugins(kind)[name]
    package = entry.dist.name if entry.dist else "an installed package"
    return f"plugin {name!r} of {package} ({entry.value})"


def _run(path: Path) -> ModuleType:
    """The module that a file is."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _member(kind: str, where: str, load: Callable[[], ModuleType], name: str) -> Own:
    try:
        module = load()
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and re.search(rf" module '{re.escape(missing)}[.']", where):
            raise UsageError(f"{where} is not installed; for a file write FILE.py:function") from None
        raise UsageError(f"{where} failed on import: {_said(error)}") from error
    own = getattr(module, name, None)
    if not _usable(kind, own):
        raise UsageError(f"{where} has no function {name!r}")
    return Own(name, own, _file_of(module))


def _said(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}")


def _usable(kind: str, own: Any) -> bool:
    """Whether it is a function, or a ``Rule``."""
    return callable(own) or (kind == "rules" and callable(getattr(own, "compare", None)))


def _file_of(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if file else None
