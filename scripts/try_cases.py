"""Run the cases of a folder of failing inputs (F01, F02, ...), and print right or wrong for each.

    python scripts/try_cases.py ../shared/cases                 every case; exit code 1 where one is wrong
    python scripts/try_cases.py ../shared/cases --only F04,F19  some of them
    python scripts/try_cases.py ../shared/cases --verbose       with what the commands printed

The folder holds ``shop.py``, which makes a database of four customers, ``serve.py MODE PORT``, a chat server of one
habit, and a folder per case. It is copied first, so nothing is written there. Every case is one command of nl2sql, of
this checkout, in a process of its own with an empty cache; ``CASES`` says what has to be printed and what may not be.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 90  # of one command
QUESTION = "Which customers live in Rome?"
ADA_AND_CAI = (r"\bAda\b", r"\bCai\b")
SHOP_ASK = ["ask", QUESTION, "--db", "shop.sqlite", "--model", "scripted:m.yaml", "--controller", "single_shot"]
SCORE = ["score", "--replicas", "0"]


@dataclass(frozen=True)
class Case:
    """One command. ``prints``, ``never``: patterns of what it has to print, and of what it may not."""

    description: str
    command: list[str]
    prints: tuple[str, ...]
    never: tuple[str, ...] = (r"Traceback", r"\bDee\b")
    code: int | None = 0  # None: any
    database: str = ""  # the folder that the shop's database is moved to
    make: bool = False  # make.py first
    serve: str = ""  # the habit of a server, which takes the place of the model's name
    typed: str = ""


def ask(description: str, **more: object) -> Case:
    return Case(description, SHOP_ASK, ADA_AND_CAI, **more)  # type: ignore[arg-type]


def served(description: str, habit: str, prints: tuple[str, ...] = ADA_AND_CAI, code: int | None = 0) -> Case:
    options = ["--server", "context_window=8192", "--server", "retries=0", "--no-cache", "--controller", "single_shot"]
    command = ["ask", QUESTION, "--db", "shop.sqlite", "--model", "{server}#m", *options]
    return Case(description, command, prints, code=code, serve=habit)


def verdicts(description: str, verdict: str, cases: int) -> Case:
    """Under ``bag``, every case; the other rules do what published evaluators do."""
    return Case(
        description,
        ["score", "--cases", "cases.json", "--json"],
        (rf'^(?:[^"]|"(?!bag": ))*(?:"bag": {verdict}.*?){{{cases}}}',),
    )


CASES = {
    "F01": ask("a query in parentheses behind the prefill"),
    "F02": ask("thoughts in channels"),
    "F03": ask("a draft, then a block called final"),
    "F04": Case(
        "ids that repeat",
        [*SCORE, "-b", "./birdy", "--split", "dev", "-p", "lines.jsonl"],
        (r"all +4 +100\.0 .*100\.0 .*100\.0",),
        database="birdy/dev_databases/shop",
    ),
    "F05": verdicts("text that is no UTF-8", "false", 2),
    "F06": served("content as a list of parts", "parts"),
    "F07": served("a server that only streams", "streamonly"),
    "F08": served("a server that refuses stream_options", "nostreamoptions"),
    "F09": served("a least max_tokens", "min16"),
    "F10": verdicts("ties under a collation", "true", 3),
    "F11": ask('literal \\n and \\" in SQL'),
    "F12": ask("SQL in quotes"),
    "F13": Case(
        "a CSV file in a legacy East Asian encoding",
        ["data", "explain", 'SELECT "姓名" FROM gbk', "--db", "gbk.csv"],  # by its name, or refused with advice
        (r"(?m)^valid$|[Ee]ncod|UTF-8",),
        code=None,
    ),
    "F14": Case("a database in UTF-16", ["data", "check", "-b", "./enc"], (r"1 of 1 items are sound",), make=True),
    "F15": served("thoughts only", "thoughts", (r"(?i)thought|reasoning|refus",), code=None),
    "F16": Case(
        "predictions of fenced text",
        [*SCORE, "-b", "./b", "-p", "fenced.jsonl"],
        (r"2 of 2 begin with a fence|all +2 +100\.0 .*100\.0 .*100\.0",),
        database="b/databases/shop",
    ),
    "F17": Case(
        "golds that do not answer",
        ["data", "check", "-b", "./g"],
        (
            r"tie \(g\).*order of rows",
            r"nullfirst \(g\).*NULL",
            r"textnum \(g\).*text",
            r"textmax \(g\).*text",
            r"now \(g\).*today",
        ),
        code=1,
        make=True,
    ),
    "F18": Case(
        'a column called ""',
        ["data", "vizql", "infer", "--db", "e.sqlite", "--out", "e.yaml"],
        (r"name|[Ff]ield|e\.yaml",),
        make=True,
    ),
    "F19": Case(
        "a list of texts, by position",
        [*SCORE, "-b", "packaged", "--split", "quick", "-p", "list.json"],
        (r"2 texts for 40",),
    ),
    "F19 folder": Case(
        "a folder of ID.sql", [*SCORE, "-b", "packaged", "--split", "quick", "-p", "sub"], (r"all +40",)
    ),
    "F20": Case(
        "a follow-up in chat with another model",
        ["chat", "--db", "shop.sqlite", "--model", "scripted:m.yaml", "--controller", "single_shot"],
        (r"(?m)\b4\b",),
        (r"Traceback", r"(?i)download|fetching|\d+ ?MB"),
        typed="How many customers are there?\nWhat about Rome?\n",
    ),
}


def main() -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder with shop.py, serve.py and a folder per case")
    parser.add_argument("--only", default="", help="cases, by commas")
    parser.add_argument("--verbose", action="store_true", help="what the commands printed")
    args = parser.parse_args()
    if not (args.folder / "shop.py").is_file():
        parser.error(f"{args.folder} has no shop.py; name the folder of the cases")
    wanted = [name.strip() for name in args.only.split(",") if name.strip()]
    chosen = {name: case for name, case in CASES.items() if not wanted or name.split()[0] in wanted}
    if not chosen:
        parser.error(f"no case {args.only}; there are {', '.join(CASES)}")
    right = 0
    with tempfile.TemporaryDirectory(prefix="cases-") as place:
        home = Path(place) / "cases"
        shutil.copytree(args.folder, home, copy_function=shutil.copyfile)
        for name, case in chosen.items():
            wrong, printed = tried(home, home / name.split()[0], case)
            right += not wrong
            print(
                f"{name:10} {'right' if not wrong else 'WRONG'}  {case.description}" + (f": {wrong}" if wrong else ""),
                flush=True,
            )
            if args.verbose or wrong:
                print("".join(f"    {line}\n" for line in printed.strip().splitlines()[-12:]), end="")
    print(f"{right} of {len(chosen)} right")
    return int(right < len(chosen))


def tried(home: Path, folder: Path, case: Case) -> tuple[str, str]:
    """(what is wrong, or "", what was printed)."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NL2SQL_CACHE": tempfile.mkdtemp(dir=home.parent)}
    python(["../shop.py"], folder, environment)
    if case.database:
        (folder / case.database).mkdir(parents=True, exist_ok=True)
        (folder / "shop.sqlite").rename(folder / case.database / "shop.sqlite")
    if case.make:
        python(["make.py"], folder, environment)
    with server(home, case.serve) as address:
        words = [word.replace("{server}", address) for word in case.command]
        try:
            done = python(["-m", "nl2sql.cli", *words], folder, environment, case.typed)
        except subprocess.TimeoutExpired:
            return f"no end within {SECONDS} s", ""
    printed = done.stdout + done.stderr
    if case.code is not None and done.returncode != case.code:
        return f"exit code {done.returncode}, not {case.code}", printed
    if missing := [pattern for pattern in case.prints if not re.search(pattern, printed, re.DOTALL)]:
        return f"does not print {missing[0]}", printed
    if found := [match[0] for pattern in case.never if (match := re.search(pattern, printed))]:
        return f"prints {found[0]}", printed
    return "", printed


def python(
    words: list[str], folder: Path, environment: dict[str, str], typed: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        input=typed,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=SECONDS,
        check=False,
    )


@contextmanager
def server(home: Path, habit: str) -> Iterator[str]:
    """The address of a server of that habit while it is needed; "" for none."""
    if not habit:
        yield ""
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "serve.py", habit, str(port)], cwd=home)
    try:
        for _ in range(100):
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
