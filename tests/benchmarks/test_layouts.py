"""The field's benchmarks as their projects hand them out: checked, asked and scored without renaming anything.

``tests/fixtures/layouts`` holds a few made-up questions in the official form of each; the databases are the shop's.
"""

import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from programs import command

from nl2sql.agents.context.knowledge import facts_for
from nl2sql.benchmarks import exclusion_reason, load_benchmark, scorable
from nl2sql.benchmarks.load import from_anywhere
from nl2sql.databases.schema import schema_to_text
from nl2sql.errors import BenchmarkError
from nl2sql.eval.rules import order_matters

LAYOUTS = Path(__file__).parents[1] / "fixtures/layouts"
GOLDS = [
    "SELECT count(*) FROM customers",
    "SELECT name FROM customers WHERE city = 'Bern'",
    "SELECT max(total) FROM orders",
]


@dataclass(frozen=True)
class Layout:
    """named: the options that name the benchmark, relative to the copy. ids: of its three scored questions."""

    database: str
    named: list[str]
    ids: list[str]
    excluded: dict[str, int] = field(default_factory=dict)
    rule: str = "bag"


HERE = ["--benchmark", "."]
FILE = "database/shop/shop.sqlite"
LISTED = {
    "spider_syn": Layout(FILE, ["--questions", "dev.json", "--databases", "database"], ["dev-0", "dev-1", "dev-2"]),
    "spider_dk": Layout(FILE, ["--questions", "Spider-DK.json"], ["Spider-DK-0", "Spider-DK-1", "Spider-DK-2"]),
    "spider_realistic": Layout(
        FILE,
        ["--questions", "spider-realistic.json", "--databases", "database"],
        ["spider-realistic-0", "spider-realistic-1", "spider-realistic-2"],
    ),
    "kaggledbqa": Layout(
        "databases/shop/shop.sqlite",
        ["--questions", "examples/Shop_test.json"],
        ["Shop_test-0", "Shop_test-1", "Shop_test-2"],
    ),
    "archer": Layout(FILE, ["--questions", "dev.json", "--databases", "database"], ["dev-0", "dev-1", "dev-2"]),
    "bird_mini_dev": Layout("dev_databases/shop/shop.sqlite", HERE, ["1470", "1471", "1472"], rule="bird-set"),
    "bird_dev": Layout("dev_databases/shop/shop.sqlite", HERE, ["1470", "1471", "1472"], rule="bird-set"),
    "bird_train": Layout(
        "train_databases/shop/shop.sqlite",
        HERE,
        ["bird_train-train-0", "bird_train-train-1", "bird_train-train-2"],
        rule="bird-soft-f1",
    ),
    "spider2": Layout(
        "resource/databases/spider2-localdb/shop.sqlite",
        HERE,
        ["local001", "local002", "local003"],
        {"other_engine": 1},
        "spider2",
    ),
    "livesqlbench": Layout(
        "shop/shop_template.sqlite", HERE, ["shop_1", "shop_2", "shop_3"], {"writes": 1}, "livesqlbench"
    ),
    "mini_interact": Layout("shop/shop.sqlite", HERE, ["shop_1", "shop_2", "shop_3"], rule="livesqlbench"),
    "ehrsql": Layout("shop.sqlite", ["--questions", "valid.json"], ["e0", "e1", "e2"], {"is_impossible": 1}),
}


@pytest.fixture
def place(tmp_path, shop, monkeypatch):
    """A copy of a layout's files, with its database where the project's own archive has it."""

    monkeypatch.delenv("NL2SQL_BENCHMARKS", raising=False)

    def copied(name: str) -> tuple[Path, Layout]:
        layout, folder = LISTED[name], tmp_path / name
        shutil.copytree(LAYOUTS / name, folder)
        (folder / layout.database).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shop, folder / layout.database)
        return folder, layout

    return copied


def as_folder(path: Path, answers: dict[str, str]) -> Path:
    path.mkdir()
    for id_, sql in answers.items():
        (path / f"{id_}.sql").write_text(sql)
    return path


def as_list(path: Path, answers: dict[str, str]) -> Path:
    path.write_text(json.dumps([{"id": id_, "sql": sql} for id_, sql in answers.items()]))
    return path


def as_dict(path: Path, answers: dict[str, str]) -> Path:
    path.write_text(json.dumps(answers))
    return path


WRITERS = {"folder": as_folder, "list.json": as_list, "dict.json": as_dict}


