"""Plant faults, one at a time, and see which of the named tests notices: is every promise held by a test?

    python scripts/plant_faults.py --all --jobs 2                 every fault; exit code 1 when one is not noticed
    python scripts/plant_faults.py --sample 20 --seed 7           some of them, drawn by the seed
    python scripts/plant_faults.py --only 'run gate' --list       what is planted, without doing it
    python scripts/plant_faults.py --all --results faults.jsonl   goes on where it was interrupted
    python scripts/plant_faults.py --all --results faults.jsonl --write-page   the table in docs/conformance.md

The list is ``scripts/faults/*.yaml``, a file per area. A fault is a rule in plain English, where that rule is stated, a
file, an old text that occurs in it exactly once, the new text, and the tests that must fail:

    - rule: run_sql is blocked until validate_sql has passed for the current query
      stated: react-loop 2.3
      file: nl2sql/agents/react.py
      old: "state.last_valid is True and state"
      new: "state"
      tests: [tests/agents/test_promises_gates.py]

The checkout is copied to a temporary folder, which alone is changed. The named tests are run there first as they are.
Then each fault is planted, its tests are run in a forked process, and the old text is put back:

- noticed: a named test fails;
- SURVIVED: they pass, so nothing holds the rule;
- old text not found: the code has changed; write the entry anew;
- broke the import, broke the code: the file cannot be imported any more, or a name is missing: the entry is no fault;
- hung, no test ran, tests fail without it: the entry's tests cannot tell.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from planting.bed import WARM, Bed, Outcome, baseline, plant_all
from planting.entries import BadList, Fault, chosen, digest, read_faults

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "conformance.md"
MARKS = ("<!-- planted faults -->", "<!-- end of planted faults -->")


def files_of(root: Path) -> list[str]:
    """The files of a checkout: tracked, and new ones that git does not ignore."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted({name for name in listed if name and (root / name).is_file()})


def state_of(root: Path, names: Sequence[str]) -> str:
    """A hash of all that a result depends on; the documentation is left out."""
    parts = (hashlib.sha256((root / name).read_bytes()).hexdigest() for name in names if not name.startswith("docs/"))
    return digest(parts)


def copy_checkout(root: Path, names: Sequence[str], to: Path) -> None:
    for name in names:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, to / name)


def table_of(results: Sequence[tuple[Fault, Outcome]]) -> str:
    """Markdown: how many faults were planted and noticed in the areas where some were not, and in all."""
    lines = ["| area | planted | noticed |", "|---|---|---|"]
    for area in dict.fromkeys(fault.area for fault, _ in results):
        mine = [outcome.noticed for fault, outcome in results if fault.area == area]
        if not all(mine):
            lines.append(f"| {area.replace('_', ' ')} | {len(mine)} | {sum(mine)} |")
    lines.append(f"| all | {len(results)} | {sum(outcome.noticed for _, outcome in results)} |")
    return "\n".join(lines)


def write_page(results: Sequence[tuple[Fault, Outcome]], page: Path = PAGE) -> None:
    """Put the table between the page's marks."""
    text = page.read_text(encoding="utf-8")
    if text.count(MARKS[0]) != 1 or text.count(MARKS[1]) != 1:
        raise BadList(f"{page} needs the lines {MARKS[0]!r} and {MARKS[1]!r} once each")
    head, _, rest = text.partition(MARKS[0])
    tail = rest.partition(MARKS[1])[2]
    page.write_text(f"{head}{MARKS[0]}\n{table_of(results)}\n{MARKS[1]}{tail}", encoding="utf-8")


def known_results(path: Path | None, state: str) -> dict[str, Outcome]:
    """The outcomes of an earlier, interrupted run over the same files, by the key of their fault."""
    lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
    known = {}
    for line in lines:
        with contextlib.suppress(ValueError):  # an interrupted run may have left half a line
            entry = json.loads(line)
            if entry["state"] == state:
                known[entry["key"]] = Outcome(entry["verdict"], entry["detail"], entry["seconds"])
    return known


def as_data(fault: Fault, outcome: Outcome) -> dict[str, Any]:
    return {"area": fault.area, "rule": fault.rule, "file": fault.file, **vars(outcome), "key": fault.key}


