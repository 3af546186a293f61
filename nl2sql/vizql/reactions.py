"""What to do about an error of the VizQL Data Service: mend the query, stop, or send it again (``reactions.yaml``).

>>> [reaction(kind) for kind in ("400803", "429000", "503800", "something else")]
['refine', 'stop', 'again', 'stop']

``VizqlService.run`` has sent a request again itself: to its caller, ``again`` says that this did not help.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import yaml

Reaction: TypeAlias = Literal["refine", "stop", "again"]
FILE = Path(__file__).with_name("reactions.yaml")


@dataclass(frozen=True)
class KnownCode:
    """An entry of the table: a code, or a pattern of codes, what to do about it, and what it means."""

    code: str
    reaction: Reaction
    meaning: str


def reaction(error_kind: str | None) -> Reaction:
    """What to do about an error of this kind (``RunResult.error_kind``). What is not in the table is ``stop``."""
    known = known_code(error_kind or "")
    return known.reaction if known else "stop"


def known_code(error_kind: str) -> KnownCode | None:
    """The first entry of the table that fits a kind of error; None where none does."""
    return next((known for known in known_codes() if fnmatchcase(error_kind, known.code)), None)


@cache
def known_codes() -> tuple[KnownCode, ...]:
    """The table, in its order."""
    return tuple(KnownCode(**entry) for entry in _table()["codes"])


def pauses() -> tuple[float, ...]:
    """The seconds to wait before a request is sent again: one number for each time."""
    return tuple(map(float, _table()["pauses_s"]))


@cache
def _table() -> dict:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))
