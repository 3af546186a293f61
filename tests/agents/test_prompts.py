"""Prompts: what the system prompt promises, and how placeholders and overrides behave."""

from __future__ import annotations

from nl2sql.agents import prompts
from nl2sql.agents.agent_tools import TOOLS


def test_system_prompt_names_the_tools_in_the_expected_order() -> None:
    order = prompts.REACT_SYSTEM_PROMPT.partition("Order:")[2]
    policy = [
        "get_schema",
        "link_schema",
        "extract_constraints",
        "generate_sql",
        "validate_sql",
        "validate_constraints",
        "run_sql",
        "finish",
    ]
    places = [order.index(name) for name in policy]
    assert places == sorted(places)
    assert all(f"\n{name}[" in prompts.REACT_SYSTEM_PROMPT for name in TOOLS)
    assert "Thought:" in prompts.REACT_SYSTEM_PROMPT and "Action: tool_name[" in prompts.REACT_SYSTEM_PROMPT


def test_values_are_never_read_as_placeholders() -> None:
    user = prompts.repair_messages("what is {error}?", "SELECT '{schema}'", "no such {bad_sql}", "t(a)")[1]["content"]
    assert "what is {error}?" in user and "SELECT '{schema}'" in user and "no such {bad_sql}" in user


def test_an_override_replaces_one_prompt_and_changes_its_hash_only() -> None:
    mine = {"generate_user": "{question} / {schema}"}
    assert prompts.generate_messages("q", "s", None, mine)[1]["content"] == "q / s"
    plain, changed = prompts.prompt_hashes(), prompts.prompt_hashes(mine)
    assert [name for name in plain if plain[name] != changed[name]] == ["generate_user"]


def test_control_and_loop_build_the_same_messages() -> None:
    constraints = {"agg": "COUNT", "needs_group_by": True, "needs_order_by": False, "limit": 3, "distinct": True}
    content = prompts.generate_messages("q", "s", constraints)[1]["content"]
    assert "use COUNT, group the rows, return 3 rows, no duplicates" in content


def test_long_observations_say_how_much_is_not_shown() -> None:
    assert prompts.observation_text("x" * 2100, 2000).endswith("[... 100 more characters not shown]")
