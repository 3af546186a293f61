"""Scoring as a whole: several files in one run, deaths in mid-run, remembered golds, rules and metrics by name."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nl2sql.benchmarks import FolderBenchmark
from nl2sql.databases.sqlite.batch import ROWS, run_pairs
from nl2sql.databases.sqlite.database import QueryPool
from nl2sql.errors import UsageError
from nl2sql.eval import exact_match, score, score_many
from nl2sql.eval.scores import ItemScore, Scores
from nl2sql.interfaces import Question
from nl2sql.machine import in_threads
from nl2sql.sql.features import order_free
from nl2sql.sql.same import same_text

SLOW = "SELECT count(*) FROM n a, n b WHERE a.i + b.i > {}"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def numbers(tmp_path) -> Path:
    path = tmp_path / "numbers.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript("""
        CREATE TABLE t (a INTEGER, b INTEGER, f REAL, s TEXT);
        INSERT INTO t VALUES (1, 2, 0.1, 'x'), (2, 1, 0.2, 'y'), (3, 3, NULL, 'x'), (4, 2, 0.3, NULL);
        CREATE TABLE n (i INTEGER);
        WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c LIMIT 700) INSERT INTO n SELECT i FROM c;
    """)
    connection.close()
    os.utime(path, (1, 1))  # long enough ago to be read into memory
    return path


def made(path: Path, golds: list[str]) -> FolderBenchmark:
    questions = [Question(text="?", id=f"q{n}", db_id="d", gold=(gold,)) for n, gold in enumerate(golds)]
    return FolderBenchmark("made", questions, {}, {"d": path})


def verdicts(scores) -> list[tuple]:
    return [(item.id, item.va, item.em, item.ex, item.ts, item.error_kind, item.cause) for item in scores.items]


def test_a_worker_killed_in_mid_run_changes_no_verdict(numbers):
    golds = [SLOW.format(n) for n in range(30)]
    benchmark = made(numbers, golds)
    given = {f"q{n}": SLOW.format(n + n % 3) for n in range(30)}
    calm = score(benchmark, benchmark.questions, given, replicas=0)
    with QueryPool(2) as pool:
        stop = threading.Event()

        def kill() -> None:  # each of the first two workers once: what loses two workers counts as failed
            while len(pool._all) < 2 and not stop.wait(0.02):
                pass
            for worker in list(pool._all):
                if stop.wait(0.2):
                    return
                if worker.alive():
                    os.kill(worker.process.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        disturbed = score(benchmark, benchmark.questions, given, replicas=0, pool=pool)
        stop.set()
        killer.join()
    assert verdicts(disturbed) == verdicts(calm)


def test_a_run_killed_in_mid_run_can_be_done_again(numbers, tmp_path):
    program = tmp_path / "run.py"
    program.write_text(f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
import test_scoring as t
path = Path({str(numbers)!r})
benchmark = t.made(path, [t.SLOW.format(n) for n in range(24)])
print("started", flush=True)
given = {{f"q{{n}}": t.SLOW.format(n + n % 3) for n in range(24)}}
print(json.dumps(t.verdicts(t.score(benchmark, benchmark.questions, given, replicas=2))))
""")

    def start() -> subprocess.Popen:
        return subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=os.environ)

    with start() as doomed:
        assert doomed.stdout and doomed.stdout.readline() == "started\n"
        time.sleep(0.7)
        doomed.kill()
    with start() as again:
        after = again.communicate(timeout=120)[0].splitlines()[1]
    os.environ["NL2SQL_CACHE"] = str(tmp_path / "other")
    with start() as calm:
        undisturbed = calm.communicate(timeout=120)[0].splitlines()[1]
    assert json.loads(after) == json.loads(undisturbed)


def test_a_statement_that_hangs_costs_itself_only(numbers):
    from people import every_result  # the program above imports this file without its neighbours

    endless = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) SELECT count(*) FROM c"
    sql = ["SELECT 1", endless, "SELECT 2", "SELECT x", "SELECT 3"]
    with QueryPool(1) as pool:
        found = every_result(pool, numbers, sql, timeout_s=0.4)
        assert [result.error_kind for result in found] == [None, "timeout", None, "unknown_column", None]
        (worker,) = pool._all
        os.kill(worker.process.pid, signal.SIGSTOP)  # what no progress handler can interrupt
        found = every_result(pool, numbers, sql[::2], timeout_s=0.4)
        assert [result.rows for result in found] == [((1,),), ((2,),), ((3,),)]


