"""Suites: neighbours, generated databases, what is built, and how strong it is."""

import json
import sqlite3
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nl2sql.benchmarks import FolderBenchmark
from nl2sql.cli.data import replicas as app
from nl2sql.databases.sqlite.process import DECODER, _encoded
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.eval import suites
from nl2sql.eval.suites import SuiteOrder, build_suites, check_strength, suite_databases, suite_fingerprint
from nl2sql.eval.suites.arena import Arena, SourceDatabase, empty_image, read_source, store
from nl2sql.eval.suites.distil import ARBITRARY, build_images, distil, gold_result, read_gold
from nl2sql.eval.suites.generate import Generator, read_hints
from nl2sql.eval.suites.neighbours import neighbours_of
from nl2sql.interfaces import Question

FIXTURES = Path(__file__).parents[2] / "fixtures"
SCRIPT = (FIXTURES / "replica_schemas.sql").read_text(encoding="utf-8")
SCHEMAS = dict(part.split("\n", 1) for part in SCRIPT.split("-- name: ")[1:])
CASES = [
    [part.strip() for part in line.split(" | ")]
    for line in (FIXTURES / "suite_neighbours.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
GOLD = (
    "SELECT e.name FROM employees AS e JOIN offices AS o ON e.office = o.code WHERE o.city = 'Bern' AND e.salary > 500"
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("NL2SQL_CACHE", str(folder))
    return folder


def build(path, script):
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.commit()
    connection.close()
    return path


@pytest.fixture
def company(tmp_path):
    return build(tmp_path / "company.sqlite", next(iter(SCHEMAS.values())))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return read_source(build(tmp_path_factory.mktemp("source") / "company.sqlite", next(iter(SCHEMAS.values()))))


@pytest.fixture(scope="module")
def place(source):
    return Arena(source)


@pytest.mark.parametrize(("gold", "kind", "sql"), [case[:3] for case in CASES])
def test_a_neighbour_is_made_with_its_kind(gold, kind, sql, place):
    made = {n.sql: n.kind for n in read_gold(gold, place, 0).live}
    assert made.get(sql) == kind, "\n".join(made)


@pytest.mark.parametrize("gold", sorted({case[0] for case in CASES}))
def test_a_neighbour_differs_on_some_database_or_on_none_as_its_fate_says(gold, source, place):
    made = distil(place, [gold], 10, 0)
    read = made.golds[0]
    fates = {sql: fate for other, _, sql, fate in CASES if other == gold}
    generator = Generator(source, read_hints([read.tree], read.live, source), seed=1)
    images = [*made.images, *(store(place.empty, source, generator.rows(number)) for number in range(25))]
    said_something, killed = 0, set()
    for image in images:
        result = gold_result(read, place, image)
        if result is not None:
            said_something += 1
            killed |= {sql for sql in fates if not read.same(result, place.run(sql))}
    assert said_something
    assert killed == {sql for sql, fate in fates.items() if fate == "-"}


def test_there_are_at_least_fifty_neighbours_and_no_two_alike(source):
    for gold in {case[0] for case in CASES}:
        found = neighbours_of(gold, source)
        assert len(found) >= 50
        assert len({n.sql for n in found}) == len(found)


@pytest.mark.parametrize("name", SCHEMAS)
def test_generated_databases_keep_what_the_schema_promises(name, tmp_path):
    source = read_source(build(tmp_path / "original.sqlite", SCHEMAS[name]))
    assert SourceDatabase.from_json(DECODER.decode(_encoded(asdict(source)).decode())) == source
    first = source.tables[-1]
    quoted = first.name.replace('"', '""')
    hints = read_hints([read_gold(f'SELECT count(*) FROM "{quoted}"', Arena(source), 0).tree], [], source)
    empty, filled = empty_image(source), 0
    for number in range(12):
        connection = sqlite3.connect(":memory:")
        connection.deserialize(store(empty, source, Generator(source, hints, 0).rows(number, whole=True)))
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        filled += connection.execute(f'SELECT count(*) FROM "{quoted}"').fetchone()[0]
        connection.close()
    assert filled


def test_references_hold_by_the_collation_of_the_parent(tmp_path):
    script = """CREATE TABLE p (code TEXT COLLATE NOCASE PRIMARY KEY, x INT);
        CREATE TABLE c (id INTEGER PRIMARY KEY, p TEXT NOT NULL REFERENCES p);
        INSERT INTO p VALUES ('A1', 1), ('A2', 2), ('A3', 3), ('A4', 4);
        INSERT INTO c VALUES (1, 'a1'), (2, 'a2'), (3, 'a3'), (4, 'a4'), (5, 'a1');"""
    source = read_source(build(tmp_path / "nocase.sqlite", script))
    hints = read_hints([read_gold("SELECT p FROM c WHERE id > 2", Arena(source), 0).tree], [], source)
    filled = 0
    for number in range(12):
        connection = sqlite3.connect(":memory:")
        connection.deserialize(store(empty_image(source), source, Generator(source, hints, 0).rows(number, whole=True)))
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        filled += connection.execute("SELECT count(*) FROM c").fetchone()[0]
        connection.close()
    assert filled


@pytest.mark.parametrize("key", ["INTEGER NOT NULL REFERENCES emp", "INTEGER NOT NULL UNIQUE REFERENCES emp"])
def test_tables_that_have_to_refer_to_each_other_get_rows(key, tmp_path):
    script = f"""CREATE TABLE dept (id INTEGER PRIMARY KEY, budget INT, head {key});
        CREATE TABLE emp (id INTEGER PRIMARY KEY, pay INT, dept INTEGER NOT NULL REFERENCES dept);
        INSERT INTO dept VALUES (1, 10, 1), (2, 20, 2), (3, 30, 3);
        INSERT INTO emp VALUES (1, 5, 1), (2, 6, 2), (3, 7, 3), (4, 8, 1);"""
    source = read_source(build(tmp_path / "cycle.sqlite", script))
    gold = "SELECT budget, pay FROM dept JOIN emp ON head = emp.id WHERE pay > 5"
    hints = read_hints([read_gold(gold, Arena(source), 0).tree], [], source)
    joined = 0
    for number in range(12):
        connection = sqlite3.connect(":memory:")
        connection.deserialize(store(empty_image(source), source, Generator(source, hints, 0).rows(number)))
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        joined += connection.execute(f"SELECT count(*) > 0 FROM ({gold})").fetchone()[0]
        connection.close()
    assert joined >= 6


def test_no_row_is_stored_twice_where_a_trigger_refuses_one(tmp_path):
    script = """CREATE TABLE visit (day INTEGER);
        CREATE TRIGGER refuse BEFORE INSERT ON visit WHEN NEW.day > 30 BEGIN SELECT RAISE(ABORT, 'no such day'); END"""
    source = read_source(build(tmp_path / "visits.sqlite", script))
    image = sqlite3.connect(":memory:")
    image.executescript(script)
    connection = sqlite3.connect(":memory:")
    connection.deserialize(store(image.serialize(), source, {"visit": [(1,), (2,), (31,), (3,)]}))
    assert connection.execute("SELECT day FROM visit").fetchall() == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    "gold", ["SELECT a, sum(v) FROM q WHERE w > 5 GROUP BY a", "SELECT a FROM q ORDER BY v DESC LIMIT 1"]
)
def test_a_gold_over_a_generated_column_has_databases_with_rows(gold, tmp_path):
    script = """CREATE TABLE q (a TEXT, b INTEGER, v INTEGER GENERATED ALWAYS AS (b * 2) VIRTUAL, w INTEGER);
        INSERT INTO q (a, b, w) VALUES ('x', 1, 3), ('y', 2, 6), ('x', 3, 9), ('z', 4, 7), ('y', 5, 2);"""
    source = read_source(build(tmp_path / "computed.sqlite", script))
    filled = 0
    for image in distil(Arena(source), [gold], 10, 0).images:
        connection = sqlite3.connect(":memory:")
        connection.deserialize(image)
        filled += bool(connection.execute(gold).fetchall())
        connection.close()
    assert filled


def test_a_suite_kills_nearly_all_neighbours_with_few_databases(source, place):
    made = distil(place, [GOLD], 10, 0)
    alive = {n.sql.partition(" FROM ")[2] for k, n in enumerate(made.golds[0].live) if (0, k) not in made.killed}
    sound = "employees AS e LEFT JOIN offices AS o ON e.office = o.code WHERE o.city = 'Bern' AND e.salary > 500"
    assert sound in alive and len(alive) <= 3, alive
    assert 1 <= len(made.images) <= 10


def test_a_gold_whose_answer_is_arbitrary_everywhere_has_no_suite(tmp_path):
    script = "CREATE TABLE t (id INTEGER PRIMARY KEY, x INT); INSERT INTO t VALUES (1, 4), (2, 7), (3, 7)"
    source = read_source(build(tmp_path / "t.sqlite", script))
    made = distil(Arena(source), ["SELECT id FROM t LIMIT 1", "SELECT count(*) FROM t"], 2, 0)
    assert [gold.problem for gold in made.golds] == [ARBITRARY, None]
    assert {gold for gold, _ in made.killed} == {1}


def test_a_suite_is_built_once_and_the_same_anywhere(company, tmp_path, monkeypatch):
    first = suite_databases(company, [GOLD])
    stamps = [file.stat().st_mtime_ns for file in first]
    assert suite_databases(company, [GOLD]) == first
    assert [file.stat().st_mtime_ns for file in first] == stamps
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "elsewhere"))
    second = suite_databases(company, [GOLD])
    assert second != first
    assert suite_fingerprint(second) == suite_fingerprint(first)
    assert suite_fingerprint(suite_databases(company, [GOLD], seed=1)) != suite_fingerprint(first)
    assert not [p for p in first[0].parents[1].iterdir() if p.name.startswith(".")]


