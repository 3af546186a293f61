"""Every prompt, as messages; the texts are in ``prompts.yaml``.

>>> constraint_lines({"agg": "count", "needs_group_by": True}).rstrip()
'The query should: use count, group the rows.'

The texts in force are hashed into every run's manifest.

The SQL prompts are shared: ``generate_sql`` inside the loop and the ``single_shot`` control build the very same
messages, so that a loop never gets credit for a better prompt.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.machine import from_yaml

if TYPE_CHECKING:
    from nl2sql.repair.registry import RepairGuidance

ENGINES = {"postgres": "PostgreSQL", "mysql": "MySQL", "duckdb": "DuckDB", "clickhouse": "ClickHouse"}
TOOL_LINE = re.compile(r"^(\w+)\[(.*)\] - (.+)$", re.MULTILINE)  # a tool, its arguments, what it is for
HINT = "Hint: the same action gave the same result before; now use "
NAMING_THE_ENGINE = ("react_system", "react_native_system", "generate_system")


PROMPTS: dict[str, str]  # ``texts()``
REACT_SYSTEM_PROMPT: str  # one of them, by the specification's name


@cache
def texts() -> dict[str, str]:
    """The packaged text of every prompt, read once."""
    packaged: dict[str, str] = from_yaml(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return packaged


def __getattr__(name: str) -> Any:
    """``PROMPTS``, and ``REACT_SYSTEM_PROMPT``, as the specification calls it; no file is read before."""
    if name not in ("PROMPTS", "REACT_SYSTEM_PROMPT"):
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return texts() if name == "PROMPTS" else texts()["react_system"]


def prompt(name: str, overrides: Mapping[str, str] | None = None, /, **fields: str) -> str:
    """The prompt ``name`` with its ``{fields}`` filled in; ``overrides`` replaces packaged texts by name."""
    text = (overrides or {}).get(name, texts()[name])
    return re.sub(r"\{(\w+)\}", lambda match: fields.get(match[1], match[0]), text)


def for_engine(overrides: Mapping[str, str], dialect: str) -> dict[str, str]:
    """``overrides`` with the texts that name SQLite naming the engine of ``dialect`` instead.

    >>> for_engine({}, "duckdb")["generate_system"].partition(" queries")[0]
    'You write DuckDB'
    """
    if dialect == "sqlite":
        return dict(overrides)
    engine = ENGINES.get(dialect, dialect)
    return {**overrides, **{name: prompt(name, overrides).replace("SQLite", engine) for name in NAMING_THE_ENGINE}}


def prompt_hashes(overrides: Mapping[str, str] | None = None) -> dict[str, str]:
    """SHA-256 (first 16 hex digits) of every prompt in force, for the manifest."""
    return {name: hashlib.sha256(prompt(name, overrides).encode()).hexdigest()[:16] for name in texts()}


def question_text(text: str, evidence: str = "") -> str:
    """The question, with the benchmark's external knowledge where it has any."""
    return f"{text}\nEvidence: {evidence}" if evidence else text


def constraint_lines(constraints: Mapping[str, Any] | None) -> str:
    """The extracted constraints as prompt lines; empty when nothing is demanded."""
    if not constraints:
        return ""
    limit = constraints.get("limit")
    demands = {
        "agg": f"use {constraints.get('agg')}",
        "needs_group_by": "group the rows",
        "needs_order_by": "order the rows",
        "limit": f"return {limit} row{'s' if limit != 1 else ''}",
        "distinct": "no duplicates",
    }
    parts = [text for name, text in demands.items() if constraints.get(name)]
    return f"The query should: {', '.join(parts)}.\n" if parts else ""


def generate_messages(
    question: str,
    schema: str,
    constraints: Mapping[str, Any] | None = None,
    overrides: Mapping[str, str] | None = None,
    examples: Sequence[tuple[str, str]] = (),
    previous_sql: str = "",
) -> list[dict[str, str]]:
    """The messages behind ``generate_sql`` and the single-shot control. examples: few-shot (question, SQL).

    previous_sql: the query that a follow-up question speaks of; with it the prompt is ``generate_followup_user``.
    """
    if examples:
        solved = [prompt("few_shot_example", overrides, question=asked, sql=sql) for asked, sql in examples]
        schema = prompt("few_shot", overrides, schema=schema, examples="\n\n".join(solved))
    fields = {"constraints": constraint_lines(constraints), "schema": schema, "question": question}
    name = "generate_followup_user" if previous_sql else "generate_user"
    user = prompt(name, overrides, **fields, previous_sql=previous_sql)
    return _messages(prompt("generate_system", overrides), user)


