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
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
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
    head, _, function = spec.rpartition(":")
    if head.endswith(".py"):
        path = Path(head).expanduser().resolve()
        return Own(function, _member(kind, _module_of_file(path, what), function, f"{what} file {path}"), path)
    if match := _IN_MODULE.fullmatch(spec):
        module = _imported(match[1], what)
        return Own(match[2], _member(kind, module, match[2], f"{what} module {match[1]!r}"), _file_of(module))
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
        raise UsageError(f"{_called(kind, name)} failed: {one_line(f'{type(error).__name__}: {error}')}") from error
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
        text = one_line(f"{type(error).__name__}: {error}")
        raise UsageError(f"{_called(kind, name)} cannot be loaded: {text}") from error
    if not _usable(kind, loaded):
        raise UsageError(f"{_called(kind, name)} is no function: {one_line(repr(loaded), 100)}")
    return Own(name, loaded, _file_of(sys.modules.get(entry.module)))


def _called(kind: str, name: str) -> str:
    """A plugin as a message names it."""
    entry = plugins(kind)[name]
    package = entry.dist.name if entry.dist else "an installed package"
    return f"plugin {name!r} of {package} ({entry.value})"


def _module_of_file(path: Path, what: str) -> Any:
    if not path.is_file():
        raise UsageError(f"{what} file {path} does not exist")
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    if module_spec is None or module_spec.loader is None:
        raise UsageError(f"{what} file {path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules.setdefault(path.stem, module)
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{what} file {path} failed on import: {type(error).__name__}: {error}") from error
    return module


def _imported(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name + ".").startswith(error.name + "."):
            raise UsageError(f"{what} module {name!r} is not installed; for a file write FILE.py:function") from None
        raise UsageError(f"{what} module {name!r} failed on import: {error}") from error
    except (Exception, SystemExit) as error:
        text = one_line(f"{type(error).__name__}: {error}")
        raise UsageError(f"{what} module {name!r} failed on import: {text}") from error


def _member(kind: str, module: Any, name: str, where: str) -> Any:
    own = getattr(module, name, None)
    if not _usable(kind, own):
        raise UsageError(f"{where} has no function {name!r}")
    return own


def _usable(kind: str, own: Any) -> bool:
    """Whether it is a function, or a ``Rule``."""
    return callable(own) or (kind == "rules" and callable(getattr(own, "compare", None)))


def _file_of(module: Any) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if file else None
