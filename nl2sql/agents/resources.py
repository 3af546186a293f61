"""The resources of an episode beside its model and database: opened here, and fingerprinted here.

``Resources`` holds all that a controller may touch. What the config names and nobody has handed in (a corpus of fixes,
a pool of solved examples) is opened by ``completed``, once per process; ``members`` lists the same
things with their content, so that a run's key, its manifest and a worker on another machine speak of one list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nl2sql.agents.identity import code_identity
from nl2sql.agents.prompts import for_engine
from nl2sql.agents.repairing import check_corpus, corpus_of, corpus_print
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
        from nl2sql.agents.context.few_shot import pool_of

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
    from nl2sql.agents.context.few_shot import check_few_shot

    check_corpus(config.repair)
    check_few_shot(config.few_shot)
    files_known(config.knowledge)


def files_known(settings: KnowledgeConfig) -> dict[str, str]:
    """The files of knowledge that are named -> the hash of what is read in each. Raises UsageError."""
    from nl2sql.agents.context.knowledge import read_knowledge
    from nl2sql.benchmarks.verified import read_verified

    known = {"knowledge": read_knowledge(settings.file).fingerprint} if settings.file else {}
    return known | ({"verified_queries": read_verified(settings.verified).fingerprint} if settings.verified else {})


def members(
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
        from nl2sql.agents.context.few_shot import pool_of

        seen["few_shot_pool"] = pool_of(config.few_shot).fingerprint
    if named := config.vizql.source:
        from nl2sql.vizql.source import read_source

        read_source(Path(named))  # what is no data source is refused with its reason
        seen["vizql_source"] = hashlib.sha256(Path(named).read_bytes()).hexdigest()[:16]
    seen |= {f"tool {name}": code_identity(tool) for name, tool in (tools or {}).items()}
    seen |= {f"gate {name}": code_identity(gate) for name, gate in (gates or {}).items()}
    return {name: content for name, content in seen.items() if content}
