"""A copy of the checkout in which one fault at a time is planted, and its tests run in a forked process.

Forking spares what a test run costs most: the imports of other people's packages, which are done once. The project's
own modules are imported in the fork, with the fault in them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planting.entries import BadList, Fault, planted

SCRIPTS = Path(__file__).resolve().parent.parent
TIMEOUT_S = 240.0
# A name that is missing says that an entry is written badly, not that a test noticed what it breaks.
BROKEN_CODE = re.compile(r"\b(?:NameError|UnboundLocalError|IndentationError)\b")
EXPLAINED = 160  # characters of a failure that a result keeps
WARM = ("numpy", "pydantic", "pytest", "sqlglot.optimizer", "yaml")


@dataclass(frozen=True)
class Outcome:
    """What became of one fault: a verdict (see the head of this file), its explanation, and the seconds it took."""

    verdict: str
    detail: str = ""
    seconds: float = 0.0

    @property
    def noticed(self) -> bool:
        return self.verdict == "noticed"


class Watch:
    """A pytest plugin: which tests passed, which failed and how, and what could not be collected."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: list[tuple[str, str]] = []
        self.uncollected: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failed.append((report.nodeid, str(crash.message if crash else report.longrepr)))
        elif report.passed and report.when == "call":
            self.passed.append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.uncollected.append(str(report.longrepr))


def run_tests(folder: Path, tests: Sequence[str], *, module: str = "", first_only: bool = True) -> int:
    """Start a forked process that runs tests in ``folder`` and writes ``result.json`` beside it; gives its id.

    module: is imported first, so that a fault that breaks the import is told from one that a test notices.
    """
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        _in_child(folder, tests, module, first_only)
        status = 0
    finally:  # the parent's own clean-up must not run here
        os._exit(status)


def _in_child(folder: Path, tests: Sequence[str], module: str, first_only: bool) -> None:
    import pytest

    os.setsid()
    side = folder.parent
    with (side / "log.txt").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.chdir(folder)
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != SCRIPTS]
    sys.path[:] = [str(folder), *others, str(folder / SCRIPTS.name)]
    # Bytecode of a planted file must not outlive the fault: the copy's stays as the first run has written it.
    sys.dont_write_bytecode = first_only
    os.environ |= {"PYTHONPATH": str(folder), "NL2SQL_CACHE": str(side / "cache")}
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1"} if first_only else {}
    os.environ.pop("NL2SQL_STRICT_SKIPS", None)
    report: dict[str, Any] = {}
    try:
        if module:
            importlib.import_module(module)
        watch = Watch()
        options = ["-x"] if first_only else []
        plain = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={side / 'tmp'}"]
        pytest.main([*plain, *options, *tests], plugins=[watch])
        report = vars(watch)
    except BaseException as error:  # noqa: BLE001 - whatever the import of a planted file raises
        report = {"broke": f"{type(error).__name__}: {error}"}
    (side / "result.json").write_text(json.dumps(report), encoding="utf-8")


def verdict_of(report: dict[str, Any] | None, seconds: float) -> Outcome:
    """What the tests' result says about a planted fault; None: they were stopped."""
    if report is None:
        return Outcome("hung", f"its tests did not end within {TIMEOUT_S:.0f} s", seconds)
    if broke := report.get("broke") or next(iter(report.get("uncollected", [])), ""):
        return Outcome("broke the import", _short(broke), seconds)
    if report["failed"]:
        test, message = report["failed"][0]
        verdict = "broke the code" if BROKEN_CODE.search(message) else "noticed"
        return Outcome(verdict, f"{test}: {_short(message)}", seconds)
    return Outcome("SURVIVED" if report["passed"] else "no test ran", "", seconds)


def _short(text: str) -> str:
    return " ".join(text.split())[:EXPLAINED]


