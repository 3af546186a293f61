"""An undirected sweep beside ``plant_faults.py``: change the code at random places; which changes does no test notice?

    pip install cosmic-ray coverage
    python scripts/sweep_mutants.py nl2sql/agents tests/agents --sample 200 --jobs 2
    python scripts/sweep_mutants.py nl2sql/eval tests/eval --sample 200 --results eval.jsonl    # goes on after Ctrl-C

A mutant is one small change that cosmic-ray makes (``==`` to ``<``, ``and`` to ``or``, a number plus one, a loop that
never runs ...). First the tests run once under coverage, which tells the tests that reach each line. Then mutants are
drawn by the seed from all of the folder; each is put into a copy of the checkout and forty tests that reach its line
are run, first those that reach the fewest lines besides (where none is seen to, as at import or in a child process,
tests of the file, and of its folder those that reach the most):

- noticed: a test fails or does not end;
- survived: they pass. The mutant may be a fault that no test sees, or mean the same as the code (``len(x) > 0`` and
  ``len(x) != 0``): a person has to look;
- not reached: no test executes a line of the folder. It counts as survived;
- void: the module cannot be read or imported, or a name is missing. It does not count;
- equivalent: a person has looked, and ``scripts/equivalent_mutants.txt`` says why it means the same. It is not run and
  does not count.

Printed: each survivor, and the score: noticed of all that count, with its 95% interval (Wilson). Not covered: tests
that run the embedded model, and tests that are not given, so the score is a lower bound of what the suite notices.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib.util
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plant_faults import ROOT, copy_checkout, files_of, known_results, state_of
from planting.bed import WARM, Bed, Outcome, plant_all
from planting.entries import Fault

# Unions in annotations are never executed; other exceptions and other variables are mostly names that do not exist.
LEFT_OUT = ("BitOr", "ExceptionReplacer", "Variable")
MOST_TESTS = 40  # of one mutant: those that reach its line and the fewest others
OPTIONS = ("-m", "not model and not notebook")
EQUIVALENTS = ROOT / "scripts" / "equivalent_mutants.txt"


@dataclass(frozen=True)
class Mutant:
    """One change: the operator of cosmic-ray, its how-manieth place in the file, and the line there."""

    file: str
    operator: str
    occurrence: int
    line: int


# ------------------------------------------------------------------------------------- which test reaches which line


class Reach:
    """A pytest plugin: coverage with the running test as context, and which tests fail."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.failed: set[str] = set()

    def pytest_configure(self, config: Any) -> None:
        config.addinivalue_line("markers", "timeout: of the plugin that is left out here")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(_function(nodeid))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.add(_function(report.nodeid))


def _function(nodeid: str) -> str:
    """A test without its parameters: ``tests/a.py::test_b[1-x]`` is ``tests/a.py::test_b``."""
    return nodeid.partition("[")[0]


def collect(folder: str, tests: Sequence[str], out: Path) -> int:
    """Run the tests under coverage; write which reach each line, and which failed, as JSON. Gives the exit code."""
    import coverage
    import pytest

    measured = coverage.Coverage(data_file=None, source=[folder])
    measured.start()
    plugin = Reach(measured)
    plain = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:timeout", "-o", "timeout=0"]
    code = int(pytest.main([*plain, *OPTIONS, *tests], plugins=[plugin]))
    measured.stop()
    data = measured.get_data()
    lines = {
        str(Path(file).resolve().relative_to(Path.cwd())): data.contexts_by_lineno(file)
        for file in data.measured_files()
    }
    told = {"lines": lines, "failed": sorted(plugin.failed)}
    out.write_text(json.dumps(told), encoding="utf-8")
    return code


