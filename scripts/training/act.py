"""Turns of the loop to learn from: real episodes of ``react_sql``, driven by a teacher who knows the gold.

The teacher follows the policy of the specification (2.2). Sometimes its first query is a wrong one, so that the
transcripts also show what to do after an error. Only episodes that end right are kept; what the model would say is
learned, what the tools say is not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from nl2sql.agents.react import react_sql
from nl2sql.config import Config
from nl2sql.interfaces import Completion, Database, Message, Question, Usage
from training.examples import Example

STOP = "\nObservation:"  # what ends a turn of the loop
_LINE = re.compile(r"^(Action: (\w+)\[|Observation: )", re.MULTILINE)
THOUGHTS = {
    "extract_constraints": "The tables are known. First, what does the question demand?",
    "generate_sql": "The demands are known; now the query.",
    "validate_sql": "There is a query; its names must be checked.",
    "validate_constraints": "The names are right; does it do what the question demands?",
    "run_sql": "The query passed both checks and can be run.",
    "repair_sql": "The query is wrong and has to be corrected.",
    "finish": "The query ran; this is the answer.",
}


class Teacher:
    """A ``Model`` that acts by the policy and writes the queries it is given, in order; the last one is the gold."""

    def __init__(self, queries: Sequence[str], *, context_window: int = 8192) -> None:
        self.name, self.revision, self.context_window = "teacher", "1", context_window
        self.queries = list(queries)
        self.written = 0

    def generate(self, messages: Sequence[Message], *, prefill: str = "", **options: Any) -> list[Completion]:
        if "\nAction: " not in f"\n{prefill}":
            query = self.queries[min(self.written, len(self.queries) - 1)]
            self.written += 1
            return [Completion(query.removeprefix(prefill), "stop", Usage(model_calls=1))]
        action = next_action(prefill)
        return [Completion(f"Thought: {THOUGHTS[action]}\nAction: {action}[{{}}]", "stop", Usage(model_calls=1))]

    def count_tokens(self, messages: Sequence[Message], prefill: str = "", tools: Sequence[Any] = ()) -> int:
        return sum(len(message["content"]) for message in messages) // 4 + len(prefill) // 4

    def describe(self) -> dict[str, Any]:
        return {"backend": "teacher", "name": self.name, "revision": self.revision}

    def close(self) -> None:
        """Nothing to release."""


def next_action(transcript: str) -> str:
    """What the policy does next: read off the last action and its observation."""
    lines = list(_LINE.finditer(transcript))
    action = next(match[2] for match in reversed(lines) if match[2])
    observation = transcript[lines[-1].end() :]
    if action in ("validate_sql", "validate_constraints") and '"valid": false' in observation:
        return "repair_sql"
    if action == "run_sql" and '"success": false' in observation:
        return "repair_sql"
    if action in ("generate_sql", "repair_sql") and '"error"' in observation:
        return "generate_sql"
    order = ["extract_constraints", "generate_sql", "validate_sql", "validate_constraints", "run_sql", "finish"]
    if action == "repair_sql":
        return "validate_sql"
    return order[order.index(action) + 1] if action in order else order[0]


def act_example(
    question: Question, sql: str, database: Database, wrong: str | None = None, config: Config | None = None
) -> Example | None:
    """The loop's turns for ``question``; None where the episode does not end with ``sql``'s own rows."""
    teacher = Teacher([*([wrong] if wrong else []), sql + ";"])
    episode = react_sql(question, database, teacher, config)
    if episode.finish != "finish" or episode.sql.rstrip("; ") != sql:
        return None
    pieces: list[tuple[str, bool]] = []
    done = 0
    for call in episode.calls:
        if call["kind"] != "act":
            continue
        start = int(call["prefill_characters"])
        said = call["text"].rstrip()
        if episode.transcript[start : start + len(said)] != said:
            return None  # the window cut the transcript
        pieces += [(episode.transcript[done:start], False), (said + STOP, True)]
        done = start + len(said) + len(STOP)
    messages = tuple(dict(message) for message in episode.messages)
    return Example("act", question.id, question.db_id, messages, tuple(pieces), closed=False)
