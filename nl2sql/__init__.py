"""nl2sql: the research harness for tool-using text-to-SQL agents.

Importing this package is cheap: public names are loaded on first use, so that scoring somebody's
predictions never pays for (or needs) a model library.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Completion": "nl2sql.interfaces",
    "Episode": "nl2sql.interfaces",
    "Grammar": "nl2sql.interfaces",
    "Question": "nl2sql.interfaces",
    "Resources": "nl2sql.interfaces",
    "RunResult": "nl2sql.interfaces",
    "Sampling": "nl2sql.interfaces",
    "Usage": "nl2sql.interfaces",
    "Config": "nl2sql.config",
    "ReactConfig": "nl2sql.config",
    "ReflectConfig": "nl2sql.config",
    "SqliteDatabase": "nl2sql.databases.sqlite.pool",
    "load_benchmark": "nl2sql.benchmarks",
    "load_model": "nl2sql.models",
    "react_sql": "nl2sql.agents.react",
    "ReactSqlAgent": "nl2sql.agents.candidates.agent",
    "ScriptedModel": "nl2sql.models.scripted",
    "single_shot": "nl2sql.agents.single_shot",
    "evaluate": "nl2sql.runs.evaluate",
    "resume": "nl2sql.runs.evaluate",
    "replay": "nl2sql.runs.rescore",
    "Run": "nl2sql.runs.folder",
    "load_config": "nl2sql.config",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'nl2sql' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
