"""Few-shot examples: who is shown what, where in the prompt, and what a question must never be shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from people import make_database

from nl2sql.agents import prompts
from nl2sql.agents.context.few_shot import check_few_shot, choose, masked, pool_of, prompt_pair
from nl2sql.agents.controllers import get_controller
from nl2sql.agents.record import Episode
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import Config, SingleShotConfig, build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.interfaces import Question, Resources
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.ablation import ablate, expand
from nl2sql.runs.evaluate import evaluate, resume
from nl2sql.sql.same import normalise_sql
from nl2sql.sql.text import words

FIXTURES = Path(__file__).parents[1] / "fixtures"
TWINS = [
    line.split("\t")
    for line in (FIXTURES / "few_shot_twins.tsv").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
BAD_POOLS = (FIXTURES / "few_shot_pools.txt").read_text(encoding="utf-8").split("\n---\n")
ASKED = Question(
    "How many customers live in Bern?",
    db_id="shop",
    id="q1",
    gold=("SELECT COUNT(*) FROM customers WHERE city = 'Bern'",),
)
SOLVED = [
    ("List the titles of all films.", "SELECT title FROM films", "cinema"),
    ("How many films were made in France?", "SELECT COUNT(*) FROM films WHERE country = 'France'", "cinema"),
    ("Which singers are older than 30?", "SELECT name FROM singers WHERE age > 30;", "music"),
    ("How many singers live in Paris?", "SELECT COUNT(*) FROM singers WHERE city = 'Paris' ;\n", "music"),
]


def write_pool(path: Path, solved: list[tuple[str, str, str]]) -> str:
    rows = [dict(zip(("question", "sql", "db_id"), item, strict=True)) for item in solved]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def pool(tmp_path: Path) -> str:
    return write_pool(tmp_path / "pool.jsonl", SOLVED)


def settings(pool: str, k: int = 2, **more: Any) -> Config:
    seed = more.pop("seed", 0)
    return build_config({"few_shot": {"k": k, "pool": pool, **more}, "seed": seed, "eval": {"replicas": 0}})


def chosen(shop: Path, config: Config, question: Question = ASKED) -> list[str]:
    with SqliteDatabase(shop, name=question.db_id) as database:
        return [
            item.text
            for item in choose(question, database, pool_of(config.few_shot), config, lambda text: True, prompt_pair)
        ]


# -------------------------------------------------------------------------------------------------- no leakage


@pytest.mark.parametrize("case", TWINS, ids=lambda case: "-".join([*case[0].split()[:3], case[2]]))
def test_a_question_never_sees_itself_or_a_twin(case: list[str], tmp_path: Path, shop: Path) -> None:
    text, sql, db_id, by_default, same_database = case
    folder = tmp_path / "solved"
    (folder / "databases" / "renamed").mkdir(parents=True)
    (folder / "databases" / "renamed" / "renamed.sqlite").write_bytes(shop.read_bytes())
    make_database(
        folder / "databases" / "zoo" / "zoo.sqlite", "CREATE TABLE animals (name); INSERT INTO animals VALUES (1)"
    )
    item = {"id": "other", "question": text, "query": sql, "db_id": db_id}
    (folder / "questions.json").write_text(json.dumps([item]), encoding="utf-8")
    for allowed, expected in ((False, by_default), (True, same_database)):
        found = chosen(shop, settings(str(folder), same_database=allowed))
        assert found == ([text] if expected == "yes" else []), f"same_database={allowed}"


@pytest.mark.parametrize("select", ["similar", "random", "fixed"])
def test_no_packaged_question_sees_its_own_database_words_or_query(select: str) -> None:
    benchmark = load_benchmark("packaged", split="quick")
    config = settings("packaged", k=3, select=select)
    for question in benchmark.questions:
        database = benchmark.database(question.db_id)
        found = choose(question, database, pool_of(config.few_shot), config, lambda text: True, prompt_pair)
        assert len(found) == 3 and len({normalise_sql(item.gold[0]) for item in found}) == 3
        for item in found:
            assert item.db_id != question.db_id and words(item.text) != words(question.text)
            assert not {normalise_sql(sql) for sql in item.gold} & {normalise_sql(sql) for sql in question.gold}


# --------------------------------------------------------------------------------------------------- selection


def test_the_likest_question_stands_last_and_names_of_tables_do_not_count(shop: Path, pool: str) -> None:
    assert chosen(shop, settings(pool))[-1] == "How many singers live in Paris?"
    assert masked("How many order details has Ada?", ["OrderDetails"]) == "how many <table> has ada"


def test_random_examples_depend_on_seed_and_question_alone(shop: Path, tmp_path: Path) -> None:
    many = [(f"Which are the {n} oldest films?", f"SELECT title FROM films LIMIT {n}", "cinema") for n in range(50)]
    pool = write_pool(tmp_path / "many.jsonl", many)
    first = chosen(shop, settings(pool, select="random"))
    assert first == chosen(shop, settings(pool, select="random"))
    assert first != chosen(shop, settings(pool, select="random", seed=1))
    assert first != chosen(shop, settings(pool, select="random"), Question("Who is Ada?", db_id="shop"))


def test_fixed_examples_are_the_pool_s_first_in_its_order(shop: Path, pool: str) -> None:
    for question in (ASKED, Question("Who is Ada?", db_id="shop")):
        assert chosen(shop, settings(pool, select="fixed"), question) == [text for text, *_ in SOLVED[:2]]


# -------------------------------------------------------------------------------------------------- the prompt


def ask(name: str, shop: Path, config: Config, question: Question = ASKED, **model: Any) -> Episode:
    """An episode in which every controller gets as far as its first ``generate_sql``."""
    replies = ["Action: extract_constraints[{}]", "Action: generate_sql[{}]", "x"] if name == "react" else ["x"]
    with SqliteDatabase(shop, name="shop") as database:
        scripted = ScriptedModel(replies, on_exhausted="repeat", **model)
        return get_controller(name).run(question, Resources(scripted, database), config)


def user_turn(episode: Episode) -> str:
    return next(call for call in episode.calls if call["kind"] == "sql")["messages"][1]["content"]


@pytest.mark.parametrize("name", ["single_shot", "react", "candidates"])
def test_every_controller_shows_the_examples_and_none_without_k(name: str, shop: Path, pool: str) -> None:
    plain = ask(name, shop, Config())
    off = ask(name, shop, settings(pool, k=0))
    assert off.calls[0]["messages"] == plain.calls[0]["messages"] and user_turn(off) == user_turn(plain)
    assert "few_shot" not in off.flags
    episode = ask(name, shop, settings(pool, k=1))
    example = "Question: How many singers live in Paris?\nSQL: SELECT COUNT(*) FROM singers WHERE city = 'Paris';\n\n"
    head, shown, tail = user_turn(episode).partition(example)
    assert shown and head.endswith("\n\nSolved examples, which may be over other schemas:\n\n")
    assert head.removesuffix("Solved examples, which may be over other schemas:\n\n") + tail == user_turn(plain)
    assert episode.flags["few_shot"] == ["4"]


def test_without_examples_the_prompt_is_what_adapters_were_trained_on() -> None:
    system, user = prompts.generate_messages("How many?", "t(a)", {"agg": "COUNT"})
    assert user["content"] == "Schema:\nt(a)\n\nQuestion: How many?\nThe query should: use COUNT.\nSQL:"
    assert system["content"] == prompts.PROMPTS["generate_system"]


def test_questions_of_one_database_share_what_stands_before_the_examples(shop: Path, pool: str) -> None:
    other = Question("Which orders are open?", db_id="shop")
    turns = [user_turn(ask("single_shot", shop, settings(pool, k=1), question)) for question in (ASKED, other)]
    assert turns[0].partition("Solved examples")[2] != turns[1].partition("Solved examples")[2]
    assert len({turn.partition("Solved examples")[0] for turn in turns}) == 1


def test_examples_that_do_not_fit_are_left_out_the_least_like_first(shop: Path, pool: str) -> None:
    config = settings(pool, k=4).model_copy(update={"single_shot": SingleShotConfig(max_new_tokens=8)})
    episode = ask("single_shot", shop, config, context_window=8 * 30)
    assert episode.flags["few_shot"] == ["2", "4"]


def test_a_line_of_a_pool_ends_at_a_line_feed_alone(tmp_path: Path) -> None:
    row = {"question": "Which are\u2028named\x85so?", "sql": "SELECT 1", "db_id": "music"}
    text = json.dumps(row, ensure_ascii=False) + "\r\n"
    (tmp_path / "pool.jsonl").write_text(text, encoding="utf-8-sig")  # as some editors save it
    pool = pool_of(settings(str(tmp_path / "pool.jsonl")).few_shot)
    assert [item.text for item in pool.items] == [row["question"]]


# ------------------------------------------------------------------------------------------------- in a run


@pytest.mark.parametrize("case", BAD_POOLS, ids=lambda case: case.split("\n")[0])
def test_a_bad_pool_is_refused_before_the_run_in_one_line(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    head, _, text = case.removeprefix("# ").partition("\n")
    message, _, pool = head.partition(" | pool:")
    Path("pool.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(Nl2SqlError) as found:
        check_few_shot(settings(pool.strip(), k=3).few_shot)
    assert message in str(found.value) and "\n" not in str(found.value)


def test_a_run_is_not_continued_with_another_pool(tmp_path: Path, pool: str) -> None:
    script: dict[str, Any] = {"on_exhausted": "repeat", "replies": {"*": ["SELECT 1 AS one FROM nowhere"]}}
    (tmp_path / "script.json").write_text(json.dumps(script), encoding="utf-8")
    out = tmp_path / "run"
    done = evaluate(
        "packaged", f"scripted:{tmp_path / 'script.json'}", "single_shot", config=settings(pool), split="quick",
        limit=2, out=out, progress=False,
    )  # fmt: skip
    assert all(len(trace["flags"]["few_shot"]) == 2 for trace in done.traces())
    assert resume(out, progress=False, trust=True).report["metrics"] == done.report["metrics"]
    write_pool(Path(pool), SOLVED[:2])
    with pytest.raises(UsageError, match="few_shot_pool changed"):
        resume(out, progress=False, trust=True)


def test_k_is_an_axis_whose_cells_are_compared(tmp_path: Path, pool: str) -> None:
    script: dict[str, Any] = {"on_exhausted": "repeat", "replies": {"*": ["SELECT 1 AS one FROM nowhere"]}}
    (tmp_path / "script.json").write_text(json.dumps(script), encoding="utf-8")
    base = {"model": f"scripted:{tmp_path / 'script.json'}", "controller": "single_shot", "limit": 2}
    config = {"few_shot": {"pool": pool}, "eval": {"replicas": 0}}
    done = ablate(
        expand({"base": {**base, "config": config}, "axes": {"few_shot.k": [0, 1, 2]}}),
        tmp_path / "out",
        progress=False,
    )
    tokens = {cell["name"]: cell["usage"]["prompt_tokens"] for cell in done.to_dict()["cells"]}
    assert list(tokens) == ["base", "k=1", "k=2"] and tokens["base"] < tokens["k=1"] < tokens["k=2"]