def reached(checkout: Path, folder: str, tests: Sequence[str]) -> dict[str, Any]:
    """``collect`` in a process of its own, within the copy, less the tests that fail as they are (which are named)."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "scripts/sweep_mutants.py", folder, *tests, "--collect", file.name]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        ran = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode > 1:  # 1: some tests fail
            sys.exit(f"error: the tests cannot be run under coverage:\n{ran.stdout[-2000:]}{ran.stderr[-1000:]}")
        told: dict[str, Any] = json.loads(Path(file.name).read_text(encoding="utf-8"))
    for test in told["failed"]:
        print(f"left out, fails under coverage: {test}", file=sys.stderr)
    lost = set(told["failed"])
    for lines in told["lines"].values():
        lines.update({line: [test for test in reaching if test not in lost] for line, reaching in lines.items()})
    told["breadth"] = breadth(told["lines"])
    return told


def breadth(lines: Mapping[str, Mapping[str, Sequence[str]]]) -> Counter[str]:
    """Test -> how many lines of the folder it reaches."""
    return Counter(test for reached in lines.values() for tests in reached.values() for test in tests)


# --------------------------------------------------------------------------------------------------------- mutants


def mutants_of(root: Path, folder: str) -> list[Mutant]:
    """All mutants of the Python files below a folder."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    operators = {name: get_operator(name)() for name in operator_names() if not any(out in name for out in LEFT_OUT)}
    found = []
    for path in sorted((root / folder).rglob("*.py")):
        nodes = list(ast_nodes(get_ast(path.read_text(encoding="utf-8"))))
        for name, operator in operators.items():
            places = [start for node in nodes for start, _ in operator.mutation_positions(node)]
            file = str(path.relative_to(root))
            found += [Mutant(file, name, number, start[0]) for number, start in enumerate(places)]
    return found