def run_all(faults: Sequence[Fault], jobs: int, results: Path | None, quiet: bool) -> dict[str, Outcome]:
    """Plant the faults that no earlier result covers, and append what comes out. Gives all outcomes by key."""
    names = files_of(ROOT)
    state = state_of(ROOT, names)
    outcomes = known_results(results, state)
    missing = [fault for fault in faults if fault.key not in outcomes]
    for name in WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="plant_faults_") as temporary:
        beds = [Bed(Path(temporary) / str(number) / "checkout") for number in range(min(jobs, len(missing)))]
        for bed in beds:
            copy_checkout(ROOT, names, bed.folder)
        for number, (fault, outcome) in enumerate(_tried(missing, beds), 1):
            outcomes[fault.key] = outcome
            if results is not None:
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"state": state, **as_data(fault, outcome)}) + "\n")
            if not quiet:
                took = f"{outcome.verdict:9} {outcome.seconds:5.1f} s"
                print(f"[{number}/{len(missing)}] {took}  {fault.area}: {fault.rule}", file=sys.stderr, flush=True)
    return outcomes


def _tried(faults: Sequence[Fault], beds: Sequence[Bed]) -> Iterator[tuple[Fault, Outcome]]:
    """The named tests as they are, then the faults of those that pass."""
    if not faults:
        return
    told = baseline(beds[0].folder, faults)
    sound = []
    for fault in faults:
        wrong = next((told[test] for test in fault.tests if told[test]), "")
        if wrong:
            yield fault, Outcome("tests fail without it", wrong)
        else:
            sound.append(fault)
    yield from plant_all(sound, beds)


def show(results: Sequence[tuple[Fault, Outcome]], as_json: bool) -> None:
    """The table, and before it each fault that no test noticed, with what to look at."""
    if as_json:
        print(json.dumps([as_data(fault, outcome) for fault, outcome in results], indent=2))
        return
    for fault, outcome in results:
        if not outcome.noticed:
            print(f"{outcome.verdict}: {fault.rule} ({fault.stated})")
            print(f"  {fault.file}: {fault.old.strip()!r} -> {fault.new.strip()!r}")
            print(f"  {outcome.detail or 'passed all the same: ' + ', '.join(fault.tests)}")
    print(table_of(results))


def listed(faults: Sequence[Fault]) -> str:
    return "\n".join(f"{fault.area}: {fault.rule} ({fault.stated})" for fault in faults)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--all", action="store_true", help="plant every fault")
    options.add_argument("--sample", type=int, metavar="N", help="plant N of them")
    options.add_argument("--seed", type=int, default=0, help="of the sample (default 0)")
    options.add_argument("--only", metavar="PATTERN", help="those whose area, rule, source or file has the pattern")
    options.add_argument("--list", action="store_true", help="print the rules and plant nothing")
    options.add_argument("--jobs", type=int, default=1, metavar="N", help="faults at a time (default 1)")
    options.add_argument("--results", type=Path, metavar="FILE", help="keep results in FILE and skip what it has")
    options.add_argument("--write-page", action="store_true", help="write the table into docs/conformance.md")
    options.add_argument("--json", action="store_true", help="print the results as JSON")
    options.add_argument("--quiet", action="store_true", help="no line per fault")
    return options


def main() -> int:
    options = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the copies and what runs in them go first
    try:
        if not (options.all or options.list or options.sample is not None or options.only is not None):
            raise BadList("nothing is chosen; give --all, --sample 20, --only PATTERN, or --list")
        if options.write_page and (options.sample is not None or options.only is not None):
            raise BadList("--write-page writes the result of the whole list; give --all")
        if options.jobs < 1 or (options.sample is not None and options.sample < 1):
            raise BadList(f"--jobs {options.jobs}, --sample {options.sample}: give numbers of at least 1")
        faults = chosen(read_faults(), options.only, options.sample, options.seed)
        if options.list:
            print(listed(faults))
            return 0
        outcomes = run_all(faults, options.jobs, options.results, options.quiet)
        results = [(fault, outcomes[fault.key]) for fault in faults]
        show(results, options.json)
        if options.write_page:
            write_page(results)
        return 0 if all(outcome.noticed for _, outcome in results) else 1
    except BadList as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        kept = f"{options.results} keeps what is done; " if options.results else "with --results FILE it goes on; "
        print(f"interrupted; {kept}type the same command again", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
