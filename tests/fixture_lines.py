"""Fixtures of one case a line: a first word (the verdict), a blank, and the text; ``#`` begins a remark."""

from __future__ import annotations

from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"


def read_cases(name: str) -> list[list[str]]:
    """``[verdict, text]`` of every line of a fixture that is neither empty nor a remark."""
    lines = (FIXTURES / name).read_text(encoding="utf-8").splitlines()
    return [line.split(" ", 1) for line in lines if line and not line.startswith("#")]
