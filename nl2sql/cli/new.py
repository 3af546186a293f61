"""``nl2sql new``: a part of one's own with a test that passes, the project's examples, and what packages add.

The texts of parts stand in ``nl2sql/cli/stubs``; ``NAME`` in them is the part's name.
"""

from __future__ import annotations

import json
import keyword
import sys
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from nl2sql.cli import options as opt
from nl2sql.errors import UsageError, typed

KINDS = {
    "controller": "what turns a question into SQL, for --controller",
    "tool": "what a loop can ask for, for --tool",
    "gate": "what can block an action of a loop, for --gate",
    "benchmark": "questions over a database of one's own, for --benchmark",
}
PLACES = {  # of examples, in a checkout and in a wheel: beside the package's folder and under it
    "notebooks/*.ipynb": "_examples/notebooks/*.ipynb",
    "scripts/*.yaml": "_examples/grids/*.yaml",
    "examples/*.py": "_examples/loops/*.py",
}


def new_command(kind: str) -> Callable[..., None]:
    """The command that starts a part of a kind of ``KINDS``."""

    def new(
        name: Annotated[str, typer.Argument(help="What it is called: a name as Python takes it, e.g. my_loop.")],
        folder: Annotated[Path, typer.Option("--in", help="The folder to write to; made if it is not there.")] = Path(),
    ) -> None:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise UsageError(f"{name!r} is no name of a Python module; for example: nl2sql new {kind} my_{kind}")
        stubs = {f"{name}.py": f"{kind}.txt", f"test_{name}.py": f"test_{kind}.txt"}
        if there := [str(folder / target) for target in stubs if (folder / target).exists()]:
            raise UsageError(f"{' and '.join(there)}: already there; take another name, or another folder with --in")
        texts = {
            target: files("nl2sql.cli").joinpath("stubs", stub).read_text("utf-8") for target, stub in stubs.items()
        }
        _write(folder, {target: text.replace("NAME", name).encode() for target, text in texts.items()})
        print(f"next: cd {folder} && pytest test_{name}.py")

    new.__doc__ = f"""Start a {kind}: {KINDS[kind]}.

    Writes NAME.py and test_NAME.py, which passes as it is.

    \b
    Example: nl2sql new {kind} my_{kind}
    """
    return new


def _write(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files by name, and print their paths. Raises UsageError where the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
    for name in contents:
        print(folder / name)


def examples_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write; made where it does not exist.")],
    force: Annotated[bool, typer.Option(help="Overwrite files that are there.")] = False,
) -> None:
    """Copy the example notebooks, ablation grids and a loop to fork into a folder.

    \b
    Examples:
      nl2sql new examples nl2sql-examples
      nl2sql ablate nl2sql-examples/letter.yaml --out runs/letter
    """
    found = example_files()
    if not found:
        raise UsageError("this installation holds no examples; install the package again")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder: nl2sql new examples my-examples")
    there = [file.name for file in found if (folder / file.name).exists()]
    if there and not force:
        raise UsageError(f"{folder} already holds {', '.join(there)}; name another folder, or add --force")
    _write(folder, {file.name: file.read_bytes() for file in found})
    print(f"next: jupyter lab {typed(folder / found[0].name)}")


def example_files() -> list[Path]:
    """Notebooks, grids, loops, each by name: those of the wheel, or of the checkout that the package is used from."""
    package = Path(__file__).resolve().parent.parent
    files: list[Path] = []
    for pattern, packed in PLACES.items():
        files += sorted(package.glob(packed)) or sorted(package.parent.glob(pattern))
    return files


def plugins_command(
    check: Annotated[
        bool, typer.Option("--check", help="Import each one, and say which cannot be; exit code 1 if any.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """List controllers, tools, gates, rules, benchmarks, models and engines that installed packages add.

    \b
    Examples:
      nl2sql new plugins
      nl2sql new plugins --check --json
    """
    from nl2sql.config.plugins import KINDS, plugin, plugins
    from nl2sql.eval.tables import records_text

    listed = []
    for kind in KINDS:
        for name, entry in plugins(kind).items():
            package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""
            row = {"kind": kind, "name": name, "package": package, "object": entry.value}
            if check:
                try:
                    plugin(kind, name)
                except UsageError as error:
                    row["error"] = str(error)
            listed.append(row)
    if as_json:
        print(json.dumps(listed, indent=2, ensure_ascii=False))
    elif not listed:
        print("no installed package adds anything; docs/adding/plugin.md says how one does")
    else:
        columns = ("kind", "name", "package", "object", *(["error"] if check else []))
        table = [columns, *(tuple(row.get(column, "") for column in columns) for row in listed)]
        print("\n".join(records_text(table, sys.maxsize)))
    if any("error" in row for row in listed):
        raise typer.Exit(1)