def test_several_golds_share_the_databases(company):
    golds = [GOLD, "SELECT count(*) FROM projects WHERE budget >= 3000"]
    ((_, suite),) = build_suites([SuiteOrder(company, tuple(golds), n=4)])
    assert len(suite.databases) <= 4
    assert sorted(entry["sql"] for entry in suite.golds) == sorted(golds)
    assert all(entry["killed"] for entry in suite.golds)


@pytest.mark.parametrize(
    "gold",
    [
        "not SQL at all (",
        "DROP TABLE employees",
        "SELECT nothing FROM nowhere",
        "SELECT load_extension('x')",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "ATTACH 'evil.sqlite' AS x",
    ],
)
def test_a_gold_that_cannot_be_used_has_no_suite_and_does_no_harm(gold, company, monkeypatch, tmp_path):
    monkeypatch.setattr(suites, "TASK_S", 3.0)
    monkeypatch.chdir(tmp_path)
    before = company.read_bytes()
    ((_, suite),) = build_suites([SuiteOrder(company, (gold,))])
    assert suite.databases == ()
    assert suite.error or suite.golds[0]["problem"]
    assert company.read_bytes() == before
    assert not (tmp_path / "evil.sqlite").exists()


def test_a_process_that_hangs_loses_only_its_task(company, monkeypatch):
    monkeypatch.setattr(suites, "TASK_S", 0.001)
    with pytest.raises(DatabaseError, match="given up after"):
        suite_databases(company, [GOLD])
    monkeypatch.setattr(suites, "TASK_S", 60.0)
    assert suite_databases(company, [GOLD])


