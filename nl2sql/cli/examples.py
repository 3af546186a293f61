"""``nl2sql new examples``: the notebooks, grids and the loop of the project, copied to where the reader works."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Where they are in a wheel and in a checkout, under the package's folder and beside it.
PLACES = {
    "notebooks/*.ipynb": "_examples/notebooks/*.ipynb",
    "scripts/*.yaml": "_examples/grids/*.yaml",
    "examples/*.py": "_examples/loops/*.py",
}


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
    from nl2sql.errors import UsageError, typed

    found = example_files()
    if not found:
        raise UsageError("this installation holds no examples; install the package again")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder: nl2sql new examples my-examples")
    there = [file.name for file in found if (folder / file.name).exists()]
    if there and not force:
        raise UsageError(f"{folder} already holds {', '.join(there)}; name another folder, or add --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in found:
            (folder / file.name).write_bytes(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
    for file in found:
        print(folder / file.name)
    print(f"next: jupyter lab {typed(folder / found[0].name)}")


def example_files() -> list[Path]:
    """Notebooks, grids, loops, each by name: those of the wheel, or of the checkout that the package is used from."""
    package = Path(__file__).resolve().parent.parent
    files: list[Path] = []
    for pattern, packed in PLACES.items():
        files += sorted(package.glob(packed)) or sorted(package.parent.glob(pattern))
    return files
