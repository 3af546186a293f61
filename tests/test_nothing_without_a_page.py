"""Nothing is without a page: commands, options, configuration keys, public names, variables, kinds of plugins."""

from __future__ import annotations

import re
from collections.abc import Iterator

import typer
import yaml
from page_blocks import ROOT, pages

import nl2sql
from nl2sql.agents.controllers import PACKAGED
from nl2sql.cli import app
from nl2sql.config import PRESETS, Config
from nl2sql.config.plugins import KINDS
from nl2sql.runs import rollouts

WRITTEN = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in pages())  # by hand: without references
COMMANDS, KEYS, NAMES = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("cli", "configuration", "api")
)


def commands(command: typer.main.click.Command, name: str) -> Iterator[tuple[str, typer.main.click.Command]]:
    """Each command that does something, with its full name."""
    below = getattr(command, "commands", {})
    for word, inner in below.items():
        yield from commands(inner, f"{name} {word}")
    if not below:
        yield name, command


ALL = dict(commands(typer.main.get_command(app), "nl2sql"))


def test_each_command_stands_on_a_page_that_says_what_it_is_for() -> None:
    missing = [name for name in ALL if not re.search(rf"{name}\b", WRITTEN)]
    assert not missing, f"no page shows {missing}; docs/cli.md alone lists options"


def test_each_option_stands_in_the_reference_of_its_command_with_a_text() -> None:
    sections = dict(re.findall(r"^## (nl2sql [\w -]+)\n(.*?)(?=^## |\Z)", COMMANDS, re.MULTILINE | re.DOTALL))
    for name, command in ALL.items():
        for parameter in command.params:
            names = [option for option in parameter.opts if option.startswith("-")]
            assert all(option in sections[name] for option in names), f"{name} {names}"
            assert getattr(parameter, "help", "") or not names, f"{name} {names} has no help"


def test_each_configuration_key_stands_in_the_reference_with_its_default() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", KEYS, re.DOTALL)
    given = {key: value for block in blocks[:-1] for key, value in yaml.safe_load(block).items()}
    assert given == Config().model_dump(mode="json")
    assert yaml.safe_load(blocks[-1]) == PRESETS


def test_each_public_name_stands_in_the_reference() -> None:
    shown = {line.rpartition(".")[2] for line in re.findall(r"^::: (\S+)$", NAMES, re.MULTILINE)}
    assert shown == {*nl2sql.__all__, *rollouts.__all__} - {"__version__"}


def test_each_variable_controller_and_kind_of_plugin_stands_on_a_page() -> None:
    sources = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "nl2sql").rglob("*.py"))
    variables = set(re.findall(r"\bNL2SQL_[A-Z][A-Z_]+\b", sources))
    missing = [name for name in sorted(variables) if name not in WRITTEN + COMMANDS]
    missing += [name for name in PACKAGED if not re.search(rf"\b{name}\b", WRITTEN)]
    missing += [kind for kind in KINDS if f'"nl2sql.{kind}"' not in WRITTEN]
    assert len(variables) > 5 and not missing, missing