def test_impossible_arguments_are_refused(company, tmp_path):
    with pytest.raises(UsageError, match="-1 databases"):
        suite_databases(company, [GOLD], n=-1)
    with pytest.raises(DatabaseError, match="does not exist"):
        suite_databases(tmp_path / "missing.sqlite", [GOLD])


@pytest.fixture
def benchmark_folder(tmp_path):
    folder = tmp_path / "bench"
    (folder / "databases" / "company").mkdir(parents=True)
    build(folder / "databases" / "company" / "company.sqlite", next(iter(SCHEMAS.values())))
    questions = [{"question": f"q{k}", "query": case[0], "db_id": "company"} for k, case in enumerate(CASES[:4:3])]
    (folder / "questions.json").write_text(json.dumps(questions))
    return folder


def test_check_measures_suites_above_perturbed_replicas(benchmark_folder):
    reports = {}
    for method in ("suite", "perturb"):
        arguments = ["check", "--benchmark", str(benchmark_folder), "--method", method, "-n", "5", "--json"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        reports[method] = json.loads(result.output)
    suite, perturb = reports["suite"], reports["perturb"]
    assert suite["micro"] > perturb["micro"]
    assert suite["neighbours_per_gold_least"] >= 50
    assert {"null", "distinct", "constant"} <= suite["by_kind"].keys()


def test_the_first_gold_of_a_question_is_what_is_checked(company):
    golds = (CASES[0][0], "SELECT count(*) FROM projects")
    question = Question("?", id="q", db_id="d", gold=golds)
    strength = check_strength(FolderBenchmark("b", [question], {}, {"d": company}), [question], n=2)
    assert [item["sql"] for item in strength.items] == [golds[0]] and (strength.built, strength.excluded) == (1, {})


def test_build_copies_the_databases_where_they_are_wanted(benchmark_folder, tmp_path):
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["build", "-b", str(benchmark_folder), "--out", str(out)])
    assert result.exit_code == 0, result.output
    index = json.loads((out / "index.json").read_text())
    assert index
    assert all((out / file).is_file() for files in index.values() for file in files)


