"""What a new user types wrong: one clear line, exit code 2 for usage and 1 for failure, never a traceback."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import programs
import pytest

from nl2sql.cli.answer_text import FIXED

SCRIPT = {
    "on_exhausted": "repeat",
    "replies": {"*": {"react": ["Action: extract_constraints[{}]", "Action: generate_sql[{}]"], "*": ["x"]}},
}
GOOD = [
    "Action: extract_constraints[{}]",
    "Action: generate_sql[{}]",
    "SELECT COUNT(*) FROM orders WHERE status = 'shipped'",
    *(f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")),
]


@pytest.fixture
def place(tmp_path: Path, shop: Path) -> Path:
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT), encoding="utf-8")
    (tmp_path / "good.json").write_text(json.dumps({"replies": {"*": GOOD}}), encoding="utf-8")
    (tmp_path / "text.sqlite").write_text("this is no database, only text " * 50, encoding="utf-8")
    sqlite3.connect(tmp_path / "empty.sqlite").close()
    (tmp_path / "broken.yaml").write_text("react: [1, 2", encoding="utf-8")
    folder = tmp_path / "bad_gold"
    (folder / "databases" / "shop").mkdir(parents=True)
    (folder / "databases" / "shop" / "shop.sqlite").write_bytes(shop.read_bytes())
    gold = {"question": "How many?", "query": "SELECT COUNT(*) FROM nowhere", "db_id": "shop"}
    (folder / "questions.json").write_text(json.dumps([gold]), encoding="utf-8")
    (tmp_path / "corrupt.sqlite").write_bytes(shop.read_bytes()[:100] + b"\xff" * 8192)
    (tmp_path / "loop.py").write_text("def loop(q, r, c):\n    print('hello')\n    return 1\n", encoding="utf-8")
    (tmp_path / "exits.py").write_text("raise SystemExit(7)", encoding="utf-8")
    shutil.copytree(folder, tmp_path / "wrong_types")
    (tmp_path / "wrong_types" / "questions.json").write_text(json.dumps([gold | {"alt_queries": 7}]), encoding="utf-8")
    return tmp_path


ASK = ["ask", "How many?", "--model", "scripted:script.json"]
EVAL = ["eval", "--model", "scripted:script.json"]
CASES = [
    (2, ["ask", "How many?"], "which database"),
    (2, [*ASK, "--db", "missing.sqlite"], "missing.sqlite does not exist"),
    (1, [*ASK, "--db", "text.sqlite"], "not a SQLite database"),
    (1, [*ASK, "--db", "empty.sqlite"], "no tables"),
    (2, [*ASK, "--db", "."], "directory"),
    (1, [*ASK, "--db", "corrupt.sqlite"], "malformed"),
    (2, [*EVAL, "--controller", "loop.py:none"], "no function 'none'"),
    (2, [*EVAL, "--controller", "exits.py:f"], "failed on import"),
    (1, ["eval", "--benchmark", "wrong_types", "--model", "scripted:script.json"], "expected a list of texts"),
    (2, [*EVAL, "--resume", "run", "--limit", "3"], "leave out"),
    (2, ["ask", "", "--db", "shop.sqlite"], "question is empty"),
    (2, [*ASK, "--db", "shop.sqlite", "--controller", "react", "--min-confidence", "0.5"], "best or candidates"),
    (2, [*ASK, "--db", "shop.sqlite", "--min-confidence", "2"], "Invalid value"),
    (2, ["ask", "   ", "--db", "shop.sqlite"], "question is empty"),
    (2, ["ask", "why " * 12_500, "--db", "shop.sqlite", "--model", "scripted:script.json"], "shorten it"),
    (2, ["ask", "How many?", "--db", "shop.sqlite", "--model", "smolm2"], "did you mean 'smollm2-135m'"),
    (2, ["ask", "How many?", "--db", "shop.sqlite", "--model", "scripted:none.json"], "does not exist"),
    (2, [*ASK, "--db", "shop.sqlite", "--controller", "reakt"], "unknown controller 'reakt'"),
    (2, [*ASK, "--db", "shop.sqlite", "--controller", "none.py:f"], "none.py does not exist"),
    (2, [*ASK, "--db", "shop.sqlite", "-c", "react.max_step=3"], "unknown config key 'react.max_step'"),
    (
        2,
        [*ASK, "--db", "shop.sqlite", "-c", "model=x"],
        "'model' is no config key but an option of the command: --model",
    ),
    (2, [*ASK, "--db", "shop.sqlite", "-c", "react.max_steps=many"], "react.max_steps"),
    (2, [*ASK, "--db", "shop.sqlite", "-c", "react"], "not key=value"),
    (2, [*ASK, "--db", "shop.sqlite", "--config", "none.yaml"], "none.yaml does not exist"),
    (2, [*ASK, "--db", "shop.sqlite", "--config", "broken.yaml"], "cannot be read"),
    (2, [*EVAL, "--limit", "-3"], "--limit -3: expected 1 or more"),
    (2, [*EVAL, "--limit", "0"], "--limit 0"),
    (2, [*EVAL, "--limit", "three"], "Invalid value for '--limit'"),
    (2, [*EVAL, "--benchmark", "spidr"], "no benchmark 'spidr'"),
    (2, [*EVAL, "--split", "trian"], "no split 'trian'"),
    (2, [*EVAL, "--seeds", "1,b"], "--seeds '1,b'"),
    (2, [*EVAL, "--batch-size", "0"], "--batch-size 0"),
    (2, [*EVAL, "--replicas", "-1"], "eval.replicas"),
    (2, [*EVAL, "--out", "script.json"], "is a file"),
    (2, ["eval", "--resume", "nowhere"], "holds no run"),
    (2, ["runs", "replay", "nowhere"], "nowhere holds no run"),
    (2, ["runs", "check", "bad_gold"], "bad_gold holds no run"),
    (2, ["runs", "failures", "nowhere", "--out", "f.csv"], "holds no run"),
    (2, ["report", "nowhere"], "nowhere holds no run"),
    (2, ["report", "nowhere", "--out", "script.json"], "script.json exists"),
    (2, ["ablate", "none.yaml"], "none.yaml does not exist"),
    (2, ["ablate", "broken.yaml"], "cannot be read"),
    (2, ["score", "--predictions", "none.jsonl"], "none.jsonl does not exist"),
    (1, ["data", "check", "--benchmark", "bad_gold"], "no such table: nowhere"),
    (2, ["models", "pull", "gpt-17"], "gpt-17"),
    (2, ["frobnicate"], "No such command"),
]


@pytest.mark.parametrize(
    ("code", "arguments", "said"), CASES, ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None
)
def test_a_mistake_is_one_clear_line(place: Path, code: int, arguments: list[str], said: str) -> None:
    done = programs.command(*arguments, cwd=place)
    assert said in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert done.returncode == code
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 or code == 1
    assert code == 1 or done.stderr.count("\n") == 1, "one line"
    assert not (place / "runs").exists()


def test_ask_answers_with_sql_rows_and_trace(place: Path) -> None:
    done = programs.command(
        "ask",
        "How many orders were shipped?",
        "--db",
        "shop.sqlite",
        "--model",
        "scripted:good.json",
        "--controller",
        "react",
        "--json",
        cwd=place,
    )
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert answer["rows"] == [[3]] and answer["finish"] == "finish"
    assert answer["sql"].startswith("SELECT COUNT(*)") and len(answer["trace"]) == 12


@pytest.mark.model
def test_a_mended_query_of_several_lines_can_be_copied(place: Path) -> None:
    replies = {"*": ["SELECT nam\nFROM customers\nORDER BY 1"]}
    (place / "lines.json").write_text(json.dumps({"replies": replies}), encoding="utf-8")
    asked = ["--db", "shop.sqlite", "--model", "scripted:lines.json", "--controller", "single_shot"]
    result = programs.command("ask", "Names?", *asked, "-c", "single_shot.guardrails=false", cwd=place)
    assert f"{FIXED}\nSELECT name\nFROM customers\nORDER BY 1\n" in result.stdout


def test_a_name_that_is_no_path_does_not_end_a_conversation(place: Path) -> None:
    asked = ["--db", "shop.sqlite", "--model", "scripted:script.json", "--controller", "single_shot"]
    result = programs.command("chat", *asked, stdin="/export ~no such user/a.json\n/export a\0b\n/sql\n", cwd=place)
    first, second, last = result.stdout.splitlines()
    assert result.returncode == 0 and last == "(no query yet)"
    assert first.startswith("error: ~no such user/a.json is no path of a file") and "no path of a file" in second


def test_ask_on_a_terminal_answers_line_after_line(place: Path) -> None:
    command = [sys.executable, "-m", "nl2sql.cli", "ask", "--db", "shop.sqlite", "--model", "scripted:good.json"]
    typed, terminal = os.openpty()
    pipes = {"stdin": terminal, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "--controller", "react"], cwd=place, text=True, **pipes) as process:
        os.write(typed, b"How many orders were shipped?\n/sql\n\x04")
        said, _ = process.communicate(timeout=120)
    os.close(typed), os.close(terminal)
    assert process.returncode == 0 and said.count("SELECT COUNT(*) FROM orders WHERE status = 'shipped'") == 2, said


def processor_time(pid: int) -> int:
    """In clock ticks; 0 before the process has run at all."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_an_interrupt_before_there_is_anything_to_continue_says_so(place: Path) -> None:
    command = [sys.executable, "-m", "nl2sql.cli", "ask", "--db", "shop.sqlite", "--model", "scripted:good.json"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=place, text=True, **pipes) as process:  # it waits for the question
        spent = -1
        while spent != (spent := processor_time(process.pid)):  # until it computes no more: it reads
            time.sleep(2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and said == "interrupted; what a run or a store held before is kept\n"


OWN_LOOP = """
from nl2sql import Episode

def counts(question, resources, config):
    reply = resources.model.generate([{"role": "user", "content": question.text}], max_new_tokens=9)[0]
    if "fail" in question.text:
        raise ValueError("on purpose")
    return Episode(question, "counts", sql="SELECT 1 AS one", columns=("one",), rows=((1,),))
"""


def test_ask_counts_the_calls_of_ones_own_loop_and_its_exception_is_its_own(place: Path) -> None:
    (place / "own.py").write_text(OWN_LOOP, encoding="utf-8")
    arguments = ["--db", "shop.sqlite", "--model", "scripted:good.json", "--controller", "own.py:counts"]
    done = programs.command("ask", "How many?", *arguments, cwd=place)
    assert done.returncode == 0 and "-- counts: answered" in done.stdout and "1 model calls" in done.stdout
    failed = programs.command("ask", "fail", *arguments, cwd=place)
    assert failed.returncode == 1 and "-- controller: ValueError: on purpose" in failed.stdout
    assert "1 model calls" in failed.stdout and "bug" not in failed.stderr + failed.stdout


def test_ask_reads_the_question_from_standard_input(place: Path) -> None:
    arguments = ["ask", "--db", "shop.sqlite", "--model", "scripted:good.json", "--json", "--controller", "react"]
    for extra in ([], ["-"]):
        done = programs.command(*arguments, *extra, stdin="How many orders were shipped?\n", cwd=place)
        assert json.loads(done.stdout)["question"] == "How many orders were shipped?"


@pytest.mark.parametrize("table", ["order", "my table", 'quo"te', "select"])
def test_tables_whose_names_need_quotes_can_be_asked(place: Path, table: str) -> None:
    name = '"' + table.replace('"', '""') + '"'
    connection = sqlite3.connect(place / "odd.sqlite")
    connection.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, note TEXT)")
    connection.execute(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
    connection.commit()
    connection.close()
    replies = [reply.replace("orders WHERE status = 'shipped'", name) for reply in GOOD]
    (place / "odd.json").write_text(json.dumps({"replies": {"*": replies}}), encoding="utf-8")
    arguments = ["--db", "odd.sqlite", "--model", "scripted:odd.json", "--controller", "react", "--json"]
    done = programs.command("ask", "How many rows are there?", *arguments, cwd=place)
    assert json.loads(done.stdout)["rows"] == [[2]], done.stdout


def test_eval_prints_the_contract_and_a_dry_run_runs_nothing(place: Path) -> None:
    done = programs.command(*EVAL, "--limit", "3", "--out", "run", "--json", "--quiet", cwd=place)
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["n"] == 3 and report["run"] == "run"
    assert {"metrics", "usage", "control", "paired", "flips"} <= set(report)
    dry = programs.command(*EVAL, "--dry-run", "--json", cwd=place)
    assert json.loads(dry.stdout)["episodes"] == 80
    assert not (place / "runs").exists()


@pytest.mark.parametrize("group", [[], ["models"], ["data", "vizql"], ["data"], ["new"]])
def test_a_group_without_a_command_is_its_help_with_whole_sentences(group: list[str], tmp_path: Path) -> None:
    done = programs.command(*group, cwd=tmp_path)
    shown = done.stderr if group else done.stdout
    assert done.returncode == (2 if group else 0)
    assert shown.startswith("Usage:") and "..." not in shown.split("Commands:")[1]
    assert programs.command(*group, "nonsense", cwd=tmp_path).returncode == 2


def test_the_last_line_of_eval_is_a_command_that_works(place: Path) -> None:
    for options, verb in ((["--control"], "runs compare"), (["--no-control"], "runs failures")):
        done = programs.command(*EVAL, *options, "--limit", "2", "--out", f"run {verb}", "--quiet", cwd=place)
        head, _, command = done.stdout.splitlines()[-1].partition("nl2sql ")
        words = shlex.split(command)
        assert (head.strip(), " ".join(words[:2])) == ("next:", verb)
        assert programs.command(*words, cwd=place).returncode == 0
    compared = json.loads(
        programs.command("runs", "compare", "run runs compare", "run runs compare/control", "--json", cwd=place).stdout
    )
    assert compared["n"] == 2 and (compared["benchmark"], compared["split"]) == ("packaged", "quick")


def test_a_run_in_which_every_episode_failed_says_why_and_exits_1(place: Path) -> None:
    done = programs.command(
        *EVAL, "--controller", "loop.py:loop", "--limit", "2", "--out", "run", "--json", "-q", cwd=place
    )
    report = json.loads(done.stdout)  # what the controller prints is not in it
    assert done.returncode == 1
    assert "returns an Episode, not int" in report["warnings"][0]


def test_any_text_can_be_printed_and_read(place: Path) -> None:
    connection = sqlite3.connect(place / "shop.sqlite")
    connection.execute("UPDATE customers SET name = 'Zo\u00eb \U0001f600 \x1b[31m' || char(10) || 'x'")
    connection.commit()
    connection.close()
    (place / "names.json").write_text(json.dumps({"replies": {"*": ["SELECT name FROM customers"]}}), encoding="utf-8")
    ask = ["ask", "--db", "shop.sqlite", "--model", "scripted:names.json", "--controller", "single_shot"]
    command = [sys.executable, "-m", "nl2sql.cli", *ask]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(command, input=b"names caf\xe9", capture_output=True, cwd=place, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Zo\u00eb \U0001f600 \\x1b[31m\\nx" in done.stdout.decode("utf-8")


def test_a_broken_gold_is_counted_not_fatal(place: Path) -> None:
    done = programs.command(*EVAL, "--benchmark", "bad_gold", "--out", "run", "--json", "-q", cwd=place)
    assert done.returncode == 0 and json.loads(done.stdout)["metrics"]["EX[bag]"]["value"] == 0


COMMANDS = ["ask", "eval", "score", "data check", "models list", "models pull", "models info"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, tmp_path: Path) -> None:
    done = programs.command(*command.split(), "--help", cwd=tmp_path)
    assert done.returncode == 0 and f"nl2sql {command}" in done.stdout.partition("\n")[2]


HELP = """
import sys
sys.argv = ["nl2sql", "--help"]
import nl2sql.cli
try:
    nl2sql.cli.main()
except SystemExit:
    pass
heavy = ("torch", "transformers", "datasets", "pandas", "sqlglot", "scipy", "matplotlib")
print([name for name in heavy if name in sys.modules])
"""


def test_help_loads_no_heavy_library() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_terminal_sees_what_is_being_done_and_a_pipe_does_not(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"replies": {"*": ["SELECT count(*) FROM offices"]}}')
    command = [sys.executable, "-m", "nl2sql.cli", "ask", "How many offices?", "--db", "packaged:scale_models"]
    command += ["--model", f"scripted:{tmp_path / 's.json'}", "--controller", "single_shot"]
    ours, theirs = pty.openpty()
    shown = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    with contextlib.suppress(OSError):  # the end of a terminal that nobody writes to
        terminal = os.read(ours, 65536).decode()
    os.close(ours)
    assert "loading scripted:" in terminal and "step 0:" in terminal and terminal.endswith("\x1b[K")
    piped = subprocess.run(command, capture_output=True, text=True)
    assert piped.stderr == "" and piped.stdout.splitlines()[:2] == shown.stdout.splitlines()[:2]
