"""scripts/record_terminal.py shows what a person sees: each line once, rewritten ones as they stood, no colours."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from record_terminal import lines

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "record_terminal.py"
NL2SQL = [sys.executable, "-m", "nl2sql.cli"]
SCREENS = [
    ("a line in two pieces", [(1, "one "), (2, "line\r\n")], ["1.0 one line"]),
    ("several lines at once", [(1, "a\r\n\r\nb\r\n")], ["1.0 a", "1.0 b"]),
    ("a line without an end", [(1, "a\r\nb")], ["1.0 a", "1.0 b"]),
    ("a status line that goes away", [(1, "loading"), (2, "\r\x1b[K"), (3, "done\r\n")], ["1.0 loading", "3.0 done"]),
    ("one that stood too short", [(1, "loading"), (1.1, "\r\x1b[Kdone\r\n")], ["1.1 done"]),
    ("one that is replaced within a write", [(1, "soon"), (2, "\r\x1b[Klate\r\n")], ["1.0 soon", "2.0 late"]),
    ("a bar", [(n / 10, f"\r{n}/9 {'#' * n}") for n in range(1, 10)] + [(2, "\r\n")], ["0.9 9/9 #########"]),
    ("a shorter text over a longer one", [(1, "abcdef"), (1.1, "\rxy\r\n")], ["1.1 xycdef"]),
    ("a step back", [(1, "ab\b\bcd\r\n")], ["1.0 cd"]),
    ("colours, a title, a bell", [(1, "\x1b[1;31mred\x1b[0m\x1b]0;title\x07\x07 text\r\n")], ["1.0 red text"]),
    ("a control sequence in two pieces", [(1, "red\x1b[3"), (2, "1m text\r\n")], ["1.0 red text"]),
]


@pytest.mark.parametrize(("written", "seen"), [case[1:] for case in SCREENS], ids=[case[0] for case in SCREENS])
def test_what_is_written_is_reduced_to_what_is_seen(written: list[tuple[float, str]], seen: list[str]) -> None:
    assert [f"{seconds:.1f} {line}" for seconds, line in lines(written, every=0.3)] == seen


def record(*command: str, cwd: Path) -> tuple[int, list[tuple[float, str]], str]:
    """Exit code, the lines with their seconds, and the errors."""
    done = subprocess.run([sys.executable, str(SCRIPT), *command], cwd=cwd, capture_output=True, text=True, timeout=120)
    found = [re.fullmatch(r" *(\d+\.\d)  (.*)", line) for line in done.stdout.splitlines()]
    assert all(found), done.stdout
    return done.returncode, [(float(line[1]), line[2]) for line in found if line], done.stderr


def test_a_program_is_recorded_at_a_terminal_with_its_exit_code(tmp_path: Path) -> None:
    program = "import sys, time; print(sys.stdout.isatty()); time.sleep(1); print('late'); sys.exit(3)"
    code, seen, _ = record(sys.executable, "-c", program, cwd=tmp_path)
    assert code == 3 and [line for _, line in seen] == ["True", "late"]
    assert 0.9 <= seen[1][0] - seen[0][0] < 60


def test_each_step_of_ask_stands_on_a_line_of_its_own(tmp_path: Path) -> None:
    reply = {"on_exhausted": "repeat", "replies": {"*": ["SELECT count(*) FROM customers"]}}
    (tmp_path / "script.json").write_text(json.dumps(reply), encoding="utf-8")
    given = ["--db", "packaged:scale_models", "--model", "scripted:script.json", "--controller", "react", "--trace"]
    code, seen, errors = record("--every", "0", *NL2SQL, "ask", "How many?", *given, cwd=tmp_path)
    assert code == 0, errors
    shown = [line for _, line in seen]
    steps = [line for line in shown if re.search(r"step \d+ +\| ", line)]
    assert len(steps) > 3 and all(line.startswith("step ") for line in steps)  # not behind a status line
    assert [line for line in shown if line.startswith("SELECT ")]


def test_a_program_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    for given in ([], ["no-such-program"]):
        code, seen, errors = record(*given, cwd=tmp_path)
        assert code == 2 and not seen and len(errors.strip().splitlines()) == 2 and "Traceback" not in errors
