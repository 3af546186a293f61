"""``nl2sql runs compare`` as a user types it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from nl2sql.cli.score import compare_command
from nl2sql.errors import UsageError

app = typer.Typer()
app.command("compare")(compare_command)

GOLDS = [
    "SELECT name FROM customers",
    "SELECT count(*) FROM orders",
    "SELECT max(total) FROM orders",
    "SELECT c.name FROM customers c JOIN orders o ON c.customer_id = o.customer_id ORDER BY o.total DESC LIMIT 1",
    "SELECT city FROM customers WHERE 0",
]


@pytest.fixture
def folder(tmp_path, shop, monkeypatch):
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NL2SQL_BENCHMARKS", str(tmp_path))
    root = tmp_path / "toy"
    (root / "databases").mkdir(parents=True)
    shutil.copy(shop, root / "databases" / "shop.sqlite")
    questions = [{"question": sql, "query": sql, "db_id": "shop", "split": "dev"} for sql in GOLDS]
    questions[4]["gold_rows"] = 0
    (root / "questions.json").write_text(json.dumps(questions))
    return root


@pytest.fixture
def files(tmp_path):
    """A: the first two right, one blank. B: the last right, the others wrong in three ways."""
    a = tmp_path / "a.sql"
    a.write_text(f"{GOLDS[0]}\tshop\n{GOLDS[1]}\tshop\nSELECT min(total) FROM orders\tshop\n\tshop\n\tshop\n")
    b = tmp_path / "run" / "predictions.jsonl"
    b.parent.mkdir()
    sql = ["SELECT name FROM customer", "SELECT count(*) FROM orders WHERE total > 5", "SELECT 4", GOLDS[3]]
    b.write_text("".join(json.dumps({"id": f"toy-{n}", "sql": one}) + "\n" for n, one in enumerate(sql) if n != 2))
    return a, b.parent


def run(*args):
    return CliRunner().invoke(app, [*map(str, args), "--timeout", "5"], catch_exceptions=False)


def test_json_holds_tests_ids_groups_and_moved_causes(folder, files):
    report = json.loads(run(*files, "--benchmark", "toy", "--split", "dev", "--replicas", 2, "--json").stdout)
    assert (report["n"], report["left_out"], report["metric"]) == (4, {"gold_rows=0": 1}, "EX[bag]")
    assert set(report["metrics"]) == {"VA", "EM", "EX[bag]", "TS[bag,perturb,N=2]"}
    found = report["metrics"]["EX[bag]"]
    assert (found["a"], found["b"], found["n"], found["p"]) == (0.5, 0.25, 4, 1.0)
    assert (found["wins"], found["losses"]) == (["toy-0", "toy-1"], ["toy-3"])
    assert report["groups"]["joins"] == {
        "0": {"n": 3, "a": 2 / 3, "b": 0.0, "wins": 2, "losses": 0},
        "1": {"n": 1, "a": 0.0, "b": 1.0, "wins": 0, "losses": 1},
    }
    assert set(report["groups"]) == {"hardness", "joins", "nesting", "set_operation", "grouping", "ordering"}
    moved = {(move["a"], move["b"]): move["ids"] for move in report["moved"]}
    assert moved == {
        ("right", "invalid:unknown_table"): ["toy-0"],
        ("right", "filter_value"): ["toy-1"],
        ("grouping_aggregate", "blank"): ["toy-2"],
        ("blank", "right"): ["toy-3"],
    }
    assert report["failures_a"] == {"grouping_aggregate": 1, "blank": 1}
    assert report["files"]["B"]["missing"] == ["toy-2"]


def test_the_table_names_wins_losses_and_causes(folder, files):
    shown = run(*files, "-b", "toy", "--show", 1).stdout
    for text in (
        "wins (only A is right): 2\n  toy-0, ... 1 more",
        "losses (only B is right): 1\n  toy-3",
        "blank -> right: 1 (toy-3)",
        "missing: 1 (toy-2)",
        "left out: 1 gold_rows=0",
        "ordering order+limit",
    ):
        assert text in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("EX[bag] ") and " by" not in line]
    assert line.split() == ["EX[bag]", "4", "50.0", "25.0", "+25.0", "2", "1", "1", "1"]


def test_a_file_against_itself_moves_nothing(folder, files):
    report = json.loads(run(files[0], files[0], "-b", "toy", "--json").stdout)
    assert report["moved"] == [] and report["metrics"]["EX[bag]"]["p"] == 1.0
    assert report["failures_a"] == report["failures_b"]


def test_another_rule_and_metric_can_be_named(folder, files):
    report = json.loads(run(*files, "-b", "toy", "--rule", "bird-set", "--metric", "VA", "--json").stdout)
    assert report["metric"] == "VA" and "EX[bird-set]" in report["metrics"]
    with pytest.raises(UsageError, match=r"no metric 'XX'; one of VA, EM, EX\[bag\]"):
        run(*files, "-b", "toy", "--metric", "XX")
    assert json.loads(run(*files, "-b", "toy", "--metric", "EX", "--json").stdout)["metric"] == "EX[bag]"


def run_folder(path, ids, **plan):
    path.mkdir()
    lines = [json.dumps({"id": f"toy-{n}", "sql": GOLDS[n]}) for n in ids]
    (path / "predictions.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (path / "manifest.json").write_text(
        json.dumps({"format": 1, "key": "k", "plan": {"benchmark": "toy", **plan}, "config": {}})
    )
    return path


def test_two_runs_are_compared_on_the_questions_that_both_were_asked(folder, tmp_path):
    a, b = run_folder(tmp_path / "a", [0, 1, 2]), run_folder(tmp_path / "b", [2, 3], split="dev")
    report = json.loads(run(a, b, "--json").stdout)
    found = report["metrics"]["EX[bag]"]
    assert (found["n"], found["a"], found["b"], found["wins"], found["losses"]) == (1, 1.0, 1.0, [], [])
    assert report["files"]["A"]["missing"] == report["files"]["B"]["surplus"] == []
    assert "2 question(s) of A that the other was not asked are left out" in report["files"]["A"]["warnings"]


def test_runs_that_share_no_question_or_benchmark_are_refused(folder, tmp_path):
    a, b, c = (run_folder(tmp_path / name, ids, **plan) for name, ids, plan in RUNS)
    with pytest.raises(UsageError, match="share no question; compare runs over the same split"):
        run(a, b)
    with pytest.raises(UsageError, match=r"was run on toy and .* on packaged; .*--benchmark NAME"):
        run(a, c)


RUNS = [("a", [0, 1], {}), ("b", [2, 3], {}), ("c", [0, 1], {"benchmark": "packaged"})]


def test_a_file_for_other_questions_is_refused(folder, files, tmp_path):
    short = tmp_path / "short.sql"
    short.write_text("SELECT 1\n")
    with pytest.raises(UsageError, match="1 lines for 5 questions"):
        run(files[0], short, "-b", "toy")


def test_help_has_examples_and_loads_nothing_heavy():
    program = f"""