def repair_messages(
    question: str, bad_sql: str, error: str, schema: str, overrides: Mapping[str, str] | None = None
) -> list[dict[str, str]]:
    """The messages behind ``repair_sql`` [2]: question, failed query, its error, schema."""
    user = prompt("repair_user", overrides, schema=schema, question=question, bad_sql=bad_sql, error=error)
    return _messages(prompt("generate_system", overrides), user)


def guided_repair_messages(
    question: str,
    bad_sql: str,
    error: str,
    schema: str,
    guidance: RepairGuidance,
    attempts: Sequence[tuple[str, str]] = (),
    valid_part: str = "",
    overrides: Mapping[str, str] | None = None,
) -> list[dict[str, str]]:
    """The same with guidance: ``attempts`` are the episode's earlier failures (SQL, error), oldest first."""
    fixes = "".join(f"\n{fix.description}:\n```sql\n{fix.sql}\n```\n" for fix in guidance.similar_fixes)
    user = prompt(
        "repair_guided_user",
        overrides,
        schema=schema,
        question=question,
        bad_sql=bad_sql,
        error=error,
        attempts=failed_before(attempts),
        valid_part=f"This part of it is valid: {valid_part}\n" if valid_part else "",
        constraint=guidance.violated_constraint or "N/A",
        alternative=guidance.alternative_approach or "N/A",
        similar=f"\nSIMILAR SUCCESSFUL QUERIES:\n{fixes}" if fixes else "",
    )
    return _messages(prompt("generate_system", overrides), user)


def failed_before(attempts: Sequence[tuple[str, str]]) -> str:
    """Failures (SQL, error) as a prompt shows them, an empty line behind each; an error that is "" is left out."""
    return "".join(f"This failed before:\n{sql}\n" + (f"Error: {why}\n\n" if why else "\n") for sql, why in attempts)


def react_messages(
    opening: str, overrides: Mapping[str, str] | None = None, own_tools: Sequence[tuple[str, str, str]] = ()
) -> list[dict[str, str]]:
    """System prompt and the opening user turn of the loop; the transcript follows as the open assistant turn.

    own_tools: (name, arguments, what it is for) of a user's tools, which the packaged prompt does not name.
    """
    system = prompt("react_system", overrides)
    if own_tools:
        lines = [f"{name}[{arguments}] - {description}" for name, arguments, description in own_tools]
        system += "\n\nMore tools:\n" + "\n".join(lines)
    return _messages(system, opening)


def native_messages(opening: str, overrides: Mapping[str, str] | None = None) -> list[dict[str, str]]:
    """The same for the native tool-calling form; a conversation of calls and answers follows."""
    return _messages(prompt("react_native_system", overrides), opening)


def _messages(system: str, user: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def action_line(tool: str, args: Mapping[str, Any]) -> str:
    """An action as the transcript writes it, e.g. ``Action: run_sql[{}]``."""
    return f"Action: {tool}[{json.dumps(dict(args), ensure_ascii=False, default=str)}]"


def observation_text(observation: Any, limit: int = 2000) -> str:
    """An observation as the transcript shows it: text as it is, anything else as JSON; long ones say what is cut."""
    text = observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False, default=str)
    if len(text) <= limit:
        return text
    return f"{text[:limit]} [... {len(text) - limit} more characters not shown]"


def samples_text(rows: Sequence[Mapping[str, Any]], width: int = 60) -> list[dict[str, Any]]:
    """Example rows with long texts cut, as ``get_table_samples`` returns them."""

    def short(value: Any) -> Any:
        return value[: width - 3] + "..." if isinstance(value, str) and len(value) > width else value

    return [{key: short(value) for key, value in row.items()} for row in rows]
