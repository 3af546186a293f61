"""The resources of an episode beside its model and database: opened here, and fingerprinted here.

``Resources`` holds all that a controller may touch. What the config names and nobody has handed in (a corpus of fixes,
a pool of solved examples) is opened by ``completed``, once per process; ``part_fingerprints`` lists the same
things with their content, so that a run's key, its manifest and a worker on another machine speak of one list.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nl2sql.agents.context.few_shot import check_few_shot, pool_of
from nl2sql.agents.context.knowledge import read_knowledge
from nl2sql.agents.prompts import for_engine
from nl2sql.agents.repairing import check_corpus, corpus_of, corpus_print
from nl2sql.benchmarks.verified import read_verified
from nl2sql.config import Config, KnowledgeConfig
from nl2sql.errors import ModelError
from nl2sql.interfaces import Gate, Model, Resources, Tool


def completed(resources: Resources, config: Config) -> Resources:
    """``resources`` with all that ``config`` names; what was handed in stays.

    Raises UsageError, BenchmarkError or DatabaseError for what is named and cannot be opened.
    """
    opened: dict[str, Any] = {}
    if resources.corpus is None and (config.repair.learn or config.repair.guidance == "patterns+corpus"):
        opened["corpus"] = corpus_of(config.repair)
    if resources.examples is None and config.few_shot.k:
        opened["examples"] = pool_of(config.few_shot)
    return replace(resources, **opened) if opened else resources


def takes_grammars(model: Model, kind: str = "lark") -> bool:
    """Whether a model writes under grammars of ``kind``. One that does not say is believed to; a server is tried."""
    takes, check = getattr(model, "takes", None), getattr(model, "check", None)
    try:
        if takes is not None:
            return bool(takes(kind))
        if check is not None:
            check(grammar=True, tools=False)
    except ModelError:
        return False
    return True


def fitted(config: Config, resources: Resources) -> Config:
    """``config`` with what it leaves to the model and the database decided: ``constrain``
    where it is ``auto``, and the engine's name."""
    dialect = resources.database.dialect
    if dialect != "sqlite":
        config = config.model_copy(update={"prompts": for_engine(config.prompts, dialect)})
    if config.constrain != "auto":
        return config
    level = "plain" if dialect == "sqlite" and takes_grammars(resources.model) else "none"
    return config.model_copy(update={"constrain": level})


def check_members(config: Config) -> None:
    """Raises UsageError, BenchmarkError or DatabaseError before a run that names what is not there."""
    check_corpus(config.repair)
    check_few_shot(config.few_shot)
    files_known(config.knowledge)


def files_known(settings: KnowledgeConfig) -> dict[str, str]:
    """The files of knowledge that are named -> the hash of what is read in each. Raises UsageError."""
    fingerprints = {"knowledge": read_knowledge(settings.file).fingerprint} if settings.file else {}
    return fingerprints | (
        {"verified_queries": read_verified(settings.verified).fingerprint} if settings.verified else {}
    )


def part_fingerprints(
    config: Config, tools: Mapping[str, Tool] | None = None, gates: Mapping[str, Gate] | None = None
) -> dict[str, str]:
    """All that answers rest on beside controller, config, prompts, model and databases: name -> content hash.

    Tools and gates count by the hash of their source. A corpus that the run itself writes is not listed: it changes
    from question to question.
    Raises UsageError, BenchmarkError or DatabaseError for what is named and is not there.
    """
    seen: dict[str, str | None] = {
        "corpus": corpus_print(config.repair),
        **files_known(config.knowledge),
    }
    if config.few_shot.k:
        seen["few_shot_pool"] = pool_of(config.few_shot).fingerprint
    if named := config.vizql.source:
        from nl2sql.vizql.source import read_source

        read_source(Path(named))  # what is no data source is refused with its reason
        seen["vizql_source"] = hashlib.sha256(Path(named).read_bytes()).hexdigest()[:16]
    seen |= {f"tool {name}": code_identity(tool) for name, tool in (tools or {}).items()}
    seen |= {f"gate {name}": code_identity(gate) for name, gate in (gates or {}).items()}
    return {name: content for name, content in seen.items() if content}


# --------------------------------------------------------------------------------------- the identity of code

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
    if not isinstance(value, (dict, list)):
        return isinstance(value, (str, int, float, bytes, tuple, type(None)))
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def code_identity(function: Any) -> str:
    """Hash of a function's source (or an object's class), its defaults, closure values or attributes, and the package.

    >>> [code_identity(json.dumps) == code_identity(other) for other in (json.dumps, json.loads)]
    [True, False]

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
    texts = []
    for part in held:
        if _is_plain(part):
            texts.append(repr(part))
        elif (part is owner or _is_code(part)) and not any(part is one for one in around):
            texts.append(_content(part, (*around, value)))
        elif callable(part):
            texts.append(_source(type(part)))
    return f"{source}[{', '.join(texts)}]"


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
