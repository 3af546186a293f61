"""Two recordings, part by part: the records of each file side by side, without what hangs on the clock."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch, fnmatchcase
from pathlib import Path
from typing import Any

# Dropped wherever they stand: keys and identities of code, times, the machine.
IGNORED = {"key", "identity", "environment", "seconds", "started", "queue_seconds", "compute_seconds", "created"}
# What a call costs depends on the batch it fell into: differences are told apart, and are none of behaviour.
COST = {"prefill_tokens", "reused_tokens", "cached_calls"}
# Text that hangs on the clock: which failed episode ended first (a warning of report.json), a query that was slow.
TIMED = ((re.compile(r"(\d+ of \d+ episodes failed); the first: .*", re.DOTALL), r"\1"),)
SLOW = re.compile(r"Query took [\d.]+ s")  # an issue of reflect's; left out of lists
REPORTS = ("report.json", "manifest.json", "bench.json")
SHOWN = 3  # differences printed per file

Table = dict[str, Any]  # id -> record
Roots = list[tuple[str, str]]  # a folder of this recording, and what stands for it


def compare(a: Path, b: Path, only: list[str], accept: list[str], against: str | None = None) -> int:
    """Print a line per part and file, and the first differences; 1 where anything differs.

    only: globs of parts. accept: lines ``part|id|field``, globs of what may differ. against: compare the part
    ``only`` of a with this part of b (is one commit deterministic?).
    """
    names = [name for name in _recorded(a) if _any(name, only)]
    if not names:
        raise SystemExit(f"error: {a} has no recorded part called {', '.join(only)}; make one: record --out {a}")
    differs = 0
    for name in names:
        other = against or name
        if not (b / other / "done.json").exists():
            print(f"{name}: MISSING in {b}")
            differs += 1
            continue
        left, right = load(a / name), load(b / other)
        for file in sorted({*left, *right}):
            if file not in left or file not in right:
                print(f"{name}/{file}: only in {a if file in left else b}")
                differs += 1
                continue
            differs += _report(name, file, left[file], right[file], accept)
    more = [] if against else [name for name in _recorded(b) if name not in names and _any(name, only)]
    if more:
        print(f"only in {b}, not compared: {', '.join(more)}")
    print(f"{len(names)} parts, {differs} files differ" if differs else f"{len(names)} parts: all the same")
    return 1 if differs else 0


def load(folder: Path) -> dict[str, Table]:
    """File -> id -> record of one part, normalised."""
    about = json.loads((folder / "done.json").read_text(encoding="utf-8"))
    roots: Roots = [(about["repo"], "<repo>"), (about["out"], "<out>")]
    files: dict[str, Table] = {"exit code": {"": about["rc"]}}
    for path in sorted(folder.rglob("*.jsonl")):
        if path.name != "phases.jsonl":
            files[str(path.relative_to(folder))] = _lines(path.read_text(encoding="utf-8"), roots)
    for path in sorted(folder.rglob("*.json")):
        if path.name in REPORTS:
            data = json.loads(path.read_text(encoding="utf-8"))
            _split(files, str(path.relative_to(folder)), _normal(data, roots))
    text = (folder / "stdout").read_text(encoding="utf-8")
    if about["command"][1] in ("score", "corpus"):
        _split(files, "stdout", _normal(json.loads(text), roots))
    elif about["command"][1] == "_fixtures":
        files["stdout"] = _lines(text, roots)
    return files


def _recorded(recording: Path) -> list[str]:
    return sorted(path.parent.name for path in recording.glob("*/done.json"))


def _any(name: str, globs: list[str]) -> bool:
    return any(fnmatch(name, glob) for glob in globs)


def _lines(text: str, roots: Roots) -> Table:
    table: Table = {}
    for line in text.splitlines():
        _put(table, _normal(json.loads(line), roots))
    return table


def _put(table: Table, row: dict[str, Any]) -> None:
    name = str(row["id"]) if "id" in row else " ".join(str(row.get(field)) for field in ("arm", "model", "case"))
    while name in table:
        name += " (again)"
    table[name] = row


def _split(files: dict[str, Table], name: str, data: dict[str, Any]) -> None:
    """A JSON object as one record; its ``items`` (also those of ``runs``) as a record each."""
    data = dict(data)
    rows = list(data.pop("items", []))
    for number, run in enumerate(data["runs"] if isinstance(data.get("runs"), list) else []):
        if isinstance(run, dict):
            rows += [{**item, "id": f"{number}: {item['id']}"} for item in run.pop("items", [])]
    if rows:
        table: Table = {}
        for row in rows:
            _put(table, row)
        files[f"{name} items"] = table
    files[name] = {"": data}


def _normal(value: Any, roots: Roots) -> Any:
    """``value`` without what is ignored, and with the recording's own folders by name."""
    if isinstance(value, dict):
        return {_normal(k, roots): _normal(v, roots) for k, v in value.items() if k not in IGNORED}
    if isinstance(value, list):
        return [_normal(v, roots) for v in value if not (isinstance(v, str) and SLOW.fullmatch(v))]
    if isinstance(value, str):
        for pattern, by in TIMED:
            value = pattern.sub(by, value)
        for path, name in roots:
            value = value.replace(path, name)
    return value


