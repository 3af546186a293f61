"""What a person meets at a terminal: one line for each mistake, colour, helps that are not cut, Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import programs
import pytest
import typer

from nl2sql.cli import app
from nl2sql.cli.evaluate import EVAL_OPTIONS

CLI = [sys.executable, "-m", "nl2sql.cli"]
MISTAKES = [
    ("evl", "Did you mean 'eval'? See: nl2sql --help"),
    ("--nothing", "No such option: --nothing; see: nl2sql --help"),
    ("report", "Missing argument 'RUN'; see: nl2sql report --help"),
    ("eval packaged", "unexpected extra argument(s) (packaged); see: nl2sql eval --help"),
    ("eval --constrain all", "'all' is not one of 'none', 'action', 'sql', 'plain'; see: nl2sql eval --help"),
    ("runs view --port 99999", "see: nl2sql runs view --help"),
    ("corpus list", "No such command 'list'; see: nl2sql corpus --help"),
    ("doctor --model x", "No such command 'doctor' here. It is: nl2sql models doctor; see: nl2sql --help"),
    ("ablate nowhere.yaml", "copy some with: nl2sql new examples"),
    ("ablate .", "name a YAML file: nl2sql ablate"),
    ("runs compare . .", "is a folder without a run in it (nl2sql runs list"),
    ("corpus bench --run nowhere", "start one with: nl2sql eval --out nowhere"),
    ("new examples file", "is a file; name a folder: nl2sql new examples"),
]


def environment(**added: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM", "COLUMNS")}
    return kept | {"TERM": "xterm"} | added


def at_a_terminal(arguments: list[str], **added: str) -> tuple[int, str]:
    """Exit code and all that a terminal of 80 columns shows."""
    ours, theirs = pty.openpty()
    done = subprocess.Popen([*CLI, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**added))
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    return done.wait(timeout=60), shown.decode()


@pytest.mark.parametrize(("words", "said"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_line_that_names_the_next_command(tmp_path: Path, words: str, said: str) -> None:
    (tmp_path / "file").write_text("")
    done = programs.command(*words.split(), cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and said in done.stderr


def test_errors_are_red_at_a_terminal_only() -> None:
    code, shown = at_a_terminal(["report", "nowhere"])
    assert code == 2 and shown.startswith("\x1b[31merror:\x1b[0m nowhere holds no run")
    for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in at_a_terminal(["report", "nowhere"], **plain)[1], plain
    piped = subprocess.run([*CLI, "report", "nowhere"], capture_output=True, text=True, env=environment())
    assert "\x1b" not in piped.stderr


def test_helps_are_not_cut_at_80_columns() -> None:
    code, shown = at_a_terminal([], COLUMNS="80")
    assert code == 0 and max(map(len, shown.splitlines())) <= 80
    listed = shown.split("Commands:")[1]
    assert "..." not in listed and re.search(r"report\s+Write the report of one or several runs", listed)
    assert len(re.findall(r"^  [a-z]+ ", listed, re.MULTILINE)) <= 12


def test_a_group_without_a_command_is_no_success() -> None:
    done = subprocess.run([*CLI, "runs"], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stdout) == (2, "") and "List the runs in a folder" in done.stderr


def test_the_help_of_eval_has_five_groups_and_the_rest_with_help_all() -> None:
    usual, every = (
        subprocess.run([*CLI, "eval", name], capture_output=True, text=True, env=environment()).stdout
        for name in ("--help", "--help-all")
    )
    titles = ["Questions", "Agent", "Model", "Scoring", "Run"]
    assert all(re.findall(r"^(\w+):$", text, re.MULTILINE) == titles for text in (usual, every))
    options = {name for text in (usual, every) for name in re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)}
    shown = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", usual, re.MULTILINE))
    assert {"--model", "--out", "--help-all"} < shown and {"--address", "--engine"} <= options - shown
    given = {parameter.name for parameter in typer.main.get_command(app).commands["eval"].params}
    named = {name for parts in EVAL_OPTIONS.values() for part in parts for name in part.split()}
    assert given == named, "each option stands in one of the groups"


def test_ctrl_c_in_ask_is_one_line(tmp_path: Path) -> None:
    running = subprocess.Popen(
        [*CLI, "ask", "-", "--db", "packaged:scale_models"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env=environment(PYTHONUNBUFFERED="1"),
    )  # fmt: skip
    assert running.stdin is not None and running.stderr is not None
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(timeout=8)  # it waits for the question
    running.send_signal(signal.SIGINT)
    out, errors = running.communicate(timeout=60)
    assert running.returncode == 130 and out == ""
    assert errors == "interrupted; what a run or a store held before is kept\n"