@pytest.mark.parametrize("name", LISTED)
def test_a_layout_is_checked_asked_and_scored_as_it_is_handed_out(place, name):
    folder, layout = place(name)
    checked = command("data", "check", *layout.named, "--json", cwd=folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    report = json.loads(checked.stdout)
    assert (report["n"], report["left_out"]) == (3, layout.excluded)

    answers = dict(zip(layout.ids, [*GOLDS[:2], "SELECT min(total) FROM orders"], strict=True))
    files = [part for kind, write in WRITERS.items() for part in ("-p", write(folder / kind, answers))]
    done = command("score", *layout.named, "--rule", layout.rule, *files, "--json", cwd=folder)
    scored = json.loads(done.stdout)
    assert [run["missing"] + run["surplus"] for run in scored["runs"]] == [[], [], []]
    assert [[item["ex"] for item in run["items"]] for run in scored["runs"]] == [[True, True, False]] * 3

    (folder / "model.json").write_text(json.dumps({"replies": {"*": GOLDS[:1]}}))
    asked = ["eval", *layout.named, "--limit", 3, "--model", "scripted:model.json", "--controller", "single_shot"]
    done = command(*asked, "--replicas", 0, "-c", f"eval.rule={layout.rule}", "--json", "--quiet", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"][f"EX[{layout.rule}]"]["value"] == pytest.approx(1 / 3)


def test_the_reliability_score_counts_questions_without_an_answer(place):
    folder, layout = place("ehrsql")
    (impossible,) = {q.id for q in load_benchmark(folder / "valid.json").questions} - set(layout.ids)
    wrong, right = "SELECT min(total) FROM orders", GOLDS[0]
    answers = {
        "all": {"e0": right, "e1": "null", "e2": wrong, impossible: "null"},
        "bold": {"e0": right, "e1": "", "e2": "NULL", impossible: right},
        "unasked": {"e0": right},
    }
    files = [part for name, given in answers.items() for part in ("-p", as_dict(folder / f"{name}.json", given))]
    done = command("score", *layout.named, "--replicas", 0, *files, cwd=folder)
    assert [line for line in done.stdout.splitlines() if line.startswith("reliability")] == [
        f"reliability of {folder / name}.json, with the questions that have no answer: {scores}"
        for name, scores in (
            ("all", "RS(0) 50.0, RS(5) -75.0, RS(10) -200.0, RS(N) -50.0"),
            ("bold", "RS(0) 25.0, RS(5) -100.0, RS(10) -225.0, RS(N) -75.0"),
        )
    ]
    done = command("score", *layout.named, "--replicas", 0, *files, "--json", cwd=folder)
    assert json.loads(done.stdout)["reliability"][str(folder / "all.json")]["RS(5)"] == -0.75


@pytest.mark.parametrize("perturbs", ["NLQ_column_synonym", "DB_schema_synonym"])
def test_the_halves_of_a_perturbed_set_are_paired(tmp_path, shop, perturbs):
    folder, own = tmp_path / perturbs, perturbs.startswith("DB")
    for sub in ("databases_pre_perturbation", "databases_post_perturbation") if own else ("databases",):
        (folder / sub / "shop").mkdir(parents=True)
        shutil.copy(shop, folder / sub / "shop" / "shop.sqlite")
    texts = ["How many customers are there?", "Who lives in Bern?", "What is the largest total?"]
    for half in ("pre", "post"):
        records = [
            {"question": f"{text} ({half})", "query": gold, "db_id": "shop"}
            for text, gold in zip(texts, GOLDS, strict=True)
        ]
        (folder / f"questions_{half}_perturbation.json").write_text(json.dumps(records))
    loaded = load_benchmark(folder)
    assert {split: len(ids) for split, ids in loaded.splits.items()} == {"pre": 3, "post": 3}
    assert loaded.questions[3].db_id == ("shop_post" if own else "shop")
    assert loaded.database(loaded.questions[3].db_id).path.parts[-3].startswith("databases")
    given = [GOLDS[0], GOLDS[1], GOLDS[2], GOLDS[0], GOLDS[0], GOLDS[0]]
    answers = as_list(tmp_path / "p.json", {q.id: sql for q, sql in zip(loaded.questions, given, strict=True)})
    told = ["score", "-b", folder, "-p", answers, "--replicas", 0]
    assert ", 3 pairs: EX before 100.0 [" in command(*told, cwd=tmp_path).stdout
    found = json.loads(command(*told, "--json", cwd=tmp_path).stdout)["before_after"][str(answers)]
    assert (found["after"]["value"], found["kept"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert (found["n"], found["paired"]["wins"], found["paired"]["losses"]) == (3, 2, 0)


def test_archers_knowledge_is_the_evidence(place):
    folder, _ = place("ehrsql")
    record = {"question": "How many?", "query": GOLDS[0], "db_id": "shop", "commonsense_knowledge": "a dozen is 12"}
    (folder / "en_dev.json").write_text(json.dumps([record | {"reasoning_type": "- C"}]))
    (question,) = load_benchmark(folder / "en_dev.json").questions
    assert (question.evidence, question.meta["reasoning_type"]) == ("a dozen is 12", "- C")


def test_a_file_of_questions_and_its_databases_are_one_name(place, monkeypatch):
    folder, _ = place("spider_syn")
    monkeypatch.chdir(folder)
    assert from_anywhere("dev.json::database") == f"{folder}/dev.json::{folder}/database"
    (first, *_) = load_benchmark(f"{folder}/dev.json::{folder}/database").questions
    assert (first.text, first.meta["SpiderQuestion"]) == ("How many buyers are there?", "How many customers are there?")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--questions", "none.json"], "expected a file of questions"),
        (["--questions", "dev.json", "--databases", "nowhere"], "expected the one that holds DB/DB.sqlite"),
        (["--databases", "database"], "--databases goes with --questions"),
    ],
)
def test_what_is_not_there_is_named(place, options, said):
    folder, _ = place("spider_syn")
    done = command("data", "check", *options, cwd=folder)
    assert done.returncode == 2 and said in done.stderr


def test_birds_descriptions_are_shown_where_a_switch_asks_for_them(place):
    folder, _ = place("bird_mini_dev")
    schema = load_benchmark(folder).database("shop").schema()
    assert "Swiss" not in schema_to_text(schema)
    assert [fact.text for fact in facts_for("", schema, descriptions=True)] == [
        "customers.customer_id: customer id",
        "customers.name: the buyer\u2019s name",
        'customers.city: where the buyer lives; "Bern", "Basel"',
        "orders.status: how far it is; shipped: on its way",
        "orders.total: in Swiss francs",
    ]
    asked = ["eval", *HERE, "--model", "scripted:model.json", "--controller", "single_shot"]
    (folder / "model.json").write_text(json.dumps({"replies": {"*": GOLDS[:1]}}))
    for switch, shown in (("true", True), ("false", False)):
        run = folder / f"run-{switch}"
        done = command(*asked, "-c", f"knowledge.descriptions={switch}", "--out", run, "--quiet", cwd=folder)
        assert done.returncode == 0, done.stderr
        assert ("where the buyer lives" in (run / "traces.jsonl").read_text()) == shown


def test_a_description_is_part_of_a_databases_fingerprint(place):
    folder, _ = place("bird_mini_dev")
    before = load_benchmark(folder).database("shop").fingerprint
    (folder / "dev_databases/shop/database_description/orders.csv").unlink()
    assert load_benchmark(folder).database("shop").fingerprint != before


def test_mini_devs_golds_for_other_engines_stand_beside_sqlites(place):
    folder, _ = place("bird_mini_dev")
    (first, *_) = load_benchmark(folder).questions
    assert (first.gold, first.evidence) == (("SELECT count(*) FROM customers",), "customers refers to buyers")
    assert first.meta["benchmark_difficulty"] == "simple"
    for url, gold in (("mysql://me@host/{db_id}", "`customers`"), ("postgresql://me@host/{db_id}", '"customers"')):
        assert load_benchmark(folder, engine_url=url).questions[0].gold == (f"SELECT count(*) FROM {gold}",)
    (folder / "mini_dev_sqlite.json").unlink()
    assert load_benchmark(folder).excluded == {"no_gold": 3}
    assert all(map(scorable, load_benchmark(folder, engine_url="mysql://me@host/{db_id}").questions))


@pytest.mark.parametrize(
    ("name", "lost", "said"),
    [
        ("bird_dev", "dev_databases", "expected shop.sqlite below .* unpack dev_databases.zip .*bird-bench"),
        ("spider2", "resource/databases", "shop.sqlite below .* clone https://github.com/xlang-ai/Spider2"),
        ("spider2", "evaluation_suite", "spider2lite_eval.jsonl is missing; .* clone https://github.com/xlang-ai/Spid"),
        ("spider2", "evaluation_suite/gold/exec_result", "exec_result/ID.csv is missing; .* git clone"),
        ("livesqlbench", "livesqlbench_gt_sqlite.jsonl", "sol_sql is missing; hf download .* bird.bench25@gmail.com"),
        ("livesqlbench", "shop", "shop.sqlite below .* hf download .* birdsql/livesqlbench-base-lite-sqlite"),
        ("spider_syn", "database", "no database of 'dev' was found; expected shop/shop.sqlite"),
    ],
)
def test_a_half_folder_says_what_is_missing_and_where_it_can_be_had(place, name, lost, said):
    folder, layout = place(name)
    (shutil.rmtree if (folder / lost).is_dir() else Path.unlink)(folder / lost)
    (folder / "database").mkdir(exist_ok=True)
    hand_in = as_dict(folder / "dict.json", {})
    for asked in (["data", "check"], ["score", "-p", hand_in], ["eval", "--model", "scripted:none.json"]):
        done = command(*asked, *layout.named, cwd=folder)
        assert done.returncode == 1 and re.search(said, done.stderr), done.stderr


def test_spider_2s_golds_are_its_tables_of_results(place):
    folder, _ = place("spider2")
    benchmark = load_benchmark(folder)
    remote, one, bern, largest = benchmark.questions
    run = benchmark.database("shop").run
    assert [run(gold).rows for gold in bern.gold] == [(("Cleo",), ("Ada",)), (("Ada Lovelace",), ("Cleo Patra",))]
    assert [run(gold).rows for gold in (*one.gold, *largest.gold)] == [((3,),), ((20.001,),)]
    assert (bern.evidence, one.evidence) == ("# Bern\n\nBern is a city.", "")
    assert [order_matters(question.gold[0]) for question in (one, bern, largest)] == [True, False, True]
    assert exclusion_reason(remote) == "other_engine" and bern.difficulty == "unknown"


def test_ts_of_a_table_of_results_is_refused(place):
    folder, layout = place("spider2")
    file = as_dict(folder / "dict.json", dict(zip(layout.ids, GOLDS, strict=True)))
    done = command("score", *HERE, "-p", file, "--replicas", 2, cwd=folder)
    assert done.returncode == 2 and "leave TS out with --replicas 0" in done.stderr


def test_livesqlbench_gives_its_knowledge_and_the_meanings_of_columns(place):
    folder, _ = place("livesqlbench")
    benchmark = load_benchmark(folder)
    first, second, *_ = benchmark.questions
    assert (first.evidence, second.evidence) == ("Customer: A customer is any row of customers.", "")
    facts = facts_for("", benchmark.database("shop").schema(), descriptions=True)
    assert [fact.text for fact in facts] == [
        "customers.city: TEXT. Where the buyer lives.",
        "orders.total: JSON in other databases. (fields: net)",
    ]


def test_mini_interacts_clear_question_comes_first(place):
    folder, _ = place("mini_interact")
    first = load_benchmark(folder).questions[0]
    assert (first.text, first.meta["ambiguous"]) == ("How many customers are there?", False)
    file = folder / "mini_interact.jsonl"
    file.write_text(file.read_text().replace('"query"', '"hidden"'))
    first = load_benchmark(folder).questions[0]
    assert (first.text, first.meta["ambiguous"]) == ("How many them are there?", True)


@pytest.mark.parametrize(
    ("name", "file", "written", "instead", "said"),
    [
        ("spider2", "spider2-lite.jsonl", "bern.md", "../../spider2-lite.jsonl", "no name of a file"),
        ("spider2", "spider2-lite.jsonl", "local001", "local/../001", "no name of a file"),
        ("spider2", "spider2-lite.jsonl", '"instance_id"', '"id"', "not as published"),
        ("livesqlbench", "livesqlbench_data_sqlite.jsonl", '"shop"', '"../shop"', "no name of a file"),
        ("livesqlbench", "shop/shop_kb.jsonl", '"definition"', '"said"', "not as published"),
    ],
)
def test_a_folder_that_names_files_elsewhere_or_is_broken_is_refused(place, name, file, written, instead, said):
    folder, _ = place(name)
    (folder / file).write_text((folder / file).read_text().replace(written, instead))
    with pytest.raises(BenchmarkError, match=said):
        load_benchmark(folder)


@pytest.mark.parametrize("broken", ['["shop"]', '{"city": "no table"}', "{"])
def test_broken_meanings_of_columns_are_named(place, broken):
    folder, _ = place("livesqlbench")
    (folder / "shop/shop_column_meaning_base.json").write_text(broken)
    with pytest.raises(BenchmarkError, match=r"said of the columns of shop_template\.sqlite"):
        load_benchmark(folder).database("shop")