def test_a_statement_that_kills_every_worker_is_recorded_and_the_rest_goes_on(numbers, monkeypatch):
    from nl2sql.databases.sqlite import process

    for program in map(process.WORKER.with_name, ("worker.py", "worker_batch.py", "sandbox.py")):
        source = program.read_text(encoding="utf-8").replace(
            "            alarm.on(now)\n", "            if 'deadly' in sql: os.kill(os.getpid(), 9)\n"
        )
        numbers.with_name(program.name).write_text(source, encoding="utf-8")
    deadly = numbers.with_name(process.WORKER.name)
    assert "deadly" in deadly.read_text(encoding="utf-8")
    monkeypatch.setattr(process, "WORKER", deadly)
    with QueryPool(1) as pool:
        pairs = [(-1, n, ROWS) for n in range(3)]
        sql = ["SELECT 1", "SELECT 'deadly'", "SELECT 2"]
        found = run_pairs(pool, [numbers, numbers], sql, pairs, timeout_s=5, max_rows=9)
    assert found.restarts == 2 * 2, "on each file, run twice and no more"
    kinds = [[found.results[file, n].error_kind for n in range(3)] for file in range(2)]
    assert kinds == [[None, "worker_died", None]] * 2


def test_several_files_are_one_run(numbers):
    benchmark = made(numbers, ["SELECT a FROM t", "SELECT sum(f) FROM t", "SELECT a, b FROM t"])
    gold = {q.id: q.gold[0] for q in benchmark.questions}
    files = {"gold": gold, "same": dict(gold), "other": {**gold, "q0": "SELECT b FROM t", "q2": "SELECT b, a FROM t"}}
    found = score_many(benchmark, benchmark.questions, files, replicas=2)
    for name, given in files.items():
        alone = score(benchmark, benchmark.questions, given, replicas=2)
        assert verdicts(found[name]) == verdicts(alone)
    assert [item.ex for item in found["other"].items] == [False, True, True]
    assert found["other"].items[0].cause and found["other"].failures()
    assert found["gold"].failures() == {}


def test_golds_are_executed_anew_when_the_database_changes(numbers):
    benchmark = made(numbers, ["SELECT count(*) FROM t"])
    given = {"q0": "SELECT 4"}
    assert score(benchmark, benchmark.questions, given, replicas=0).items[0].ex
    connection = sqlite3.connect(numbers)
    connection.execute("DELETE FROM t WHERE a = 1")
    connection.commit()
    connection.close()
    assert not score(benchmark, benchmark.questions, given, replicas=0).items[0].ex


def test_rules_have_their_names_in_the_metrics_and_bad_names_are_refused(numbers):
    benchmark = made(numbers, ["SELECT DISTINCT s FROM t"])
    given = {"q0": "SELECT s FROM t"}
    for rule, right in (("bag", False), ("spider", True), ("bird-set", True)):
        scores = score(benchmark, benchmark.questions, given, replicas=1, rule=rule)
        assert list(scores.metrics()) == ["VA", "EM", f"EX[{rule}]", f"TS[{rule},perturb,N=1]"]
        assert scores.items[0].ex is right
    for wrong in ({"rule": "nobody"}, {"method": "magic"}, {"replicas": numbers}):
        with pytest.raises(UsageError):
            score(benchmark, benchmark.questions, given, **wrong)


def test_ids_that_are_no_texts_are_refused(numbers):
    benchmark = made(numbers, ["SELECT count(*) FROM t"])
    with pytest.raises(UsageError, match="the id 7; ids are texts: '7'"):
        score(benchmark, benchmark.questions, {7: "SELECT 4"}, replicas=0)


def test_a_folder_of_databases_is_a_suite(numbers, tmp_path):
    folder = tmp_path / "suites" / "d"
    folder.mkdir(parents=True)
    (folder / "one.sqlite").write_bytes(numbers.read_bytes())
    connection = sqlite3.connect(folder / "one.sqlite")
    connection.execute("DELETE FROM t")
    connection.commit()
    connection.close()
    benchmark = made(numbers, ["SELECT count(*) FROM t"])
    (item,) = score(benchmark, benchmark.questions, {"q0": "SELECT 4"}, replicas=tmp_path / "suites").items
    assert item.ex and item.ts is False


