"""Run every part in a process and a folder of its own, over one cache folder for the recording."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from behaviour.parts import WEIGHTS, excluded, parts

WHOLE = {"eval": "run/report.json", "corpus": "run/results.jsonl"}  # what a part that came through has written
FIXTURES = Path(__file__).resolve().parent / "react_fixtures.py"


class Recorder:
    """A recording of the checkout ``repo`` in the folder ``out``."""

    def __init__(self, repo: Path, inputs: Path, out: Path, python: str, benchmarks: str | None) -> None:
        """Make the folder. Raises SystemExit where python does not import nl2sql from repo."""
        self.repo, self.inputs, self.out, self.python = repo, inputs, out, python
        out.mkdir(parents=True, exist_ok=True)
        self.environment = _environment(repo, out, benchmarks)
        self._check_import()
        weights, cached = inputs / "models" / WEIGHTS, out / "cache" / "models" / WEIGHTS
        if weights.is_dir() and not cached.exists():
            cached.parent.mkdir(parents=True, exist_ok=True)
            cached.symlink_to(weights)
        self.command = [python, "-c", entry_point(repo)]

    def part(self, name: str, words: list[str]) -> bool:
        """Record a part, unless it is recorded; False where two tries came to nothing."""
        folder = self.out / name
        if (folder / "done.json").exists():
            return True
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if name.startswith("eval_"):  # make eval answers from the response cache; begin each with an empty one
            shutil.rmtree(self.out / "cache" / "responses", ignore_errors=True)
            subprocess.run([*self.command, "models", "pull", WEIGHTS], cwd=folder, env=self.environment, check=True)
        words = [word.replace("{here}", str(folder)) for word in words]
        for tries in (1, 2):  # a second try, and a line that says so: see failure-1.txt in the part's folder
            code, seconds = self._run(folder, words)
            needed = folder / WHOLE.get(words[0], "stdout")
            whole = needed.exists() and needed.stat().st_size > 0
            failed = "" if whole else "  FAILED"
            print(f"{time.strftime('%H:%M:%S')} {name}: exit {code}, {seconds} s{failed}", flush=True)
            if whole:
                about: dict[str, Any] = {
                    "rc": code,
                    "seconds": seconds,
                    "tries": tries,
                    "repo": str(self.repo),
                    "out": str(self.out),
                }
                about |= {"command": ["nl2sql", *words]}
                (folder / "done.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
                return True
            said = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
            print("   ", said[-600:], flush=True)
            (folder / f"failure-{tries}.txt").write_text(said, encoding="utf-8")
            shutil.rmtree(folder / "run", ignore_errors=True)
        return False

    def _run(self, folder: Path, words: list[str]) -> tuple[int, float]:
        own = words[0] == "_fixtures"
        command = [self.python, str(FIXTURES), str(self.inputs)] if own else [*self.command, *words]
        began = time.time()
        with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
            done = subprocess.run(command, cwd=folder, env=self.environment, stdout=stdout, stderr=stderr, check=False)
        return done.returncode, round(time.time() - began, 1)

    def _check_import(self) -> None:
        code = "import nl2sql; print(nl2sql.__file__)"
        done = subprocess.run(
            [self.python, "-c", code], cwd=self.out, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode or not done.stdout.strip().startswith(str(self.repo) + os.sep):
            where = done.stdout.strip() or done.stderr[-500:]
            raise SystemExit(f"error: {self.python} imports nl2sql from {where}, not from {self.repo}; give --repo DIR")


def record(
    repo: Path,
    inputs: Path,
    out: Path,
    *,
    python: str = sys.executable,
    only: list[str] | None = None,
    skip: list[str] | None = None,
    benchmarks: str | None = None,
) -> int:
    """Record the parts whose names match ``only`` and not ``skip``; 1 where one failed.

    benchmarks: the folder of benchmarks; the parts that need them are named and left out without it. Raises
    SystemExit where inputs have not been made, or nl2sql is not imported from repo.
    """
    if not (inputs / "done").exists():
        raise SystemExit(f"error: no inputs in {inputs}; first: record_behaviour.py inputs --inputs {inputs}")
    recorder = Recorder(repo, inputs, out, python, benchmarks)
    wanted = [name for name in parts(inputs) if _any(name, only or ["*"]) and not _any(name, skip or [])]
    if not wanted:
        raise SystemExit(f"error: no part is called {', '.join(only or [])}; record --list names them")
    missing = excluded(inputs, benchmarks)
    for reason in dict.fromkeys(missing.values()):
        names = [name for name in wanted if missing.get(name) == reason]
        if names:
            print(f"left out, {reason}: {', '.join(names)}", flush=True)
    commands = parts(inputs)
    failed = [name for name in wanted if name not in missing and not recorder.part(name, commands[name])]
    if failed:
        print("failed:", ", ".join(failed))
    return 1 if failed else 0


def entry_point(repo: Path) -> str:
    """Python code that is the ``nl2sql`` command of a checkout, wherever its function lives."""
    spec = tomllib.loads((repo / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]["nl2sql"]
    module, _, function = spec.partition(":")
    return f"import sys; sys.argv[0] = 'nl2sql'; from {module} import {function} as run; sys.exit(run())"


def _environment(repo: Path, out: Path, benchmarks: str | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NL2SQL_")}
    added = {"PYTHONPATH": str(repo), "PYTHONHASHSEED": "0", "NL2SQL_CACHE": str(out / "cache")}
    added |= {"NO_COLOR": "1", "COLUMNS": "120"}
    return {**kept, **added, **({"NL2SQL_BENCHMARKS": benchmarks} if benchmarks else {})}


def _any(name: str, globs: list[str]) -> bool:
    return any(fnmatch(name, glob) for glob in globs)
