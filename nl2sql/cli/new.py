"""``nl2sql new controller|tool|gate|benchmark``: a part of one's own with a scripted model and a test that passes.

The texts stand in ``nl2sql/cli/stubs``; ``NAME`` in them is the part's name.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

KINDS = {
    "controller": "what turns a question into SQL, for --controller",
    "tool": "what a loop can ask for, for --tool",
    "gate": "what can block an action of a loop, for --gate",
    "benchmark": "questions over a database of one's own, for --benchmark",
}


def new_command(kind: str) -> Callable[..., None]:
    """The command that starts a part of a kind of ``KINDS``."""

    def new(
        name: Annotated[str, typer.Argument(help="What it is called: a name as Python takes it, e.g. my_loop.")],
        folder: Annotated[Path, typer.Option("--in", help="The folder to write to; made if it is not there.")] = Path(),
    ) -> None:
        for file in write_part(kind, name, folder):
            print(file)
        print(f"next: cd {folder} && pytest test_{name}.py")

    new.__doc__ = f"""Start a {kind}: {KINDS[kind]}. Writes NAME.py and test_NAME.py, which passes as it is.

    \b
    Example: nl2sql new {kind} my_{kind}
    """
    return new


def write_part(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the part and its test. Raises UsageError for a name that is none, and where a file is there already."""
    from nl2sql.errors import UsageError

    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{name!r} is no name of a Python module; for example: nl2sql new {kind} my_{kind}")
    targets = {folder / f"{name}.py": f"{kind}.txt", folder / f"test_{name}.py": f"test_{kind}.txt"}
    if there := [str(target) for target in targets if target.exists()]:
        raise UsageError(f"{' and '.join(there)}: already there; take another name, or another folder with --in")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for target, stub in targets.items():
            text = files("nl2sql.cli").joinpath("stubs", stub).read_text(encoding="utf-8")
            target.write_text(text.replace("NAME", name), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
    return list(targets)
