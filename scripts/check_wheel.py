"""Is the wheel fit to be published? Builds it, checks it, and uses it in empty environments outside the checkout.

    python scripts/check_wheel.py                                       # this Python, without extras: scoring, a server
    python scripts/check_wheel.py --python python3.12 python3.13 --local  # others, and the embedded model as well

The environment that runs this needs build and twine. Without ``--local`` nothing but the required packages (and the
extra mcp) is installed: it must stay under 250 MB, scoring, runs and reports must work, questions must be answered by a
served model (a stand-in on 127.0.0.1 that counts customers), and what needs a local model must say how to install it.
Network: the package index alone. Exit code 1 where anything fails; every check is a line.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHEEL_MB, SITE_MB = 35, 250
NUMBERS = itertools.count()
DATABASE = ["--db", "packaged:scale_models"]
ASK = ["ask", "How many customers are there?", *DATABASE]
MCP = """
import anyio, sys
from mcp import Client, StdioServerParameters

async def main():
    server = StdioServerParameters(command="nl2sql", args=["mcp", "--db", "packaged:scale_models", *sys.argv[1:]])
    async with Client(server) as client:
        print([tool.name for tool in (await client.list_tools()).tools])

anyio.run(main)
"""


class StandIn(BaseHTTPRequestHandler):
    """An OpenAI-compatible server whose model counts customers, whatever it is asked."""

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "stand-in", "object": "model"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        sampled = f" AS n{next(NUMBERS)}" if asked.get("temperature") else ""  # or it is taken for a greedy one
        text = f"SELECT COUNT(*){sampled} FROM customers"
        choice = {"index": 0, "text": text, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15}
        choices = [{**choice, "index": index} for index in range(asked.get("n") or 1)]
        self._send({"id": "1", "object": "chat.completion", "model": "stand-in", "choices": choices, "usage": usage})

    def _send(self, data: object) -> None:
        body = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def served() -> Iterator[str]:
    """The spec of the stand-in's model, while its server runs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1#stand-in"
        server.shutdown()


