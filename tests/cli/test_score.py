"""``nl2sql score`` and ``nl2sql data check`` as a user types them."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from nl2sql.cli.data import check_data
from nl2sql.cli.score import score_command
from nl2sql.errors import BenchmarkError, UsageError

app = typer.Typer()
app.command("score")(score_command)
app.command("check")(check_data)


@pytest.fixture
def folder(tmp_path, shop, monkeypatch):
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NL2SQL_BENCHMARKS", str(tmp_path))
    root = tmp_path / "toy"
    (root / "databases").mkdir(parents=True)
    shutil.copy(shop, root / "databases" / "shop.sqlite")
    golds = ["SELECT name FROM customers", "SELECT count(*) FROM orders", "SELECT city FROM customers WHERE 0"]
    questions = [{"question": sql, "query": sql, "db_id": "shop", "split": "dev"} for sql in golds]
    questions[2]["gold_rows"] = 0
    (root / "questions.json").write_text(json.dumps(questions))
    return root


def predictions(path: Path, **by_id: str) -> str:
    lines = [json.dumps({"id": id_.replace("_", "-"), "sql": sql}) for id_, sql in by_id.items()]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def files(tmp_path):
    good = {"toy_0": "SELECT name FROM customers", "toy_1": "SELECT count(*) FROM orders", "toy_2": "SELECT 1"}
    return predictions(tmp_path / "good.jsonl", **good), predictions(
        tmp_path / "bad.jsonl", toy_1="SELECT 4", far="SELECT 1"
    )


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def test_json_has_the_promised_shape(folder, files):
    report = json.loads(run("score", "--benchmark", "toy", "--predictions", files[0], "--replicas", 2, "--json").stdout)
    assert report["n"] == 2 and report["left_out"] == {"gold_rows=0": 1}
    assert set(report["metrics"]) == {"VA", "EM", "EX[bag]", "TS[bag,perturb,N=2]"}
    assert report["metrics"]["EX[bag]"]["value"] == 1.0
    assert set(report["by_hardness"]) == {"easy"}
    assert {"id", "db_id", "sql", "va", "em", "ex", "ts", "error", "error_kind"} <= set(report["items"][0])
    assert report["missing"] == report["surplus"] == []  # a prediction for an item left out is no surplus


@pytest.mark.parametrize("flags", [("--predictions", 0, 1), ("-p", 0, "-p", 1)])
def test_two_files_are_compared(folder, files, flags):
    given = [files[flag] if isinstance(flag, int) else flag for flag in flags]
    report = json.loads(run("score", "-b", folder, *given, "--replicas", 3, "--json").stdout)
    assert report["paired"]["EX[bag]"] == {"wins": 1, "losses": 0, "n": 2, "p": 1.0, "p_databases": 1.0}
    assert report["paired"]["TS[bag,perturb,N=3]"]["wins"] == 2
    second = report["runs"][1]
    assert (second["missing"], second["surplus"]) == (["toy-0"], ["far"])


def test_the_table_tells_what_was_missing_and_left_out(folder, files):
    shown = run("score", "-b", "toy", "-p", *files, "--replicas", 0).stdout
    for text in ("EX[bag]", "without a prediction: 1 (toy-0)", "surplus, ignored: 1 (far)", "left out: 1 gold_rows=0"):
        assert text in shown
    assert "1 wins, 0 losses" in shown and "TS" not in shown.split("note")[0]


def test_one_statement_per_line_is_read(folder, tmp_path):
    file = tmp_path / "predicted.sql"
    file.write_text("SELECT name FROM customers\tshop\nSELECT 4\tshop\nSELECT 1\tshop\n")
    report = json.loads(run("score", "-b", "toy", "-p", file, "--replicas", 0, "--json").stdout)
    assert report["metrics"]["EX[bag]"]["value"] == 1.0


def test_a_missing_file_is_a_usage_error(folder):
    with pytest.raises(UsageError, match="does not exist"):
        run("score", "-b", "toy", "-p", "nothing.jsonl")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--timeout", "inf"), "eval.timeout_s=inf"),
        (("--timeout", "1e7"), "eval.timeout_s=10000000.0"),
        (("--replicas", ""), "eval.replicas=''"),
    ],
)
def test_bounds_that_no_gold_could_be_run_in_are_a_usage_error(folder, files, option, said):
    with pytest.raises(UsageError, match=said):
        run("score", "-b", "toy", "-p", files[0], "--replicas", 0, *option)


def test_a_benchmark_without_anything_to_score_says_so(folder, files):
    questions = json.loads((folder / "questions.json").read_text())
    (folder / "questions.json").write_text(json.dumps([{**q, "gold_error": True} for q in questions]))
    with pytest.raises(BenchmarkError, match=r"no question to score; left out: \{'gold_error': 3\}"):
        run("score", "-b", "toy", "-p", files[0])


def test_check_data_passes_a_sound_benchmark(folder):
    result = run("check", "--benchmark", "toy")
    assert (result.exit_code, result.stdout.strip()) == (0, "2 of 2 items are sound; passed over: 1 gold_rows=0")


def test_check_data_names_every_failing_item(folder):
    questions = json.loads((folder / "questions.json").read_text())
    questions[0]["query"] = "SELECT name FROM customers LIMIT 1"
    questions[1]["query"] = "SELECT count(* FROM orders"
    (folder / "questions.json").write_text(json.dumps(questions))
    result = run("check", "-b", "toy")
    assert result.exit_code == 1
    first, second, last = result.stdout.strip().splitlines()
    assert first.startswith("toy-0 (shop): the answer depends on the order of rows")
    assert second.startswith("toy-1 (shop): does not run") and last.startswith("0 of 2")
    report = json.loads(run("check", "-b", "toy", "--split", "dev", "--json").stdout)
    assert (report["n"], report["failing"], {f["id"] for f in report["failed"]}) == (2, 2, {"toy-0", "toy-1"})


def test_new_golds_are_scored_whatever_was_wrong_with_the_old_ones(folder, tmp_path):
    questions = json.loads((folder / "questions.json").read_text())
    questions[0] |= {"query": "SELECT nothing", "gold_error": True}
    questions[1]["time_dependent"] = True
    (folder / "questions.json").write_text(json.dumps(questions))
    gold = tmp_path / "gold.sql"
    gold.write_text("SELECT name FROM customers\tshop\nSELECT count(*) FROM orders\tshop\nSELECT 7\tshop\n")
    file = predictions(tmp_path / "p.jsonl", toy_0="SELECT name FROM customers", toy_1="SELECT 4", toy_2="SELECT 7")
    report = json.loads(run("score", "-b", "toy", "-p", file, "--gold", gold, "--replicas", 0, "--json").stdout)
    assert (report["n"], report["left_out"], report["metrics"]["EX[bag]"]["value"]) == (3, {}, 1.0)


@pytest.mark.parametrize(("module", "command"), [("score", "score_command"), ("data", "check_data")])
def test_help_is_quick_and_loads_nothing_heavy(module, command):
    program = f"""