@pytest.mark.parametrize(("others", "robust"), [([(5, 6)], True), ([(1, 2)], True), ([(5, 6), (1, 2)], False)])
def test_one_assignment_of_columns_has_to_fit_every_database(numbers, tmp_path, others, robust):
    folder = tmp_path / "suites" / "d"
    folder.mkdir(parents=True)
    rows = {numbers: (0.3, 0.3), **{folder / f"{n}.sqlite": row for n, row in enumerate(others)}}
    for file, row in rows.items():
        connection = sqlite3.connect(file)
        connection.executescript("DROP TABLE IF EXISTS t; CREATE TABLE t (a, b)")
        connection.execute("INSERT INTO t VALUES (?, ?)", row)
        connection.commit()
        connection.close()
    swapped = "iif(a = 1, b, iif(a = 0.3, a + 1e-12, a)), iif(a = 1, a, b)"  # where a is 1; else as they come
    benchmark = made(numbers, ["SELECT a, b FROM t"])
    given = {"q0": f"SELECT {swapped} FROM t"}
    (item,) = score(benchmark, benchmark.questions, given, replicas=tmp_path / "suites").items
    assert (item.ex, item.ts, item.ts_replicas) == (True, robust, len(others))


@pytest.mark.parametrize(
    ("prediction", "em", "ex"),
    [
        ("select A from T", True, True),
        ("SELECT b FROM t", False, False),
        ("SELECT x FROM t", False, False),
        ("SELECT a FROM t LIMIT (SELECT abs(random()) % 2)", False, None),
    ],
)
def test_exact_match_needs_no_parsing_where_the_rows_differ(numbers, prediction, em, ex):
    benchmark = made(numbers, ["SELECT a FROM t"])
    (item,) = score(benchmark, benchmark.questions, {"q0": prediction}, replicas=0).items
    assert item.em is em
    assert ex is None or item.ex is ex


def test_a_gold_whose_rows_are_random_is_still_matched_by_its_own_text(numbers):
    sql = "SELECT abs(random()) FROM t"
    benchmark = made(numbers, [sql])
    (item,) = score(benchmark, benchmark.questions, {"q0": sql.lower()}, replicas=0).items
    assert (item.em, item.ex) == (True, False)


def test_metrics_of_ones_own_stand_beside_ours(numbers):
    benchmark = made(numbers, ["SELECT a FROM t", "SELECT b FROM t"])
    fast = {"fast": lambda item: item.seconds < 60, "half": lambda item: 0.5}
    scores = score(benchmark, benchmark.questions, {"q0": "SELECT a FROM t"}, replicas=0, metrics=fast)
    assert (scores.metrics()["fast"].value, scores.metrics()["half"].value) == (1.0, 0.5)
    assert scores.metrics({"long": lambda item: len(item.sql) > 99})["long"].value == 0
    report = scores.to_dict()
    assert report["by_feature"]["joins"]["0"]["VA"]["n"] == 2
    with pytest.raises(UsageError, match="VA"):
        score(benchmark, benchmark.questions, {}, replicas=0, metrics={"VA": lambda item: True})


@pytest.mark.parametrize("databases", [1, 4, 30])
@pytest.mark.parametrize("values", [[0.1] + [0.0] * 29, [0.99] * 28 + [0.5, 1.0], [0.5]])
def test_an_interval_of_points_stays_between_0_and_1_and_has_a_width(values, databases):
    names = [f"d{n % databases}" for n in range(len(values))]
    items = [ItemScore(str(n), name, "", va=True, em=True, ex=True, ts=None) for n, name in enumerate(names)]
    interval = Scores(items, extra={"points": lambda item: values[int(item.id)]}).metrics()["points"]
    assert 0 <= interval.low < interval.value < interval.high <= 1


