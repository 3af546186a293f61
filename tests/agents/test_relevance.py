"""Learned linking: what is read where, what the head makes of it, and each use of it behind its own switch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.tiny import tiny_model, tiny_tokenizer
from people import make_database

from nl2sql.agents.candidates.ranking import Candidate, rank
from nl2sql.agents.context.linking import rank_tables
from nl2sql.agents.context.relevance import (
    LEAST,
    Relevance,
    features,
    head_of,
    item_text,
    lexical_scores,
    read_items,
    relevance,
)
from nl2sql.agents.controllers import get_controller, run_episode
from nl2sql.agents.opening import focus_text, link, open_task
from nl2sql.agents.resources import members
from nl2sql.config import Config, build_config
from nl2sql.databases.schema import Column, Schema, Table
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import UsageError
from nl2sql.interfaces import Question, Resources, RunResult
from nl2sql.models.adapters import packaged_adapters
from nl2sql.models.local import LocalModel
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.plan import check_config, run_key

ASKED = "How many orders are there?"
LAYERS = (1, 2)
FEATURES = 2 * 32 + 5  # two layers of the tiny model, and the lexical ranking


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    made = LocalModel(tiny_model(), tiny_tokenizer(), name="tiny", revision="tiny-1")
    yield made
    made.close()


def head(folder: Path, revision: str = "tiny-1", **weights: Any) -> Path:
    """A file of weights: zeros, but for what is given."""
    arrays = {name: np.zeros(FEATURES + 1, np.float32) for name in ("tables", "columns")} | weights
    for name, size in (("tables_beside", 11), ("columns_beside", 8)):  # the second step keeps the first one's log-odds
        arrays[name] = np.eye(1, size, dtype=np.float32)[0]
    about = {"model": "tiny", "revision": revision, "layers": LAYERS}
    np.savez(folder / "head.npz", about=np.array(json.dumps(about)), **arrays)
    return folder / "head.npz"


def against(folder: Path, sign: int = -1, **settings: Any) -> Config:
    """A config whose head finds the more relevant what the lexical ranking finds the less relevant."""
    weights = np.zeros(FEATURES + 1, np.float32)
    weights[-6] = 8.0 * sign  # of the score beside the best one
    return build_config({**settings, "linking": {"weights": str(head(folder, tables=weights))} | settings["linking"]})


def test_each_name_is_read_where_it_ends_and_a_table_behind_its_columns(model: LocalModel) -> None:
    tables = [Table("Größe", (Column("id"), Column("the name"))), Table("orders", (Column("day"),))]
    text, table_ends, column_ends = item_text("Wie groß?", tables)
    assert text == "Question: Wie groß?\nSchema:\nGröße(id, the name)\norders(day)\n"
    assert [text[: end + 1].splitlines()[-1] for end in table_ends] == ["Größe(id, the name)", "orders(day)"]
    ends = [text[: end + 1].splitlines()[-1] for end in column_ends]
    assert ends == ["Größe(id", "Größe(id, the name", "orders(day"]
    states, usage = read_items("Wie groß?", Schema(tuple(tables)), model, LAYERS)
    expected = model.hidden_states(text, [*table_ends, *column_ends], LAYERS)[0]
    assert np.allclose(states, np.concatenate([expected[0], expected[1]], axis=1), atol=1e-4)
    assert usage.prompt_tokens == len(text.encode())


def test_a_long_schema_is_read_in_several_texts_each_behind_the_question(
    model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nl2sql.agents.context.relevance.LONGEST", 100)
    wide = [Table(f"t{n}", tuple(Column(f"column_{n}{m}") for m in range(3))) for n in range(5)]  # 35 characters each
    states, usage = read_items("How many?", Schema(tuple(wide)), model, [1])
    assert states.shape == (5 + 15, 32)
    assert usage.model_calls == 3
    text, ends, columns = item_text("How many?", wide[2:4])
    read = model.hidden_states(text, [*ends, *columns], [1])[0][0]
    assert np.allclose(states[[2, 3, *range(11, 17)]], read, atol=1e-4)


def test_the_head_weighs_hidden_states_and_the_lexical_ranking(model: LocalModel, shop: Path, tmp_path: Path) -> None:
    with SqliteDatabase(shop) as database:
        schema = database.schema()
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=FEATURES + 1).astype(np.float32) / 20 for name in ("tables", "columns")}
    config = build_config({"linking": {"learned": True, "weights": str(head(tmp_path, **weights))}})
    found, _ = relevance(ASKED, schema, model, head_of(config))
    states, _ = read_items(ASKED, schema, model, LAYERS)
    tables, columns = features(lexical_scores(ASKED, schema), states)
    expected = 1 / (1 + np.exp(-(tables @ weights["tables"][:-1] + weights["tables"][-1])))
    assert list(found.tables) == [table.name for table in schema.tables]
    assert list(found.tables.values()) == pytest.approx(np.clip(expected, LEAST, 1 - LEAST), abs=1e-4)
    assert len(found.columns) == len(columns) == sum(len(table.columns) for table in schema.tables)
    assert [name for name, _ in found.ranking()] == sorted(found.tables, key=found.tables.__getitem__, reverse=True)


def test_the_lexical_ranking_stands_in_the_features() -> None:
    schema = Schema((Table("customers", (Column("id"),)), Table("orders", (Column("id"),))))
    tables, columns = features(lexical_scores(ASKED, schema), np.zeros((4, 3)))
    score = dict(rank_tables(ASKED, schema))["orders"]
    assert tables[1].tolist() == pytest.approx([0, 0, 0, 1.0, score, 1.0, 0.0, 1.0])
    assert tables[0][-3:].tolist() == [0.0, 1.0, 0.5]
    assert columns.shape == (2, 8)


def test_just_the_names_that_are_relevant_are_likeliest() -> None:
    schema = Schema((Table("a", (Column("x"), Column("y"))), Table("b", (Column("x"),))))
    seen = Relevance({"a": 0.9, "b": 0.2}, {("a", "x"): 0.8, ("a", "y"): 0.3, ("b", "x"): 0.1})
    expected = np.log([0.9, 0.8, 0.8, 0.7, 0.9]).sum()
    assert seen.log_probability("SELECT x FROM a", schema) == pytest.approx(expected)
    assert seen.log_probability("SELECT t.x FROM a AS t JOIN b ON b.x = t.y", schema) == pytest.approx(
        np.log([0.9, 0.2, 0.8, 0.3, 0.1]).sum()
    )


# --------------------------------------------------------------------------------------------------------- switches


def opened(model: Any, database: SqliteDatabase, config: Config) -> Any:
    return open_task(Question(ASKED), Resources(model, database), config)


def names(text: str) -> list[str]:
    return [line.split("(")[0] for line in text.splitlines() if "(" in line and "->" not in line]


def test_nothing_is_read_unless_a_switch_asks_for_it(model: LocalModel, shop: Path, tmp_path: Path) -> None:
    with SqliteDatabase(shop) as database:
        task = opened(model, database, against(tmp_path, linking={}))
    assert task.relevance is None
    assert task.usage.model_calls == 0
    assert "relevance" not in members(Config())


def test_learned_decides_which_tables_are_kept(model: LocalModel, shop: Path, tmp_path: Path) -> None:
    with SqliteDatabase(shop) as database:
        lexical = opened(model, database, against(tmp_path, linking={}))
        learned = opened(model, database, against(tmp_path, linking={"learned": True}))
    best = lexical.linked(1).tables[0].name
    assert best == rank_tables(ASKED, lexical.schema)[0][0]
    assert learned.linked(1).tables[0].name == learned.relevance.ranking()[0][0] != best
    assert learned.usage.prefill_tokens == learned.usage.prompt_tokens > 0


def test_by_relevance_the_prompt_shows_the_most_relevant_first(model: LocalModel, shop: Path, tmp_path: Path) -> None:
    with SqliteDatabase(shop) as database:
        task = opened(model, database, against(tmp_path, +1, linking={"order": "relevance"}))
        link(task)
        whole = [table.name for table in task.schema.tables]
        assert names(task.schema_text_focus) == [name for name, _ in task.relevance.ranking()] != whole
        assert names(task.schema_text_full) == whole, "get_schema shows the schema as it is"
        few = opened(model, database, against(tmp_path, +1, linking={"order": "relevance", "described": 1}))
        text = focus_text(few, 0)[0]
    ranking = [name for name, _ in few.relevance.ranking()]
    assert names(text) == ranking[:1]
    assert text.splitlines()[-1].endswith("columns not shown: " + ", ".join(ranking[1:]))


def test_candidates_that_use_what_is_relevant_come_first() -> None:
    def made(sql: str, linked: float | None) -> Candidate:
        parts = {"executes": 1.0, "rows": 1.0, "probability": 0.5}
        return Candidate(sql, "", "sampled", sql, [0], parts=parts, question=-9.0, linked=linked)

    entries = [made("SELECT 1", None), made("SELECT 2", -4.0), made("SELECT 3", -2.0)]

    def order(weight: float) -> list[str]:
        config = build_config({"candidates": {"choose": "question", "linked_weight": weight}})
        return [c.sql for c in rank(entries, [RunResult(True)] * 3, config.candidates)]

    assert order(0.0) == ["SELECT 1", "SELECT 2", "SELECT 3"]
    assert order(0.5) == ["SELECT 1", "SELECT 3", "SELECT 2"]
    assert entries[1].to_dict()["linked"] == -4.0
    assert "linked" not in entries[0].to_dict()


def test_a_candidate_knows_how_likely_its_names_are(model: LocalModel, shop: Path, tmp_path: Path) -> None:
    settings = {"n": 1, "linked_weight": 1.0, "constrained": False}
    config = against(tmp_path, linking={}, candidates=settings)
    scripted = ScriptedModel(["SELECT count(*) FROM orders;"])
    scripted.hidden_states, scripted.describe = model.hidden_states, model.describe  # type: ignore[attr-defined]
    with SqliteDatabase(shop) as database:
        resources = Resources(scripted, database)
        episode = run_episode(get_controller("candidates"), Question(ASKED), lambda: resources, config)
        task = opened(model, database, config)
    (entry,) = episode.trace[-1]["observation"]["ranking"]
    assert entry["linked"] == pytest.approx(task.relevance.log_probability(entry["sql"], task.schema), abs=0.01)
    assert episode.usage.model_calls == 2, "one text read, one query written"


# ----------------------------------------------------------------------------------------------- weights and models


def test_a_model_that_the_weights_are_not_for_is_said_before_the_run(model: LocalModel, tmp_path: Path) -> None:
    for asked in ({"learned": True}, {"order": "relevance"}):
        with pytest.raises(UsageError, match=r"linking\.\* needs hidden states, and scripted is not run here"):
            check_config(ScriptedModel(["SELECT 1"]), against(tmp_path, linking=asked))
    check_config(model, against(tmp_path, linking={"learned": True}))
    check_config(ScriptedModel(["SELECT 1"]), against(tmp_path, linking={}))
    other = build_config({"linking": {"learned": True, "weights": str(head(tmp_path, "tiny-2"))}})
    with pytest.raises(UsageError, match="the weights are for tiny, and the model is tiny"):
        check_config(model, other)


def test_a_file_that_is_no_head_is_said_before_the_run(model: LocalModel, tmp_path: Path) -> None:
    for content in (b"", b"no zip"):
        (tmp_path / "bad.npz").write_bytes(content)
        config = build_config({"linking": {"learned": True, "weights": str(tmp_path / "bad.npz")}})
        with pytest.raises(UsageError, match=r"bad\.npz' is no file of scripts/fit_linking\.py"):
            check_config(model, config)
    with pytest.raises(UsageError, match="is no file of"):
        check_config(model, build_config({"linking": {"learned": True, "weights": str(tmp_path / "nowhere")}}))


def test_other_weights_are_another_run(tmp_path: Path) -> None:
    keys = []
    for n in range(2):
        (tmp_path / str(n)).mkdir()
        file = head(tmp_path / str(n), tables=np.full(FEATURES + 1, n, np.float32)).rename(tmp_path / f"{n}.npz")
        config = build_config({"linking": {"learned": True, "weights": str(file)}})
        same = build_config({"linking": {"learned": True}})
        keys.append(run_key(get_controller("single_shot"), same, {}, {}, members(config)))
    assert keys[0] != keys[1]


def test_a_text_that_does_not_fit_is_linked_by_words_and_flagged(model: LocalModel, tmp_path: Path) -> None:
    config = against(tmp_path, linking={"learned": True, "order": "relevance"})
    wide = ", ".join(f"a_rather_long_name_{n}" for n in range(60))  # more than the window of 1,024 tokens
    file = make_database(tmp_path / "wide.sqlite", f"CREATE TABLE orders ({wide}); CREATE TABLE items (id)")
    with SqliteDatabase(file) as database:
        task = opened(model, database, config)
        link(task)
    assert task.flags["linking"].startswith("lexical: a text of")
    assert names(task.schema_text_focus)[0] == "orders"


def test_the_packaged_weights_are_for_the_packaged_adapter() -> None:
    from nl2sql.models.adapters import adapter_revision
    from nl2sql.models.embedded import embedded_model

    embedded = embedded_model("smollm2-135m")
    adapter = adapter_revision(packaged_adapters()[embedded.adapter])
    packaged = head_of(Config())
    assert packaged.revision == f"sha256:{embedded.gguf_sha256}+{adapter}"
    assert {len(each) for each in packaged.weights.values()} == {len(packaged.layers) * 576 + 5 + 1, 11, 8}