class Checks:
    """Prints a line for each check and remembers whether any failed."""

    def __init__(self) -> None:
        self.failed = False

    def say(self, good: bool, what: str, detail: str = "") -> None:
        self.failed |= not good
        print(f"{'ok  ' if good else 'FAIL'}  {what}{f': {detail}' if detail else ''}", flush=True)

    def runs(self, what: str, command: list[str], place: Path, *, code: int = 0, says: str = "", **more: str) -> None:
        """A command in ``place``, whose folder ``home`` is home and cache: exit code and a text of its output."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NL2SQL_", "PYTHON"))}
        environment = {**kept, "HOME": str(place / "home"), "PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            command,
            cwd=place,
            env=environment,
            text=True,
            capture_output=True,
            timeout=1800,
            input=more.get("typed", ""),
        )
        output = done.stdout + done.stderr
        good = done.returncode == code and says in output and "Traceback" not in output
        self.say(good, what, "" if good else f"exit {done.returncode}, expected {code} and {says!r}: {output[-600:]}")


def build(folder: Path, checks: Checks) -> Path:
    """The wheel of this checkout, built and checked."""
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    [wheel] = folder.glob("*.whl")
    size = wheel.stat().st_size / 1e6
    checks.say(size < WHEEL_MB, f"{wheel.name} is under {WHEEL_MB} MB", f"{size:.1f} MB")
    twine = [sys.executable, "-m", "twine", "check", "--strict", *map(str, folder.iterdir())]
    checks.say(subprocess.run(twine, stdout=subprocess.DEVNULL).returncode == 0, "twine check --strict")
    return wheel


def installed(python: str, wheel: Path, extras: str, place: Path) -> Path:
    """The folder of programs of a new environment with the wheel."""
    subprocess.run([python, "-m", "venv", str(place / "venv")], check=True)
    programs = place / "venv" / "bin"
    target = f"{wheel}[{extras}]" if extras else str(wheel)
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), target]
    subprocess.run(pip, check=True, cwd=place)
    return programs


def check_without_extras(programs: Path, place: Path, checks: Checks) -> None:
    """Scoring, runs, reports and served models, with the required packages alone."""
    [site] = (programs.parent / "lib").glob("python*/site-packages")
    size = int(subprocess.run(["du", "-sm", str(site)], text=True, capture_output=True, check=True).stdout.split()[0])
    checks.say(size < SITE_MB, f"site-packages is under {SITE_MB} MB", f"{size} MB, pip among them")
    nl2sql = str(programs / "nl2sql")
    (place / "customers.csv").write_text("name,age\nAda,36\n")
    embedded = ["--model", "qwen2.5-coder-0.5b", "--controller", "single_shot"]
    checks.runs("ask with an embedded model, without torch", [nl2sql, *ASK, *embedded], place, says="SELECT COUNT(*)")
    table = [nl2sql, "ask", "How many?", "--db", "customers.csv"]
    with served() as model:
        asked = ["--model", model]
        checks.runs("ask about a CSV file", [*table, *asked], place, says="SELECT COUNT(*)")
        checks.runs("ask", [nl2sql, *ASK, *asked], place, says="SELECT COUNT(*)")
        run = [nl2sql, "eval", "--split", "quick", "--limit", "5", *asked, "--quiet"]
        checks.runs("eval", [*run, "--out", "run"], place, says="EX[bag]")
        checks.runs("eval --controller single_shot", [*run, "--controller", "single_shot", "--out", "one"], place)
        chat = [nl2sql, "chat", *DATABASE, *asked]
        checks.runs("chat", chat, place, typed="How many customers are there?\n", says="SELECT COUNT(*)")
    for command, said in {
        "runs list .": "done",
        "runs replay run": "EX[bag]",
        "runs check run": "ok",
        "runs compare run one": "EX[bag]",
        "report run one --out r.html": "r.html",
        "runs export run --to inspect --out run.eval": "exported 5 episodes",
        "score --split quick --predictions run/predictions.jsonl": "EX[bag]",
        "data check --benchmark packaged --split quick": "",
        "data vizql infer --db packaged:scale_models --out source.yaml": "source.yaml",
        "runs view --help": "Usage",
        "new plugins": "plugin",
        "models list": "smollm2-135m",
    }.items():
        checks.runs(command, [nl2sql, *command.split()], place, says=said)


def check_local(programs: Path, place: Path, checks: Checks) -> None:
    """The README's commands with the embedded model, and the extra mcp."""
    nl2sql = str(programs / "nl2sql")
    checks.runs("mcp, embedded model", [str(programs / "python"), "-c", MCP], place, says="ask")
    checks.runs("ask, embedded model", [nl2sql, *ASK], place, says="SELECT COUNT(*)")
    run = ["eval", "--split", "quick", "--limit", "5", "--quiet", "--out", "local-run"]
    checks.runs("eval --limit 5, embedded model", [nl2sql, *run], place, says="EX[bag]")
    checks.runs("report", [nl2sql, "report", "local-run", "--out", "local.html"], place)
    typed = "How many customers are there?\nHow many of them are on hold?\n"
    checks.runs("chat, embedded model", [nl2sql, "chat", *DATABASE], place, typed=typed, says="SELECT COUNT(*)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters to install it into")
    parser.add_argument("--local", action="store_true", help="install the extra local too (2 GB an interpreter)")
    options = parser.parse_args()
    checks = Checks()
    if missing := [name for name in ("build", "twine") if importlib.util.find_spec(name) is None]:
        parser.error(f"{missing[0]} is not installed; try: make wheel, or pip install build twine")
    with tempfile.TemporaryDirectory(prefix="nl2sql-wheel-") as folder:
        wheel = build(Path(folder) / "dist", checks)
        for python in options.python:
            place = Path(tempfile.mkdtemp(dir=folder))
            print(
                f"\n{subprocess.run([python, '--version'], text=True, capture_output=True).stdout.strip()}", flush=True
            )
            programs = installed(python, wheel, "", place)
            check_without_extras(programs, place, checks)
            extras = "local,grammar,mcp" if options.local else "mcp"
            pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
            subprocess.run([*pip, f"{wheel}[{extras}]"], check=True, cwd=place)
            mcp = [str(programs / "python"), "-c", MCP]
            with served() as model:
                checks.runs("mcp", [*mcp, "--model", model], place, says="ask")
            if options.local:
                check_local(programs, place, checks)
    sys.exit(checks.failed)


if __name__ == "__main__":
    main()