@dataclass
class Bed:
    """One copy of the checkout, in which one fault at a time is planted."""

    folder: Path
    fault: Fault | None = None
    process: int = 0
    began: float = 0.0
    clean: tuple[bytes, int] = (b"", 0)  # the planted file as it was, and when it was changed last

    def plant(self, fault: Fault) -> Outcome | None:
        """Write the fault into its file and start its tests; gives an outcome where that cannot be done."""
        path = self.folder / fault.file
        if not path.is_file():
            return Outcome("old text not found", f"there is no {fault.file}")
        text = path.read_text(encoding="utf-8")
        faulty = planted(text, fault)
        if faulty is None:
            return Outcome("old text not found", f"it occurs {text.count(fault.old)} times in {fault.file}")
        changed = path.stat().st_mtime_ns
        self.fault, self.began, self.clean = fault, time.perf_counter(), (text.encode(), changed)
        path.write_text(faulty, encoding="utf-8")
        os.utime(path, ns=(changed, changed + 10**13))  # not the time that the old bytecode was made of
        self.process = run_tests(self.folder, fault.tests, module=module_of(fault.file))
        return None

    def ended(self) -> Outcome | None:
        """The outcome once the tests have ended or their time is up; puts the old text back."""
        assert self.fault is not None
        seconds = time.perf_counter() - self.began
        report = wait(self.process, self.folder, 0.0 if seconds < TIMEOUT_S else None)
        if report is RUNNING:
            return None
        path = self.folder / self.fault.file
        path.write_bytes(self.clean[0])
        os.utime(path, ns=(self.clean[1], self.clean[1]))
        self.fault = None
        return verdict_of(report, seconds)


RUNNING: dict[str, Any] = {"running": True}


def wait(process: int, folder: Path, timeout_s: float | None) -> dict[str, Any] | None:
    """The result of ``run_tests``, RUNNING after ``timeout_s``; None: end it now. Nothing that it started is left."""
    until = time.monotonic() + (timeout_s or 0.0)
    while timeout_s is not None and os.waitpid(process, os.WNOHANG)[0] == 0:
        if time.monotonic() >= until:
            return RUNNING
        time.sleep(0.05)
    if timeout_s is None:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)  # workers of the sandbox, too
    side = folder.parent
    result = side / "result.json"
    ended = timeout_s is not None and result.is_file()
    report = json.loads(result.read_text(encoding="utf-8")) if ended else None
    result.unlink(missing_ok=True)
    for name in ("tmp", "cache"):
        shutil.rmtree(side / name, ignore_errors=True)
    return report


def module_of(file: str) -> str:
    """The module that a file of the package is, or one of a script's; "" for data."""
    file = file.removeprefix(f"{SCRIPTS.name}/")
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") if file.endswith(".py") else ""


def baseline(folder: Path, faults: Sequence[Fault]) -> dict[str, str]:
    """Each named test with what is wrong with it before any fault is planted; "" where it passes."""
    tests = sorted({test for fault in faults for test in fault.tests})
    files = [test for test in tests if "::" not in test]
    asked = [test for test in tests if test in files or test.split("::")[0] not in files]
    process = run_tests(folder, asked, first_only=False)
    report = wait(process, folder, TIMEOUT_S * 10)
    if report is RUNNING:
        report = wait(process, folder, None)
    if report is None or "broke" in report:
        raise BadList(f"the named tests cannot be run: {report}; try: python -m pytest {' '.join(asked)}")
    told: dict[str, str] = {}
    for test in tests:
        failed = [f"{node}: {_short(message)}" for node, message in report["failed"] if belongs(node, test)]
        absent = "" if any(belongs(node, test) for node in report["passed"]) else f"{test} is skipped or not there"
        told[test] = (failed or [absent])[0]
    return told


def belongs(node: str, test: str) -> bool:
    """Is a test's full name (file, class, function, parameters) what an entry names?"""
    return node == test or node.startswith((f"{test}::", f"{test}["))


def plant_all(faults: Sequence[Fault], beds: Sequence[Bed]) -> Iterator[tuple[Fault, Outcome]]:
    """Plant every fault, one to a bed at a time; yields each as it is done."""
    waiting = list(reversed(faults))
    try:
        while waiting or any(bed.fault for bed in beds):
            for bed in beds:
                if (fault := bed.fault) is not None:
                    if (outcome := bed.ended()) is not None:
                        yield fault, outcome
                elif waiting:
                    fault = waiting.pop()
                    if (outcome := bed.plant(fault)) is not None:
                        yield fault, outcome
            time.sleep(0.02)
    finally:
        for bed in beds:
            if bed.fault is not None:
                wait(bed.process, bed.folder, None)