import sys, types
package = types.ModuleType("nl2sql.cli")  # this command alone, whatever the others import
package.__path__ = [{str(Path(sys.modules["nl2sql.cli.score"].__file__).parent)!r}]
sys.modules["nl2sql.cli"] = package
import typer
from nl2sql.cli.{module} import {command}
app = typer.Typer()
app.command()({command})
try:
    app(["--help"])
finally:
    heavy = ("torch", "transformers", "datasets", "pandas", "scipy", "sqlglot", "nl2sql.eval")
    print("heavy:", [m for m in heavy if m in sys.modules], file=sys.stderr)
"""
    began = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ, check=False
    )
    assert "heavy: []" in result.stderr and "--benchmark" in result.stdout
    assert time.perf_counter() - began < 5  # half a second on an idle machine


def test_only_answered_leaves_out_what_a_file_does_not_answer(folder, files):
    _, bad = files
    asked = ["score", "-b", "toy", "--split", "dev", "--replicas", "0", "--json", "-p", bad]
    whole, answered = (json.loads(run(*asked, *more).stdout) for more in ([], ["--only-answered"]))
    assert (whole["n"], whole["missing"]) == (2, ["toy-0"])
    assert (answered["n"], answered["missing"], answered["left_out"]["unanswered"]) == (1, [], 1)
