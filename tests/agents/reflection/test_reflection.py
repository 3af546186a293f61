"""The state machine over a real SQLite file and a scripted model."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langgraph.errors import GraphRecursionError

from nl2sql.agents.record import Episode
from nl2sql.agents.reflection import nodes, reflect, stream
from nl2sql.agents.reflection.graph import compiled
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import DatabaseError, UsageError
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
    assert (first["next_strategy"], second["next_strategy"]) == ("repair", None)
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


def test_with_mismatch_it_is_tried_again_and_the_best_that_ran_is_the_answer(shop: Path) -> None:
    config = {"reflect": {"refine_on": "mismatch"}}
    mended = play(shop, [RIGHT, COUNTED], config, COUNT)
    assert mended.rows == ((3,),) and mended.finish == "finish"
    assert [entry["by"] for entry in mended.flags["rejected"]] == ["reflection"]
    spoiled = play(shop, [RIGHT, WRONG, OTHER], config, COUNT)
    assert spoiled.finish == "best_so_far" and spoiled.sql.startswith(RIGHT) and spoiled.error is None


# ------------------------------------------------------------------------------------------- another strategy


def test_the_same_sql_again_is_answered_by_other_strategies(shop: Path) -> None:
    script = [WRONG, "SELECT  Nam from CUSTOMERS", WRONG, WRONG, WRONG, RIGHT, OTHER]
    episode = play(shop, script, {"reflect": {"max_iterations": 5}})
    assert [seen["next_strategy"] for seen in reflections(episode)] == ["repair", "schema", "exemplar", "sample", None]
    assert episode.finish == "finish" and episode.flags["repeated_sql"] == 3
    texts = user_turns(episode)
    assert "orders" in texts[1] and "orders" not in texts[2]  # another focus: half of the two tables
    assert "This query runs on the database:\nSELECT customers.customer_id, customers.name" in texts[3]
    assert len(set(texts[:5])) == 5, "no call was made twice"
    assert len(texts) == 7 and len(set(texts[4:])) == 1, "the last strategy has three samples"
    assert "the same SQL as attempt 1" in reflections(episode)[1]["reflection_result"]["issues"]


def test_without_the_switch_the_same_sql_is_repaired_again(shop: Path) -> None:
    episode = play(shop, [WRONG] * 3, {"reflect": {"different_strategy": False}})
    assert [seen["next_strategy"] for seen in reflections(episode)] == ["repair", "repair", None]


def test_the_exemplar_comes_from_the_corpus_where_one_is_used(shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "corpus.db"
    config = {
        "reflect": {"strategies": ["exemplar"]},
        "repair": {"guidance": "patterns+corpus", "corpus": str(file)},
    }
    with Corpus(file, create=True) as corpus:
        corpus.store_fix("no such column: nam", WRONG, "SELECT name FROM clients", "names", source="shop/other")
        episode = play(shop, [WRONG, WRONG, RIGHT], config)
    assert "This query runs on the database:\nSELECT name FROM clients" in user_turns(episode)[2]


@pytest.mark.parametrize(
    ("level", "there", "absent"),
    [
        ("none", "Write the corrected query", "unknown_column"),
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


# --------------------------------------------------------------------------------------- critique, second candidate


@pytest.mark.parametrize(
    ("said", "iterations"),
    [
        *[("OK", 1), ("WRONG: it lists cities", 2), ("wrong", 2), ("Maybe it is WRONG: no", 1), ("Wrongly asked", 1)],
        *[(f"{wrong}it lists cities", 2) for wrong in ("WRONG. ", "WRONG\n", "**WRONG**: ", "WRONG - ")],
    ],
)
def test_a_critique_that_objects_is_retried(said: str, iterations: int, shop: Path) -> None:
    episode = play(shop, ["SELECT city FROM customers", said, RIGHT, "OK"], {"reflect": {"critique": True}})
    assert episode.flags["iterations"] == iterations and episode.finish == "finish"
    assert [call["kind"] for call in episode.calls][:2] == ["sql", "critique"]
    if "cities" in said:
        assert "it lists cities" in reflections(episode)[0]["suggestions"]
        assert "Error: it lists cities" in user_turns(episode)[2]


def test_a_query_that_ran_is_the_answer_where_the_reflection_on_it_fails(shop: Path) -> None:
    episode = play(shop, [WRONG, RIGHT, {"error": "it is gone"}], {"reflect": {"critique": True}})
    assert (episode.sql, episode.finish, episode.error) == (f"{RIGHT};", "error", "model: it is gone")
    assert episode.rows and episode.raw_sql.strip() == RIGHT


@pytest.mark.parametrize(("second", "agrees"), [("SELECT c.name FROM customers c", True), (COUNTED, False)])
def test_a_second_candidate_is_asked_once_and_its_agreement_counts(second: str, agrees: bool, shop: Path) -> None:
    episode = play(shop, [WRONG, RIGHT, second], {"reflect": {"second_candidate": True}})
    assert reflections(episode)[1]["quality_parts"]["agreement"] is agrees
    assert len(episode.calls) == 3 and episode.sql.startswith(RIGHT)


# ------------------------------------------------------------------------------------------ events, checkpoints


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


def test_an_interrupted_thread_goes_on_where_it_stopped(shop: Path, tmp_path: Path) -> None:
    place = {"checkpoints": tmp_path / "threads.db", "thread": "one"}

    def model(*replies: str) -> ScriptedModel:
        return ScriptedModel(list(replies))

    with SqliteDatabase(shop) as database:
        events = stream(Question(QUESTION), Resources(model(WRONG), database), build_config({}), **place)
        assert next(event for event in events if event.node == "reflect").update["attempts"][0]["iteration"] == 1
        events.close()
        with pytest.raises(UsageError, match="stopped at another question: 'What are the names"):
            next(stream(Question("Why?"), Resources(model(), database), build_config({}), **place))
        *_, last = stream(Question(QUESTION), Resources(model(RIGHT), database), build_config({}), **place)
        assert last.episode is not None and last.episode.finish == "finish"
        assert last.episode.flags["iterations"] == 2 and actions(last.episode).count("reflect") == 2
        *_, last = stream(Question(QUESTION), Resources(model(RIGHT), database), build_config({}), **place)
        assert last.episode is not None and last.episode.flags["iterations"] == 1, "a finished thread begins anew"
        assert len(reflections(last.episode)) == 1
    with sqlite3.connect(tmp_path / "threads.db") as connection:
        assert connection.execute("SELECT COUNT(*) FROM checkpoints").fetchone()[0] > 0


def test_a_thread_goes_on_over_its_own_database_alone(shop: Path, tmp_path: Path) -> None:
    place = {"checkpoints": tmp_path / "threads.db", "thread": "one"}
    with sqlite3.connect(tmp_path / "other.sqlite") as connection:
        connection.execute("CREATE TABLE customers (full_name TEXT)")
    with SqliteDatabase(shop) as database, SqliteDatabase(tmp_path / "other.sqlite") as other:
        events = stream(Question(QUESTION), Resources(ScriptedModel([WRONG]), database), build_config({}), **place)
        next(event for event in events if event.node == "reflect")
        events.close()
        with pytest.raises(UsageError, match="thread 'one' stopped over another database, or this one"):
            next(stream(Question(QUESTION), Resources(ScriptedModel([]), other), build_config({}), **place))
        *_, last = stream(Question(QUESTION), Resources(ScriptedModel([RIGHT]), database), build_config({}), **place)
        assert last.episode is not None and last.episode.sql == f"{RIGHT};"


def test_a_thread_keeps_the_attempts_that_it_began_with(shop: Path, tmp_path: Path) -> None:
    place = {"checkpoints": tmp_path / "threads.db"}
    failing = ScriptedModel([WRONG], on_exhausted="repeat")
    with SqliteDatabase(shop) as database:
        many, few = (build_config({"reflect": {"max_iterations": n, "strategies": ["schema"]}}) for n in (8, 1))
        events = stream(Question(QUESTION), Resources(failing, database), many, **place)
        next(event for event in events if event.node == "reflect")
        events.close()
        *_, last = stream(Question(QUESTION), Resources(failing, database), few, **place)
    assert last.episode is not None and last.episode.flags["iterations"] == 8


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_a_graph_that_goes_round_ends_at_a_limit_of_its_attempts(
    attempts: int, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def round_and_round(state: Any, work: Any) -> dict[str, Any]:
        return {"next_action": "get_schema"}

    monkeypatch.setattr(nodes, "plan", round_and_round)
    config, visited = build_config({"reflect": {"max_iterations": attempts}}), []
    with SqliteDatabase(shop) as database, pytest.raises(GraphRecursionError):
        resources = Resources(ScriptedModel([]), database)
        for event in stream(Question(QUESTION), resources, config, checkpoints=tmp_path / "threads.db"):
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


class Closed:
    """A corpus that another process holds."""

    def search(self, *_: Any, **__: Any) -> Any:
        raise DatabaseError("the corpus is locked")

    changes = search


class NoPlans(SqliteDatabase):
    def explain(self, sql: str, *, timeout_s: float = 5.0) -> Any:
        raise DatabaseError("the database is gone")


TWICE = {"reflect": {"strategies": ["exemplar"]}, "react": {"explain": False}}  # the second repeat asks for an exemplar


def test_a_corpus_that_fails_costs_the_exemplar_only(shop: Path) -> None:
    config = build_config(TWICE | {"repair": {"guidance": "patterns+corpus"}})
    with SqliteDatabase(shop) as database:
        resources = Resources(ScriptedModel([WRONG, WRONG, RIGHT]), database, corpus=Closed())
        episode = reflect(Question(QUESTION, split="dev"), resources, config)
    assert (episode.finish, episode.error, episode.sql) == ("finish", None, f"{RIGHT};")


def test_a_database_that_fails_under_a_strategy_keeps_the_episode(shop: Path) -> None:
    with NoPlans(shop) as database:
        episode = reflect(Question(QUESTION), Resources(ScriptedModel([WRONG, WRONG]), database), build_config(TWICE))
    assert (episode.finish, episode.error) == ("error", "database: the database is gone")
    assert episode.sql == f"{WRONG};" and episode.flags["iterations"] == 2 and len(reflections(episode)) == 2


def test_checkpoints_in_a_file_that_is_no_database_are_refused(shop: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("my notes " * 200)
    with SqliteDatabase(shop) as database, pytest.raises(UsageError, match="cannot be opened: file is not a database"):
        list(
            stream(Question(QUESTION), Resources(ScriptedModel([RIGHT]), database), build_config({}), checkpoints=notes)
        )


def test_checkpoints_are_not_written_into_somebody_s_database(shop: Path) -> None:
    before = shop.read_bytes()
    with SqliteDatabase(shop) as database, pytest.raises(UsageError, match="no file of checkpoints"):
        list(
            stream(Question(QUESTION), Resources(ScriptedModel([RIGHT]), database), build_config({}), checkpoints=shop)
        )
    assert shop.read_bytes() == before
