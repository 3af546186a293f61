"""The loop played with a scripted model: a reply that is a tool's bare name stands for its action line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nl2sql.agents.agent_tools import TOOLS
from nl2sql.agents.react import react_sql
from nl2sql.agents.record import Episode
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.interfaces import Completion
from nl2sql.models.scripted import ScriptedModel

QUESTION = "How many orders were shipped?"
RIGHT = "SELECT COUNT(*) FROM orders WHERE status = 'shipped'"
OTHER = "SELECT COUNT(*) FROM orders WHERE status = 'shipped' AND total > 0"
UNKNOWN_COLUMN = "SELECT COUNT(*) FROM orders WHERE state = 'shipped'"
FAILS_IN_ITS_RUN = "SELECT COUNT(*) FROM orders WHERE status = 'shipped' AND abs(-9223372036854775808) > 0"
NO_COUNT = "SELECT status FROM orders WHERE status = 'shipped' GROUP BY status HAVING COUNT(*) > 0"


class Listening(ScriptedModel):
    """Keeps what it was asked: messages and options of every call."""

    def __init__(self, replies: list[str]) -> None:
        super().__init__(replies)
        self.asked: list[dict[str, Any]] = []

    def generate(self, messages: Any, **options: Any) -> list[Completion]:
        self.asked.append({"messages": list(messages), **options})
        return super().generate(messages, **options)

    def sql_calls(self) -> list[dict[str, Any]]:
        """The calls that asked for SQL, not for an action."""
        return [call for call in self.asked if "Observation:" not in call["prefill"]]

    def sql_prompts(self) -> list[str]:
        return [call["messages"][1]["content"] for call in self.sql_calls()]


def action(name: str, **args: Any) -> str:
    return f"Action: {name}[{json.dumps(args)}]"


def play(
    shop: Path, *replies: str, question: str = QUESTION, config: Mapping[str, Any] | None = None, **options: Any
) -> tuple[Episode, Listening]:
    """An episode over the shop, and the model that answered. config: the section ``react``."""
    model = Listening([action(reply) if reply in TOOLS else reply for reply in replies])
    with SqliteDatabase(shop) as database:
        return react_sql(question, database, model, build_config({"react": dict(config or {})}), **options), model


def observations(episode: Episode, name: str) -> list[Any]:
    return [record["observation"] for record in episode.trace if record.get("action") == name]


def forced(episode: Episode) -> list[str]:
    records = [record for record in episode.trace if "forced_action" in record]
    return [f"{record['requested_action']}->{record['forced_action']}" for record in records]