import sys, types
package = types.ModuleType("nl2sql.cli")  # this command alone, whatever the others import
package.__path__ = [{str(Path(sys.modules["nl2sql.cli.score"].__file__).parent)!r}]
sys.modules["nl2sql.cli"] = package
import typer
from nl2sql.cli.score import compare_command
app = typer.Typer()
app.command()(compare_command)
try:
    app(["--help"])
finally:
    heavy = ("torch", "transformers", "datasets", "pandas", "scipy", "sqlglot", "nl2sql.eval")
    print("heavy:", [m for m in heavy if m in sys.modules], file=sys.stderr)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ, check=False
    )
    assert "heavy: []" in result.stderr and "nl2sql runs compare runs/react" in result.stdout


@pytest.mark.parametrize(("command", "what"), [("runs compare", "compared"), ("score", "scored")])
def test_ctrl_c_is_one_line_and_exit_code_130(folder, files, command, what):
    program = """
import nl2sql.eval
from nl2sql.eval import scoring
def interrupted(*args, **options):
    raise KeyboardInterrupt
nl2sql.eval.score_many = scoring.score_many = interrupted
from nl2sql.cli import main
main()
"""
    given = [*command.split(), *map(str, files)] if command == "runs compare" else [command, "-p", str(files[0])]
    done = subprocess.run(
        [sys.executable, "-c", program, *given, "-b", "toy"], capture_output=True, text=True, env=os.environ
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == f"error: interrupted; nothing was {what}\n"
