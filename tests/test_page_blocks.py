"""Each code block of the pages is executed, or listed with the reason in ``tests/fixtures/page_blocks.yaml``."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from page_blocks import ROOT, Block, blocks, commands, pages
from typer.testing import CliRunner

from nl2sql.cli import app

RULES: dict[str, Any] = yaml.safe_load((ROOT / "tests/fixtures/page_blocks.yaml").read_text(encoding="utf-8"))
BLOCKS = [block for page in pages() for block in blocks(page)]
LISTED = [*RULES["elsewhere"], *RULES["not_executed"]]
SCRIPT = {"on_exhausted": "repeat", "replies": {"*": ["SELECT 1 AS one"]}}
NL2SQL = typer.main.get_command(app)
READ = {"yaml": yaml.safe_load, "json": json.loads, "toml": tomllib.loads}


def named(block: Block) -> str:
    return f"{block.page}: {block.text.splitlines()[0]}"


def listed(text: str) -> bool:
    return any(re.search(rule["pattern"], text) for rule in LISTED)


def short(command: str) -> list[str]:
    """The words of a command of the page, so that it ends within seconds (``replace``, ``drop`` and ``set``)."""
    for rule in RULES["replace"]:
        command = re.sub(rule["find"], rule["with"], command)
    words = shlex.split(command)
    for option in RULES["drop"]:
        while option in words:
            del words[words.index(option) : words.index(option) + 2]
    for rule in RULES["set"]:
        if " ".join(words[1:]).startswith(rule["command"]) and not re.search(rule.get("unless", "$^"), command):
            for option, value in rule["options"].items():
                if option in words:
                    del words[words.index(option) : words.index(option) + (2 if value != "" else 1)]
                words += [option, str(value)] if value != "" else [option]
    return words


def _file_of(page: str) -> Path:
    """The code of a page as a file in the working folder."""
    (code,) = (block.text for block in blocks(page) if block.kind == "python")
    file = Path("code_of_a_page.py")
    file.write_text(code, encoding="utf-8")
    return file


def run(command: str) -> None:
    """Run a command in the working folder: nl2sql in this process, what stands before a pipe or ``>`` by bash."""
    command = re.sub(r"\{(docs/\S+)\}", lambda page: str(_file_of(page[1])), command)
    before, piped, last = command.rpartition(" | ")
    given = subprocess.run(["bash", "-c", before], capture_output=True, text=True, check=True).stdout if piped else ""
    if not last.startswith("nl2sql "):
        subprocess.run(["bash", "-c", command], check=True, capture_output=True)
        return
    words = short(last)
    done = CliRunner().invoke(app, words[1:], input=given)
    wanted = 1 if any(re.search(pattern, command) for pattern in RULES["exits_with_1"]) else 0
    assert done.exit_code == wanted, f"{command}\nas {shlex.join(words)}\n{done.output}\n{done.exception!r}"


def execute(block: Block, namespace: dict[str, Any]) -> None:
    if listed(named(block)):
        return
    if block.kind == "shell":
        for command in commands(block):
            if not listed(command):
                run(command)
        return
    file = re.match(r"# (\w+\.(py|toml|yaml))\n", block.text)
    if file:
        Path(file[1]).write_text(block.text, encoding="utf-8")
    elif block.kind == "python":
        code = block.text
        for rule in RULES["replace"]:
            code = re.sub(rule["find"], rule["with"], code)
        exec(compile(code, str(block), "exec"), namespace)
    else:
        assert block.kind in READ, f"{block}: not executed, and not listed in tests/fixtures/page_blocks.yaml"
        READ[block.kind](block.text)


def prepare(folder: Path) -> None:
    """Files that commands of the pages name: a script for the model, short grids, predictions."""
    (folder / "script.json").write_text(json.dumps(SCRIPT), encoding="utf-8")
    (folder / "scripts").mkdir()
    for grid in (ROOT / "scripts").glob("*.yaml"):
        data = yaml.safe_load(grid.read_text(encoding="utf-8"))
        if isinstance(data, dict) and "base" in data:
            data["base"] |= {"limit": 2, "model": "scripted:script.json"}
            data["base"] = {key: value for key, value in data["base"].items() if key not in ("dtype", "adapter")}
            data = {"base": data["base"], "cells": dict(list(data.get("cells", {}).items())[:2])}
            (folder / "scripts" / grid.name).write_text(yaml.safe_dump(data), encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in pages() if blocks(page)])
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    prepare(tmp_path)
    for command in RULES["before"].get(page, []):
        run(command)
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        execute(block, namespace)


def test_each_rule_of_the_list_fits_a_block() -> None:
    texts = [text for block in BLOCKS for text in [named(block), *(commands(block) if block.kind == "shell" else [])]]
    whole = [block.text for block in BLOCKS]
    for rule in LISTED:
        assert any(re.search(rule["pattern"], text) for text in texts), f"fits nothing: {rule}"
    for pattern in [*RULES["exits_with_1"], *(rule["find"] for rule in RULES["replace"])]:
        assert any(re.search(pattern, text) for text in [*texts, *whole]), f"fits nothing: {pattern}"
    assert set(RULES["before"]) <= set(pages())


def test_a_test_that_executes_a_block_elsewhere_exists() -> None:
    for rule in RULES["elsewhere"]:
        file, _, test = rule["by"].partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), rule


def options_of(command: typer.main.click.Command) -> set[str]:
    return {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}


@pytest.mark.parametrize("page", [page for page in pages() if blocks(page)])
def test_the_commands_of_a_page_exist_with_their_options(page: str) -> None:
    """Those that are not executed, too: commands of nl2sql, and scripts."""
    for block in blocks(page):
        for command in commands(block) if block.kind == "shell" else []:
            words = shlex.split(re.sub(r"^.* \| |NL2SQL_BENCHMARKS=\.\.\. ", "", command))
            given = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
            if words[0] == "nl2sql":
                found = NL2SQL
                while hasattr(found, "commands"):
                    words = words[1:]
                    assert words[0] in found.commands, f"{block}: {command}"
                    found = found.commands[words[0]]
                assert given <= options_of(found), f"{block}: {command}: {given - options_of(found)}"
            elif words[0] == "python" and words[1].startswith("scripts/"):
                files = [ROOT / words[1], *(ROOT / "scripts" / "training").glob("*.py")]
                text = "".join(file.read_text(encoding="utf-8") for file in files).replace("-", "_")
                missing = {option for option in given if option.strip("-").replace("-", "_") not in text}
                assert not missing, f"{block}: {command}: {missing}"
