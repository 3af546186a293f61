"""The package's public names exist, and importing it is cheap."""

from __future__ import annotations

import subprocess
import sys

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
