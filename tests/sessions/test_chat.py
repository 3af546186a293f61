"""``nl2sql chat`` over a pipe: answers, commands, stores, Ctrl-C, and what is typed wrongly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import programs
import pytest
import servers
from session_stores import NO_REDIS

from nl2sql.cli.answer_text import StatusLine
from nl2sql.cli.chat import Shown
from nl2sql.errors import Cancelled

CHAT = [sys.executable, "-m", "nl2sql.cli", "chat"]
HOW_MANY, IN_BERN = "How many customers are there?", "What about those in Bern?"
REPLIES = {
    HOW_MANY: {"*": [" COUNT(*) FROM customers"]},
    IN_BERN: {"*": [" COUNT(*) FROM customers WHERE city = 'Bern'"]},
    "*": {"*": [" nam FROM customers"]},
}
LOOP = """
import time
from pathlib import Path
from nl2sql.agents.record import Episode
from nl2sql.errors import Cancelled

def loop(question, resources, config):
    if "wait" in question.text:
        Path("begun").touch()
        if resources.cancel.wait(100):
            raise Cancelled("given up")
    return Episode(question, "", sql="SELECT 1 AS n", columns=("n",), rows=((1,),))
"""


@pytest.fixture
def arguments(shop: Path, tmp_path: Path) -> list[str]:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": REPLIES}))
    options = ["--controller", "single_shot", "-c", "session.resolve=concat", "--no-cache"]
    return ["--db", str(shop), "--model", f"scripted:{script}", *options]


def chat(arguments: list[str], typed: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return programs.command("chat", *arguments, cwd=cwd, stdin=typed)


def test_two_questions_over_a_pipe_are_two_answers(arguments: list[str], tmp_path: Path) -> None:
    done = chat(arguments, f"{HOW_MANY}\n{IN_BERN}\n/sql", tmp_path)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("-- single_shot")]
    assert done.returncode == 0 and done.stderr == ""
    assert lines[:3] == ["SELECT COUNT(*) FROM customers;", "COUNT(*)", "3"]
    assert lines[3] == f"-- understood as: {HOW_MANY} {IN_BERN}" and lines[4].startswith("-- a follow-up by ")
    in_bern = "SELECT COUNT(*) FROM customers WHERE city = 'Bern';"
    assert lines[5:] == [in_bern, "COUNT(*)", "2", in_bern]


def test_the_commands(arguments: list[str], tmp_path: Path) -> None:
    typed = ["/sql", "/history", "/sessions", HOW_MANY, "", "/history", "/export out.json", "/export out.json"]
    typed += ["/export", "/export no/such.json", "/sessions", "/nope", "/reset", "/history", "/help", "/quit", HOW_MANY]
    done = chat(arguments, "\n".join(typed), tmp_path)
    text = done.stdout
    assert done.returncode == 0 and done.stderr == ""
    assert text.startswith("(no query yet)\n(no turns yet)\n(no sessions yet)\n")
    assert f"1. {HOW_MANY}\n   SELECT COUNT(*) FROM customers;\n   1 rows, columns: COUNT(*)\n" in text
    assert "error: out.json exists; type /export with another name\n" in text
    assert "error: export to which file? type /export FILE.json\n" in text
    assert "error: no/such.json cannot be written: No such file or directory; type /export with another name\n" in text
    assert "(this one)\n" in text and "error: no command /nope; there are /history" in text
    after = text.partition("a new session: ")[2]
    assert "(no turns yet)" in after and "/export FILE" in after and "COUNT" not in after
    (turn,) = json.loads((tmp_path / "out.json").read_text())
    assert list(turn) == ["user_query", "resolved_query", "sql", "results_summary", "timestamp"]


def test_a_failure_is_said_and_the_next_question_is_answered(arguments: list[str], tmp_path: Path) -> None:
    done = chat(arguments, f"What?\n{'x' * 200_000}\n{HOW_MANY}\n/history\n", tmp_path)
    assert done.returncode == 0 and "no such column: nam" in done.stdout
    assert "error: the question has 200,000 characters" in done.stdout
    assert done.stdout.count("1. ") == 1 and f"1. {HOW_MANY}" in done.stdout


def test_answers_and_commands_as_lines_of_json(arguments: list[str], tmp_path: Path) -> None:
    done = chat([*arguments, "--json"], f"{HOW_MANY}\n{IN_BERN}\n/sql\n/nope\n", tmp_path)
    first, second, sql, wrong = map(json.loads, done.stdout.splitlines())
    assert first["rows"] == [[3]] and first["flags"]["session"]["is_followup"] is False
    assert second["flags"]["session"]["resolved_query"] == f"{HOW_MANY} {IN_BERN}"
    assert sql == {"command": "/sql", "sql": second["sql"]} and "no command /nope" in wrong["error"]


def test_a_session_in_a_file_goes_on_later(arguments: list[str], tmp_path: Path) -> None:
    kept = [*arguments, "--store", "chats.db"]
    first = chat(kept, HOW_MANY, tmp_path)
    name = first.stderr.split()[2].rstrip(";")
    assert "to go on with it: --store chats.db --session" in first.stderr and len(name) == 32
    second = chat([*kept, "--session", name], f"{IN_BERN}\n/sessions", tmp_path)
    assert f"-- understood as: {HOW_MANY} {IN_BERN}" in second.stdout and f"{name} (this one)" in second.stdout


def test_the_password_of_a_store_is_not_shown(arguments: list[str], tmp_path: Path) -> None:
    with servers.redis("--requirepass", "opensesame") as server:
        if server is None:
            pytest.skip(NO_REDIS)
        address = server[0].replace("//", "//:opensesame@")
        done = chat([*arguments, "--store", address], HOW_MANY, tmp_path)
    assert "to go on with it: --store redis://:***@" in done.stderr and "opensesame" not in done.stderr + done.stdout


def test_ctrl_c_gives_up_the_question_and_not_the_program(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "script.json").write_text('{"replies": {"*": ["x"]}}')
    command = [*CHAT, "--db", str(shop), "--model", "scripted:script.json", "--controller", "loop.py:loop"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=tmp_path, text=True, **pipes)  # type: ignore[call-overload]
    process.stdin.write("Please wait\n")
    process.stdin.flush()
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate("One?\n/history\n", timeout=120)
    assert process.returncode == 0 and "the question was given up" in err
    assert "SELECT 1 AS n" in out and "1. One?" in out and "Please wait" not in out


def test_ctrl_c_while_the_question_is_being_started_gives_it_up() -> None:
    class Slow:
        given_up = False

        def ask(self, text: str, sink: object, cancel: threading.Event) -> None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # still in Thread.start
            self.given_up = cancel.wait(5)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1.0)
    try:
        slow = Slow()
        with StatusLine() as status, pytest.raises(Cancelled, match="given up"):
            Shown(slow, None, status, False)._asked("One?")  # type: ignore[arg-type]
    except KeyboardInterrupt:
        pytest.fail("Ctrl-C ended the program")
    finally:
        sys.setswitchinterval(before)
    assert slow.given_up


@pytest.mark.parametrize(
    ("wrong", "wanted"),
    [
        (["--db", "nowhere.sqlite"], "nowhere.sqlite"),
        ([], "which database?"),
        (["--db", "SHOP", "--session", "monday"], "add --store FILE"),
        (["--db", "SHOP", "--session", "../x", "--store", "s.db"], "session id '../x'; expected letters"),
        (["--db", "SHOP", "--store", "ftp://x"], "expected memory, a SQLite FILE, redis://"),
        (["--db", "SHOP", "--store", "no/such/folder/s.db"], "existing folder"),
        (["--db", "SHOP", "--store", "s.db", "--ttl", "-1"], "cannot live -1.0 seconds"),
        (["--db", "SHOP", "--controller", "nope"], "unknown controller"),
    ],
)
def test_a_wrong_argument_is_one_line(wrong: list[str], wanted: str, shop: Path, tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('{"replies": {"*": ["x"]}}')
    words = [str(shop) if word == "SHOP" else word for word in wrong]
    done = programs.command("chat", *words, "--model", "scripted:script.json", cwd=tmp_path)
    assert done.returncode == 2 and wanted in done.stderr and len(done.stderr.splitlines()) == 1 and done.stdout == ""
