"""The state machine over a real SQLite file and a scripted model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langgraph.errors import GraphRecursionError

from nl2sql.agents.record import Episode
from nl2sql.agents.reflection import NODES, compiled, reflect, stream
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.interfaces import Question, Resources
from nl2sql.models.scripted import ScriptedModel
from nl2sql.repair.corpus import Corpus

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reflection.md"
QUESTION = "What are the names of the customers?"
RIGHT, WRONG, OTHER = "SELECT name FROM customers", "SELECT nam FROM customers", "SELECT name FROM customer"


def play(path: Path, replies: list[Any], config: dict[str, Any] | None = None, question: str = QUESTION) -> Episode:
    with SqliteDatabase(path) as database:
        asked = Question(question, db_id="shop", id="q1", split="dev")
        return reflect(asked, Resources(ScriptedModel(replies), database), build_config(config or {}))


def actions(episode: Episode) -> list[str]:
    return [record["action"] for record in episode.trace]


def reflections(episode: Episode) -> list[dict[str, Any]]:
    return [record["observation"] for record in episode.trace if record["action"] == "reflect"]


def user_turns(episode: Episode) -> list[str]:
    return [call["messages"][1]["content"] for call in episode.calls]


# --------------------------------------------------------------------------------------------- the state machine


def test_right_at_once_takes_one_generation(shop: Path) -> None:
    episode = play(shop, [RIGHT])
    assert (episode.finish, episode.error, episode.flags["iterations"]) == ("finish", None, 1)
    assert episode.rows == (("Ada",), ("Ben",), ("Cleo",)) and episode.flags["quality_score"] == 100
    first = ["link_schema", "extract_constraints", "generate_sql", "validate_sql", "validate_constraints", "run_sql"]
    assert actions(episode) == [*first, "validate_results", "reflect"]
    assert not any(episode.compliance.values())


def test_a_first_failure_and_a_second_success_end_at_iteration_two(shop: Path) -> None:
    episode = play(shop, [WRONG, RIGHT])
    assert episode.flags["iterations"] == 2 and episode.finish == "finish" and episode.error is None
    assert actions(episode).count("reflect") == 2 and "repair_sql" in actions(episode)
    first, second = reflections(episode)
    assert first["reflection_result"]["should_refine"] and not first["reflection_result"]["is_acceptable"]
    assert first["severity"] == "critical" and first["quality_score"] == 0
    assert second["reflection_result"] == {
        "is_acceptable": True,
        "should_refine": False,
        "issues": [],
        "reasoning": "SQL quality acceptable",
    }
    assert "Error: unknown_column:nam" in user_turns(episode)[1]


def test_a_model_that_always_fails_stops_at_max_iterations(shop: Path) -> None:
    episode = play(shop, [WRONG, OTHER, "SELECT x FROM orders", RIGHT])
    assert episode.flags["iterations"] == 3 and len(episode.calls) == 3
    assert episode.finish == "last_sql" and episode.sql.startswith("SELECT x FROM orders")
    assert episode.error is not None and episode.error.startswith("database: no such column: x")
    last = reflections(episode)[-1]["reflection_result"]
    assert last["should_refine"] and not last["is_acceptable"]


@pytest.mark.parametrize("level", ["error", "patterns"])
def test_the_errors_so_far_go_into_the_next_generation(level: str, shop: Path) -> None:
    config = {"reflect": {"max_iterations": 4}, "repair": {"guidance": level}}
    _, second, third, fourth = user_turns(play(shop, [WRONG, OTHER, "SELECT x FROM orders", RIGHT], config))
    assert "This failed before" not in second
    assert "Error: unknown_table:customer" in third
    assert "This failed before:\nSELECT nam FROM customers;\nError: unknown_column:nam" in third
    earlier = re.findall(r"This failed before:\n(.*?);\n", fourth)
    assert earlier == [WRONG, OTHER] and third.count("This failed before") == 1


def test_what_the_guardrails_reject_is_a_failed_attempt(shop: Path) -> None:
    episode = play(shop, [{"text": "I cannot"}, RIGHT], {"prompts": {"generate_prefill": ""}})
    assert episode.finish == "finish" and episode.flags["iterations"] == 2
    assert reflections(episode)[0]["severity"] == "critical"
    rejected = play(shop, ["no", "no way", "never"], {"prompts": {"generate_prefill": ""}})
    assert (rejected.finish, rejected.sql) == ("empty", "") and rejected.flags["iterations"] == 3
    assert rejected.error is not None and rejected.error.startswith("model: clean_reject")


def test_a_database_that_goes_away_stops_after_one_attempt(shop: Path) -> None:
    with SqliteDatabase(shop) as database:
        resources = Resources(ScriptedModel([RIGHT, RIGHT]), database)
        events = stream(Question(QUESTION), resources, build_config({}))
        for event in events:
            if event.node == "generate_sql":
                shop.unlink()
        episode = event.episode
    assert episode is not None and episode.flags["iterations"] == 1
    assert reflections(episode)[0]["severity"] == "fatal"
    assert episode.error is not None and "cannot be read" in episode.error


def test_a_model_that_fails_ends_the_episode_with_what_was_recorded(shop: Path) -> None:
    episode = play(shop, [WRONG, {"error": "out of memory"}])
    assert (episode.finish, episode.error) == ("error", "model: out of memory")
    assert actions(episode)[-1] == "reflect" and episode.sql == "SELECT nam FROM customers;"


COUNT = "How many customers are there?"
COUNTED = "SELECT COUNT(*) FROM customers"


@pytest.mark.parametrize("gate", ["", "intent_gate", "constraints_gate"])  # the one that is off; the other tells it
def test_by_default_a_query_that_runs_is_accepted_though_it_lacks_something(gate: str, shop: Path) -> None:
    episode = play(shop, [RIGHT, COUNTED], {"react": {gate: False}} if gate else {}, question=COUNT)
    assert episode.flags["iterations"] == 1 and episode.finish == "finish"
    assert "missing_agg:COUNT" in reflections(episode)[0]["reflection_result"]["issues"][0]


# ----------------------------------------------------------------------------------------------------- retries


def test_the_same_sql_again_is_told_and_counted(shop: Path) -> None:
    episode = play(shop, [WRONG, "SELECT  Nam from CUSTOMERS", RIGHT])
    assert "the same SQL as attempt 1" in reflections(episode)[1]["reflection_result"]["issues"]
    assert episode.flags["repeated_sql"] == 1 and episode.finish == "finish"
    assert "This failed before" not in user_turns(episode)[2]


@pytest.mark.parametrize(
    ("level", "there", "absent"),
    [
        ("error", "Error: unknown_column:nam", "VIOLATED"),
        ("patterns", "Did you mean customers.name?", "SIMILAR"),
    ],
)
def test_a_retry_takes_the_levels_of_guidance(level: str, there: str, absent: str, shop: Path) -> None:
    retry = user_turns(play(shop, [WRONG, RIGHT], {"repair": {"guidance": level}}))[1]
    assert there in retry and absent not in retry


def test_a_repair_is_learned_from_a_failure_and_its_success(shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "corpus.db"
    episode = play(shop, [WRONG, RIGHT], {"repair": {"learn": True, "corpus": str(file)}})
    assert episode.flags["learned"] == 1
    with Corpus(file) as corpus:
        assert [row["successful_sql"] for row in corpus.rows()] == [RIGHT]


# ------------------------------------------------------------------------------------------------------ events


def test_stream_gives_an_event_for_every_node_and_the_episode_last(shop: Path) -> None:
    with SqliteDatabase(shop) as database:
        seen: list[Any] = []
        resources = Resources(ScriptedModel([WRONG, RIGHT]), database, sink=seen.append)
        events = list(stream(Question(QUESTION), resources, build_config({})))
    once = ["generate_sql", "plan", "execute_tools", "plan", "execute_tools", "plan", "reflect"]
    assert [event.node for event in events] == ["plan", "execute_tools", "plan", *once, "plan", *once, "complete"]
    reset = events[9].update
    assert [reset[name] for name in ("sql_query", "execution_result", "validation_result")] == [None] * 3
    episode = events[-1].episode
    assert episode is not None and len(seen) == len(episode.trace) + len(episode.decision_log)
    json.dumps(episode.to_dict())


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_a_graph_that_goes_round_ends_at_a_limit_of_its_attempts(
    attempts: int, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def round_and_round(state: Any, work: Any) -> dict[str, Any]:
        return {"next_action": "get_schema"}

    monkeypatch.setitem(NODES, "plan", round_and_round)
    monkeypatch.setattr("nl2sql.agents.reflection.compiled", compiled.__wrapped__)  # the graph is built once
    config, visited = build_config({"reflect": {"max_iterations": attempts}}), []
    with SqliteDatabase(shop) as database, pytest.raises(GraphRecursionError):
        resources = Resources(ScriptedModel([]), database)
        for event in stream(Question(QUESTION), resources, config):
            visited.append(event.node)
    assert len(visited) == 8 * attempts + 6  # what an episode of so many failures may visit


def test_a_query_that_failed_is_not_refused_by_the_reflection(shop: Path) -> None:
    episode = play(shop, [WRONG, RIGHT])
    assert [entry["by"] for entry in episode.flags["rejected"]] == ["validate_sql"]
    decided = [(entry["reason"], entry["status"]) for entry in episode.decision_log if entry["decision"] == "reflect"]
    assert decided == [("unknown_column:nam", "reject"), ("ok", "accept")]


def test_a_result_that_was_cut_and_a_slow_one_are_told(shop: Path) -> None:
    counted = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT MAX(i) FROM n"
    config = {"reflect": {"slow_s": 0.001}, "execution": {"max_rows": 2}}
    episode = play(shop, [f"SELECT name FROM customers WHERE ({counted}) > 1"], config)
    (seen,) = reflections(episode)
    slow, cut = seen["reflection_result"]["issues"]
    assert slow.startswith("Query took") and cut == "Query returned more rows than are kept"
    assert episode.finish == "finish"


# --------------------------------------------------------------------------------------------------- around it


def test_without_langgraph_one_line_names_the_command_that_installs_it(shop: Path) -> None:
    code = (
        "import sys; sys.modules['langgraph'] = None\nfrom nl2sql.cli import main\n"
        f"sys.argv = ['nl2sql', 'ask', 'How many?', '--db', {str(shop)!r}, '--controller', 'reflect']\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert "[graph]'" in done.stderr


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(code[0], found := {})
    assert found["episode"].finish == "finish" and found["episode"].flags["iterations"] == 2


def test_the_diagram_of_the_page_is_the_compiled_graph() -> None:
    page = PAGE.read_text(encoding="utf-8")
    drawn = compiled().get_graph().draw_mermaid().strip()
    assert f"```mermaid\n{drawn}\n```" in page, f"docs/reflection.md needs this diagram:\n{drawn}"
