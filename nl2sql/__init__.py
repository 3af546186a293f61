"""nl2sql: the research harness for tool-using text-to-SQL agents.

Importing this package is cheap: public names are loaded on first use, so that scoring somebody's
predictions never pays for (or needs) a model library.

    import nl2sql
    episode = nl2sql.answer("How many customers are on hold?", database, model, "best")

The specification names modules by paths of its own (``nl2sql.agent_tools``, ``nl2sql.prompts``, ...): small files that
give the names of the rooms where they are written.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for type checkers and editors; a test compares the two lists
    from nl2sql.agents.agent_tools import TOOLS as TOOLS
    from nl2sql.agents.candidates import ReactSqlAgent as ReactSqlAgent
    from nl2sql.agents.checks.candidate import clean_candidate_with_reason as clean_candidate_with_reason
    from nl2sql.agents.checks.constraints import intent_constraints as intent_constraints
    from nl2sql.agents.checks.constraints import validate_constraints as validate_constraints
    from nl2sql.agents.checks.guardrails import enforce_projection_contract as enforce_projection_contract
    from nl2sql.agents.checks.guardrails import guarded_postprocess as guarded_postprocess
    from nl2sql.agents.checks.guardrails import vanilla_candidate as vanilla_candidate
    from nl2sql.agents.controllers import answer as answer
    from nl2sql.agents.controllers import run_episode as run_episode
    from nl2sql.agents.prompts import REACT_SYSTEM_PROMPT as REACT_SYSTEM_PROMPT
    from nl2sql.agents.react import react_sql as react_sql
    from nl2sql.agents.record import Episode as Episode
    from nl2sql.agents.record import summarize_trace as summarize_trace
    from nl2sql.agents.single_shot import single_shot as single_shot
    from nl2sql.benchmarks import load_benchmark as load_benchmark
    from nl2sql.config import Config as Config
    from nl2sql.config import ReactConfig as ReactConfig
    from nl2sql.config import ReflectConfig as ReflectConfig
    from nl2sql.config import load_config as load_config
    from nl2sql.databases.sqlite.database import SqliteDatabase as SqliteDatabase
    from nl2sql.interfaces import Completion as Completion
    from nl2sql.interfaces import Grammar as Grammar
    from nl2sql.interfaces import Question as Question
    from nl2sql.interfaces import Resources as Resources
    from nl2sql.interfaces import RunResult as RunResult
    from nl2sql.interfaces import Sampling as Sampling
    from nl2sql.interfaces import Usage as Usage
    from nl2sql.models import load_model as load_model
    from nl2sql.models.scripted import ScriptedModel as ScriptedModel
    from nl2sql.runs.evaluate import evaluate as evaluate
    from nl2sql.runs.evaluate import resume as resume
    from nl2sql.runs.rescore import replay as replay
    from nl2sql.runs.run import Run as Run
    from nl2sql.sessions.conversation import Conversation as Conversation

__version__ = "0.2.0"

_HOMES = {
    "Completion": "nl2sql.interfaces",
    "Config": "nl2sql.config",
    "Conversation": "nl2sql.sessions.conversation",
    "Episode": "nl2sql.agents.record",
    "Grammar": "nl2sql.interfaces",
    "Question": "nl2sql.interfaces",
    "REACT_SYSTEM_PROMPT": "nl2sql.agents.prompts",
    "ReactConfig": "nl2sql.config",
    "ReactSqlAgent": "nl2sql.agents.candidates",
    "ReflectConfig": "nl2sql.config",
    "Resources": "nl2sql.interfaces",
    "Run": "nl2sql.runs.run",
    "RunResult": "nl2sql.interfaces",
    "Sampling": "nl2sql.interfaces",
    "ScriptedModel": "nl2sql.models.scripted",
    "SqliteDatabase": "nl2sql.databases.sqlite.database",
    "TOOLS": "nl2sql.agents.agent_tools",
    "Usage": "nl2sql.interfaces",
    "answer": "nl2sql.agents.controllers",
    "clean_candidate_with_reason": "nl2sql.agents.checks.candidate",
    "enforce_projection_contract": "nl2sql.agents.checks.guardrails",
    "evaluate": "nl2sql.runs.evaluate",
    "guarded_postprocess": "nl2sql.agents.checks.guardrails",
    "intent_constraints": "nl2sql.agents.checks.constraints",
    "load_benchmark": "nl2sql.benchmarks",
    "load_config": "nl2sql.config",
    "load_model": "nl2sql.models",
    "react_sql": "nl2sql.agents.react",
    "replay": "nl2sql.runs.rescore",
    "resume": "nl2sql.runs.evaluate",
    "run_episode": "nl2sql.agents.controllers",
    "single_shot": "nl2sql.agents.single_shot",
    "summarize_trace": "nl2sql.agents.record",
    "validate_constraints": "nl2sql.agents.checks.constraints",
    "vanilla_candidate": "nl2sql.agents.checks.guardrails",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'nl2sql' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
