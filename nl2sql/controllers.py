"""Controllers by short name. Any callable ``(Question, Resources, Config) -> Episode`` works as well.

A controller's identity is the hash of its source, so that a loop edited in a notebook cell is told apart from the
packaged one in caches and resumed runs.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nl2sql.config import REACT_PLUS, Config
from nl2sql.errors import Cancelled, DatabaseError, ModelError, Nl2SqlError, UsageError
from nl2sql.interfaces import Controller, Episode, Model, Question, Resources

_HOMES = {
    "single_shot": "nl2sql.single_shot:single_shot",
    "react": "nl2sql.react:react",
    "react_plus": "nl2sql.react:react",
}
_PRESETS: dict[str, dict[str, Any]] = {"react_plus": {"react": REACT_PLUS}}


@dataclass(frozen=True)
class NamedController:
    """A controller, what it is called, the hash of its source, and the config its preset starts from."""

    name: str
    identity: str
    run: Controller
    preset: dict[str, Any]


def controller_names() -> list[str]:
    return list(_HOMES)


def get_controller(spec: str | Callable[..., Any]) -> NamedController:
    """A controller by short name, by ``FILE.py:function``, or a callable itself.

    Raises UsageError for an unknown name, a missing file or function.
    """
    if callable(spec):
        return NamedController(getattr(spec, "__name__", "controller"), _identity(spec), spec, {})
    if spec in _HOMES:
        module, _, function = _HOMES[spec].partition(":")
        found = getattr(importlib.import_module(module), function)
        return NamedController(spec, _identity(found), found, _PRESETS.get(spec, {}))
    path, _, function = spec.rpartition(":")
    if path.endswith(".py"):
        found = _from_file(Path(path), function)
        return NamedController(function, _identity(found), found, {})
    known = ", ".join(_HOMES)
    raise UsageError(f"unknown controller {spec!r}; known: {known}, or your own as FILE.py:function")


def episode_model(model: Model, question: Question, controller: str) -> Model:
    """The model as one episode sees it: a scripted model gives each episode its own cursors."""
    fork = getattr(model, "for_episode", None)
    found: Model = fork(question.text, controller) if fork else model
    return found


def run_episode(
    controller: NamedController, question: Question, resources: Callable[[], Resources], config: Config
) -> Episode:
    """One episode; whatever goes wrong, in opening its resources too, becomes an Episode with an attributed error.

    Raises only Cancelled (the user stopped the run).
    """
    started = time.perf_counter()
    try:
        episode = controller.run(question, resources(), config)
        episode.controller = controller.name
        return episode
    except Cancelled:
        raise
    except Nl2SqlError as error:
        where = {UsageError: "question", ModelError: "model", DatabaseError: "database"}.get(type(error), "benchmark")
        text = f"{where}: {error}"
    except Exception as error:  # noqa: BLE001 - controllers are users' code: attribute and record, the run goes on
        text = f"controller: {type(error).__name__}: {error}"
    return Episode(question, controller.name, error=text, finish="error", seconds=time.perf_counter() - started)


def _identity(function: Callable[..., Any]) -> str:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # built in a REPL: no source to hash, the name and code must do
        code = getattr(function, "__code__", None)
        source = f"{getattr(function, '__qualname__', function)!r}{code.co_code if code else ''}"
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _from_file(path: Path, function: str) -> Controller:
    if not path.is_file():
        raise UsageError(f"controller file {path} does not exist")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"controller file {path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"controller file {path} failed on import: {type(error).__name__}: {error}") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise UsageError(f"controller file {path} has no function {function!r}")
    return found
