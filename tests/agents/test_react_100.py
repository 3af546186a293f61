"""The loop of 100 lines that stands in examples/ for others to fork."""

from __future__ import annotations

from pathlib import Path

import nl2sql

FILE = Path(__file__).parents[2] / "examples" / "react_100.py"
STEPS = [f"Thought: on.\nAction: {tool}[{{}}]" for tool in ("generate_sql", "run_sql", "finish", "run_sql", "finish")]


def asked(*replies: str) -> nl2sql.Episode:
    database = nl2sql.load_benchmark("packaged").database("scale_models")
    model = nl2sql.ScriptedModel(list(replies))
    return nl2sql.answer("How many customers are there?", database, model, f"{FILE}:react_100")


def test_it_fits_in_a_hundred_lines() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 100


def test_a_query_that_failed_is_repaired_before_it_is_answered() -> None:
    generate, run, finish, *rest = STEPS
    episode = asked(generate, " count(*) FROM clients", run, finish, " count(*) FROM customers", *rest)
    assert (episode.error, episode.finish, episode.steps) == (None, "finish", 5)
    assert episode.sql == "SELECT count(*) FROM customers;" and len(episode.rows) == 1
    forced = [record for record in episode.trace if "forced_action" in record]
    assert [(record["forced_action"], record["requested_action"]) for record in forced] == [("repair_sql", "finish")]
    assert "no such table: clients" in forced[0]["reason"]
    assert episode.usage.model_calls == 7


def test_without_a_query_that_ran_nothing_is_finished() -> None:
    episode = asked(STEPS[2], "no action at all", *[STEPS[2]] * 20)
    assert episode.finish == "last_sql" and episode.sql == "" and episode.error is not None
    said = [record["observation"]["error"] for record in episode.trace if "action" in record]
    assert said[0].startswith("nothing has run yet") and said[1].startswith("no such action")