@pytest.mark.parametrize(
    ("sql", "free"),
    [
        ("SELECT a FROM t", True),
        ("SELECT a, count(*) FROM t GROUP BY a ORDER BY count(*)", True),
        ("SELECT a, count(*) FROM t GROUP BY b", False),
        ("SELECT a, max(b) FROM t", False),
        ("SELECT a FROM t LIMIT 1", False),
        ("SELECT a FROM t ORDER BY b", False),
        ("SELECT a FROM t WHERE b = (SELECT b FROM t)", False),
        ("SELECT a FROM t WHERE b = (SELECT max(b) FROM t)", True),
        ("SELECT group_concat(s) FROM t", False),
        ("SELECT a FROM t WHERE b IN (SELECT b FROM t LIMIT 2)", False),
        ("SELECT row_number() OVER () FROM t", False),
        ("SELECT count(*), max(b) FROM t JOIN u ON (t.a = u.a) WHERE s IN ('x', 'y') AND (b > 1 OR NOT (b < 0))", True),
        ("SELECT count(*), b FROM t", False),
        ("SELECT max(a) FROM t WHERE b = (SELECT b FROM u)", False),
        ("SELECT total(a), json_group_array(a) FROM t", False),
        ("SELECT json_group_array(a) FROM t", False),
        ("SELECT json_group_object(a, b) FROM t", False),
        ("SELECT sum(a), avg(b), min(b) FROM t", True),
        ("SELECT round(avg(a), 2), count(DISTINCT b) FROM t", True),
        ("SELECT median(a) FROM t", False),
        ("SELECT DISTINCT s COLLATE NOCASE FROM t", False),
        ("SELECT max(s COLLATE NOCASE) FROM t", False),
        ("SELECT count(*), max(s collate nocase) FROM t", False),
        ("SELECT s COLLATE NOCASE FROM t UNION SELECT s FROM u", False),
        ("SELECT random() FROM t", False),
        ("SELECT a FROM t WHERE abs(random()) > 5", False),
        ("SELECT a FROM t WHERE rowid < 3", False),
        ("not sql", False),
        ("SELECT max(a, b), count(*) FROM t", False),  # a plain function of one row beside an aggregate
        ("SELECT max(a, b) FROM t", True),
        ("SELECT sum(max(a, b)) FROM t", True),
    ],
)
def test_what_cannot_rest_on_the_order_of_rows_is_proved(sql, free):
    assert order_free(sql) is free


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('SELECT "a" FROM t', "SELECT a FROM t"),
        ('SELECT [order] FROM t WHERE s = "x"', "SELECT `order` FROM t WHERE s = 'x'"),
        ("SELECT a FROM t ORDER BY a DESC", "SELECT a FROM t ORDER BY a ASC"),
        ("SELECT a FROM t ORDER BY a ASC LIMIT 1", "select  A from t ORDER BY a limit 1 -- x"),
        ('SELECT "desc" FROM t GROUP BY "desc"', "SELECT desc FROM t GROUP BY desc"),
        ("SELECT a FROM t WHERE s = 'x'", "SELECT a FROM t WHERE s = 'y'"),
        ('SELECT "a" FROM t ORDER BY "a" DESC', "SELECT a FROM t ORDER BY a DESC"),
        ("SELECT a FROM t ORDER BY `a` DESC, [b] DESC LIMIT 1", "SELECT a FROM t ORDER BY a DESC, b desc LIMIT 1"),
        ("SELECT a FROM t ORDER BY s = 'x' DESC", 'SELECT a FROM t ORDER BY s = "x" DESC'),
        ("SELECT count(*)DESC FROM t", "SELECT count(*) AS n FROM t"),
    ],
)
def test_the_quick_look_at_two_texts_says_what_the_parsed_comparison_says(one, other):
    assert same_text(one, other) == same_text(other, one) == exact_match(one, other)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_ctrl_c_ends_the_command_at_once_with_one_line_and_no_process_left(numbers, tmp_path):
    folder = tmp_path / "benchmark"
    (folder / "databases" / "d").mkdir(parents=True)
    (folder / "databases" / "d" / "d.sqlite").write_bytes(numbers.read_bytes())
    slow = SLOW + " AND (SELECT count(*) FROM n, n, n) > 0"
    items = [{"question": "?", "query": slow.format(n), "db_id": "d", "id": f"q{n}"} for n in range(9)]
    (folder / "questions.json").write_text(json.dumps(items))
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"id": i["id"], "sql": i["query"]}) for i in items))
    command = [sys.executable, "-m", "nl2sql.cli", "score", "-b", str(folder), "-p", str(folder / "p.jsonl")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as run:
        workers: list[int] = []
        while not workers:
            time.sleep(0.2)
            workers = [
                int(pid) for f in Path(f"/proc/{run.pid}/task").glob("*/children") for pid in f.read_text().split()
            ]
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        began = time.monotonic()
        said = run.communicate(timeout=30)
    assert (run.returncode, said) == (130, ("", "error: interrupted; nothing was scored\n"))
    assert time.monotonic() - began < 10, "half a second on an idle machine"
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def test_ctrl_c_while_threads_are_being_started_stays_ctrl_c() -> None:
    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # still in the first Thread.start

    before = sys.getswitchinterval()
    sys.setswitchinterval(1.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(in_threads([interrupt, interrupt], 2, threading.Event()))
    finally:
        sys.setswitchinterval(before)