def test_help_shows_examples():
    for command in ("build", "check"):
        assert "nl2sql data replicas" in CliRunner().invoke(app, [command, "--help"]).output


def test_a_joined_table_whose_columns_are_used_without_its_name_is_not_idle(place):
    read = read_gold("SELECT name FROM works AS w JOIN employees AS e ON w.employee = e.number", place, 0)
    assert not [n for n in read.live if "JOIN" not in n.sql]


def test_ties_with_nulls_are_ties(source, place):
    (gold,) = [read_gold("SELECT office FROM employees GROUP BY office ORDER BY count(*) DESC LIMIT 1", place, 0)]
    rising, falling = gold.variants
    assert "NULLS" not in rising
    assert "NULLS" not in falling


@pytest.mark.parametrize("gold", ["n < 9223372036854775807", "n > -9223372036854775808", "n < 99999999999999999999"])
def test_numbers_beyond_what_a_cell_holds_are_cut_to_it(gold, tmp_path):
    script = "CREATE TABLE t (name TEXT, n INT); INSERT INTO t VALUES ('a', 9223372036854775807), ('b', 3)"
    place = Arena(read_source(build(tmp_path / "t.sqlite", script)))
    request = {"golds": [f"SELECT name FROM t WHERE {gold}"], "n": 2, "seed": 0}
    made = build_images(place, request)
    assert made["images"] and made["golds"][0]["problem"] is None


def test_all_names_of_the_room_are_there():
    from nl2sql.eval import suites

    assert [name for name in suites.__all__ if not hasattr(suites, name)] == []


def test_a_type_of_any_text_is_no_obstacle(tmp_path):
    script = 'CREATE TABLE t (id INTEGER PRIMARY KEY, a "decimal (10-2)"); INSERT INTO t VALUES (1, 2), (2, 3)'
    assert empty_image(read_source(build(tmp_path / "t.sqlite", script)), loose=True)
