"""The list of faults: what an entry of ``scripts/faults/*.yaml`` holds, how it is read, and which are chosen."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

LISTS = Path(__file__).resolve().parent.parent / "faults"
FIELDS = {"rule", "stated", "file", "old", "new", "tests"}


class BadList(Exception):
    """The list of faults or the choice from it cannot be used."""


@dataclass(frozen=True)
class Fault:
    """One entry of the list. ``area`` is the name of its file."""

    area: str
    rule: str
    stated: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def key(self) -> str:
        """What the fault is, whatever the rule's words."""
        return digest([self.file, self.old, self.new, *self.tests])


def digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def read_faults(folder: Path = LISTS) -> list[Fault]:
    """All entries of the lists in a folder. Raises BadList with the file and the entry that is wrong."""
    faults = [fault for path in sorted(folder.glob("*.yaml")) for fault in _faults_of(path)]
    for key, times in Counter(fault.key for fault in faults).items():
        if times > 1:
            rule = next(fault.rule for fault in faults if fault.key == key)
            raise BadList(f"{rule!r} is listed {times} times; leave one")
    return faults


def _faults_of(path: Path) -> Iterator[Fault]:
    for number, entry in enumerate(yaml.safe_load(path.read_text(encoding="utf-8")) or [], 1):
        where = f"{path.name}, entry {number}"
        if not isinstance(entry, dict) or set(entry) != FIELDS:
            raise BadList(f"{where}: {entry!r}; expected the fields {', '.join(sorted(FIELDS))}")
        tests = entry.pop("tests")
        if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
            raise BadList(f"{where}: tests are {tests!r}; expected a list of files or FILE::test")
        if not all(isinstance(text, str) for text in entry.values()):
            raise BadList(f"{where}: {entry!r}; expected text in every field, in quotes where YAML reads it otherwise")
        if entry["old"] == entry["new"] or not entry["old"]:
            raise BadList(f"{where}: old and new text are {entry['old']!r}; expected two different texts")
        yield Fault(path.stem, tests=tuple(tests), **entry)


def planted(text: str, fault: Fault) -> str | None:
    """The file's text with the fault in it; None unless the old text occurs exactly once."""
    return text.replace(fault.old, fault.new) if text.count(fault.old) == 1 else None


def chosen(faults: Sequence[Fault], only: str | None, sample: int | None, seed: int) -> list[Fault]:
    """The faults that a pattern names, or some of them. Raises BadList for a pattern that is none or names nothing."""
    if only is not None:
        try:
            pattern = re.compile(only, re.IGNORECASE)
        except re.error as error:
            raise BadList(f"--only {only!r} is no regular expression: {error}") from None
        faults = [f for f in faults if pattern.search(f"{f.area}: {f.rule} {f.stated} {f.file}")]
    if not faults:
        raise BadList(f"--only {only!r} names none of the faults; see them with --list")
    if sample is None or sample >= len(faults):
        return list(faults)
    drawn = set(random.Random(seed).sample(range(len(faults)), sample))
    return [fault for number, fault in enumerate(faults) if number in drawn]
