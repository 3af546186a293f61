"""The package's public names exist, and importing it is cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import nl2sql


@pytest.mark.parametrize("name", nl2sql.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(nl2sql, name) is not None


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = "import sys, nl2sql; print([n for n in ('torch', 'transformers', 'sqlglot', 'pandas') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        nl2sql.nope  # noqa: B018


def test_constraints_name_only_versions_that_a_public_index_can_hold() -> None:
    """A local version label (``torch==2.13.0+cpu``) is on no public index: nobody else could install."""
    lines = (Path(__file__).parents[1] / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "+" in line.partition("#")[0]] == []
