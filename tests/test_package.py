"""The package's public names exist with their types, its rooms are those of the page, and importing it is cheap."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import nl2sql
from nl2sql.agents.prompts import PROMPTS
from nl2sql.config import PROMPT_NAMES

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", nl2sql.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(nl2sql, name) is not None


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = "import sys, nl2sql; print([n for n in ('torch', 'transformers', 'sqlglot', 'pandas') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_no_optional_room_is_loaded_unasked() -> None:
    core = "cli, nl2sql.cli.mcp_server, nl2sql.runs.evaluate, nl2sql.sessions.conversation, nl2sql.benchmarks.load"
    rooms = ("nl2sql.vizql", "nl2sql.agents.vizql")
    code = f"import sys, nl2sql.{core}; print([name for name in sys.modules if name.startswith({rooms})])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        nl2sql.nope  # noqa: B018


def test_constraints_name_only_versions_that_a_public_index_can_hold() -> None:
    """A local version label (``torch==2.13.0+cpu``) is on no public index: nobody else could install."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "+" in line.partition("#")[0]] == []


def test_type_checkers_see_the_names_that_are_loaded_on_first_use() -> None:
    block = next(node for node in ast.parse((ROOT / "nl2sql/__init__.py").read_text()).body if isinstance(node, ast.If))
    seen = {alias.name: line.module for line in block.body if isinstance(line, ast.ImportFrom) for alias in line.names}
    assert seen == nl2sql._HOMES


LIBRARIES = "torch transformers sqlglot numpy sqlalchemy pandas typer rich yaml matplotlib IPython".split()  # noqa: SIM905
PROGRAM = """
import nl2sql

model = nl2sql.load_model("smollm2-135m")
database = nl2sql.SqliteDatabase("shop.sqlite")
episode = nl2sql.react_sql("How many orders were shipped?", database, model)
print(episode.sql.upper(), episode.rows[0])
run = nl2sql.evaluate("packaged", model, "react", limt=4)
run.to_dataframe().head()
wrong: int = episode.sql
"""


def test_a_type_checker_finds_the_mistakes_of_a_user_s_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    skipped = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in LIBRARIES)  # a minute of work
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nfollow_imports = silent\nignore_missing_imports = True\n{skipped}")
    command = [sys.executable, "-m", "mypy", "--config-file=mypy.ini"]
    done = subprocess.run([*command, "program.py"], cwd=tmp_path, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 2, done.stdout
    assert '"limt"' in errors[0] and "program.py:8" in errors[0]
    assert "Incompatible types" in errors[1] and "program.py:10" in errors[1]


SPECIFIED = {  # what the specification names where
    "nl2sql.agent": ["ReactSqlAgent"],
    "nl2sql.agent_tools": ["TOOLS"],
    "nl2sql.agent_utils": ["clean_candidate_with_reason", "enforce_projection_contract", "vanilla_candidate"],
    "nl2sql.eval": ["score"],
    "nl2sql.postprocess": ["guarded_postprocess"],
    "nl2sql.prompts": ["REACT_SYSTEM_PROMPT"],
    "nl2sql.query_runner": ["QueryPool", "SqliteDatabase"],
    "nl2sql.react": ["react_sql"],
    "nl2sql.schema": ["Schema"],
    "nl2sql": ["intent_constraints", "summarize_trace", "validate_constraints", "run_episode"],
}


@pytest.mark.parametrize("path", SPECIFIED)
def test_the_specification_s_names_stand_where_it_puts_them(path: str) -> None:
    module = import_module(path)
    assert [name for name in SPECIFIED[path] if not hasattr(module, name)] == []
    assert module.__name__ == path and Path(module.__file__ or "").is_file()


def test_the_specification_s_evaluation_program_is_score() -> None:
    done = subprocess.run([sys.executable, "-m", "nl2sql.eval", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "Score predictions" in done.stdout


def test_the_page_and_the_checked_contract_name_the_same_rooms_in_the_same_order() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(c for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    checked = [name.strip() for layer in contract["layers"] for name in layer.split("|")]
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = page.partition("```\nnl2sql/\n")[2].partition("```")[0]
    drawn = [line.split()[0] for line in picture.splitlines() if re.match(r"  \w", line)]
    assert [f"nl2sql.{name.removesuffix('.py').rstrip('/')}" for name in drawn] == checked
    entries = {path.name for path in (ROOT / "nl2sql").iterdir()} - {"__pycache__", "__init__.py", "py.typed"}
    assert {name.rstrip("/") for name in drawn} == entries


def test_config_knows_the_prompts_that_there_are() -> None:
    assert tuple(PROMPTS) == PROMPT_NAMES