def _report(part: str, file: str, left: Table, right: Table, accept: list[str]) -> int:
    """Print one line (and the first differences); 1 where the two differ."""
    differing: list[tuple[str, str, Any, Any]] = []
    costs: Counter[str] = Counter()
    accepted = 0
    for name in sorted({*left, *right}):
        if name not in left or name not in right:
            there = ("there", "missing") if name in left else ("missing", "there")
            differing.append((name, "(the whole record)", *there))
            continue
        for field, one, two in differences(left[name], right[name]):
            last = field.rpartition(".")[2]
            if last in COST:
                costs[last] += 1
            elif any(_accepts(line, part, name, field) for line in accept):
                accepted += 1
            else:
                differing.append((name, field, one, two))
    notes = f"  (cost differences: {', '.join(f'{n} {k}' for k, n in sorted(costs.items()))})" if costs else ""
    notes += f"  ({accepted} accepted differences)" if accepted else ""
    if not differing:
        print(f"{part}/{file}: same: {len(left)} {'lines' if len(left) > 1 else 'record'}{notes}")
        return 0
    ids = {name for name, *_ in differing}
    counts = Counter(re.sub(r"\[\d+\]", "[]", field) for _, field, _, _ in differing)
    fields = ", ".join(f"{field} ({n})" for field, n in counts.most_common(6))
    print(f"{part}/{file}: DIFFERENT in {len(ids)} of {len({*left, *right})} records, fields {fields}{notes}")
    for name, field, one, two in differing[:SHOWN]:
        print(f"    {name} {field}:\n      A {_short(one)}\n      B {_short(two)}")
    return 1


def _accepts(line: str, part: str, name: str, field: str) -> bool:
    globs = [*line.split("|"), "*", "*"][:3]
    return all(fnmatchcase(text, glob.strip()) for text, glob in zip((part, name, field), globs, strict=True))


def differences(one: Any, two: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The fields in which two records differ, and both values; a key that one side lacks is ``(absent)`` there."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in [*one, *(k for k in two if k not in one)]:
            where = f"{at}.{key}" if at else str(key)
            if key not in one or key not in two:
                yield where, one.get(key, "(absent)"), two.get(key, "(absent)")
            else:
                yield from differences(one[key], two[key], where)
    elif isinstance(one, list) and isinstance(two, list):
        if len(one) != len(two):
            yield f"{at}.length", len(one), len(two)
        for number, (x, y) in enumerate(zip(one, two, strict=False)):
            yield from differences(x, y, f"{at}[{number}]")
    elif one != two or type(one) is not type(two):
        yield at, one, two


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"