def as_fault(root: Path, mutant: Mutant, reach: dict[str, Any]) -> Fault | None:
    """The mutant as a fault to plant, with the tests that reach it; None where none does. Raises SyntaxError."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    old = (root / mutant.file).read_text(encoding="utf-8")
    new = mutate_code(old, get_operator(mutant.operator)(), mutant.occurrence)
    if new is None:
        return None
    ast.parse(new)
    shown = changed(old, new)
    before, _, after = shown.partition("\n")
    if after == before.replace("    - ", "    + ").replace(" *, ", " /, "):
        raise SyntaxError("the star before keyword-only parameters is no multiplication")
    tests = tests_for(mutant, reach)
    if not tests:
        return None
    rule = f"{mutant.file}:{mutant.line} {mutant.operator.removeprefix('core/')}"
    return Fault("mutants", rule, shown, mutant.file, old, new, (*OPTIONS, *tests))


def tests_for(mutant: Mutant, reach: dict[str, Any]) -> list[str]:
    """Those that reach the line, the most particular first; else of the file, and the broadest of its folder."""

    def of(lines: Iterable[Sequence[str]], sign: int = 1) -> list[str]:
        found = {test for tests in lines for test in tests if test}
        return sorted(found, key=lambda test: (sign * reach["breadth"][test], test))

    own: dict[str, list[str]] = reach["lines"].get(mutant.file, {})
    if here := of([own.get(str(mutant.line), [])]):
        return here[:MOST_TESTS]
    beside = [lines for file, lines in reach["lines"].items() if Path(file).parent == Path(mutant.file).parent]
    broad = of(itertools.chain.from_iterable(lines.values() for lines in beside), -1)
    return list(dict.fromkeys([*of(own.values())[: MOST_TESTS // 2], *broad]))[:MOST_TESTS]


def changed(old: str, new: str) -> str:
    """The changed lines, ``-`` before and ``+`` after."""
    rows = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0))[3:]
    return "\n".join(f"    {row[0]} {row[1:].strip()}" for row in rows if row[:1] in "+-")


def equivalents(path: Path = EQUIVALENTS) -> dict[tuple[str, str], str]:
    """(file, change) -> why it means the same, of ``file ||| line ||| changed line ||| why`` and % for comments."""
    rows = [line.split(" ||| ") for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "%"]
    return {(file, f"    - {old}\n    + {new}"): why for file, old, new, why in rows}


# ---------------------------------------------------------------------------------------------------------- the sweep


def sweep(args: argparse.Namespace) -> Iterator[tuple[str, str, Outcome]]:
    """Yields ``(rule, change, outcome)`` of each drawn mutant."""
    names = files_of(ROOT)
    state = state_of(ROOT, names)
    known, listed = known_results(args.results, state), equivalents()
    for name in WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    drawn = mutants_of(ROOT, args.folder)
    print(f"{len(drawn)} mutants in {args.folder}; {min(args.sample, len(drawn))} are drawn", file=sys.stderr)
    drawn = random.Random(args.seed).sample(drawn, min(args.sample, len(drawn)))
    with tempfile.TemporaryDirectory(prefix="sweep_mutants_") as temporary:
        beds = [Bed(Path(temporary) / str(number) / "checkout") for number in range(args.jobs)]
        for bed in beds:
            copy_checkout(ROOT, names, bed.folder)
        began = time.perf_counter()
        reach = reached(beds[0].folder, args.folder, args.tests)
        print(f"{time.perf_counter() - began:.0f} s for the tests under coverage", file=sys.stderr, flush=True)
        faults = []
        for mutant in drawn:
            try:
                fault = as_fault(ROOT, mutant, reach)
            except SyntaxError:
                yield f"{mutant.file}:{mutant.line} {mutant.operator}", "", Outcome("void")
                continue
            if fault is None:
                yield f"{mutant.file}:{mutant.line} {mutant.operator}", "", Outcome("not reached")
            elif why := listed.get((fault.file, fault.stated)):
                yield fault.rule, fault.stated, Outcome("equivalent", why)
            elif fault.key in known:
                yield fault.rule, fault.stated, known[fault.key]
            else:
                faults.append(fault)
        for fault, outcome in plant_all(faults, beds):
            if args.results is not None:
                line = {"state": state, "key": fault.key, "rule": fault.rule, **vars(outcome)}
                with args.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            yield fault.rule, fault.stated, outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="what is changed, for example nl2sql/agents")
    parser.add_argument("tests", nargs="+", help="the tests that should notice, for example tests/agents")
    parser.add_argument("--sample", type=int, default=200, metavar="N", help="mutants to draw (default 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants at a time (default 1)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep results in FILE and skip what it has")
    parser.add_argument("--collect", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.collect:
        return collect(args.folder, args.tests, args.collect)
    if args.sample < 1 or args.jobs < 1:
        parser.error(f"--sample {args.sample}, --jobs {args.jobs}: give numbers of at least 1")
    if not (ROOT / args.folder).is_dir():
        parser.error(f"there is no folder {args.folder}")
    if missing := [name for name in ("cosmic_ray", "coverage") if importlib.util.find_spec(name) is None]:
        parser.error(f"{missing[0]} is not installed; try: pip install cosmic-ray coverage")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    noticed = survived = void = same = 0
    for rule, change, outcome in sweep(args):
        if outcome.verdict in ("noticed", "hung"):
            noticed += 1
        elif outcome.verdict in ("SURVIVED", "not reached"):
            survived += 1
            print(f"{outcome.verdict.lower()}: {rule}\n{change}", flush=True)
        else:
            same += outcome.verdict == "equivalent"
            void += outcome.verdict != "equivalent"
        told = f"{outcome.verdict:11} {outcome.seconds:5.1f} s  {rule}"
        print(f"[{noticed + survived + void + same}/{args.sample}] {told}", file=sys.stderr, flush=True)
    from nl2sql.eval.stats import wilson_interval  # not before: the forks import their own copy of the package

    counted = noticed + survived
    score = wilson_interval(noticed / counted if counted else 0.0, counted)
    print(f"{args.folder}: {noticed} of {counted} noticed, {score} %; {void} void, {same} equivalent")
    return 0


if __name__ == "__main__":
    sys.exit(main())
