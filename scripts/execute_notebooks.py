"""Execute the notebooks and save them with their outputs: ``python scripts/execute_notebooks.py [NOTEBOOK ...]``.

What would change from machine to machine without saying anything is left out: execution times, interpreter versions,
progress bars, and the plain-text twin of a long HTML output. A notebook whose cell fails is not saved.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
LONGEST_TWIN = 2000  # characters
WIDGET = "application/vnd.jupyter.widget-view+json"
BAR = re.compile(r"\d+%\||\d+it \[")


def execute(notebook: Any, *, timeout_s: int = 120) -> Any:
    """Run all cells in a fresh kernel and an empty working folder; ``timeout_s`` is per cell.

    Returns ``notebook``. Raises CellExecutionError.
    """
    with tempfile.TemporaryDirectory(prefix="nl2sql-notebook-") as empty:
        client = NotebookClient(
            notebook,
            timeout=timeout_s,
            record_timing=False,
            extra_arguments=["--IPKernelApp.log_level=40"],  # no warnings of the kernel's own into the terminal
            resources={"metadata": {"path": empty}},
        )
        client.execute()
    return notebook


def is_bar(output: Any) -> bool:
    """Is an output a progress bar, as a widget or as text that redraws itself, and nothing else?"""
    if WIDGET in output.get("data", {}):
        return True
    lines = re.split(r"[\r\n]", output.get("text", "")) if output.get("name") == "stderr" else []
    return bool(lines) and all(BAR.search(line) or not line.strip() for line in lines)


def tidy(notebook: Any) -> Any:
    """Keep what a reader needs: sources, outputs, the kernel's name. Returns ``notebook``."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if not is_bar(output)]
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/html" in data and len(data.get("text/plain", "")) > LONGEST_TWIN:
                del data["text/plain"]
    return notebook


def main() -> int:
    parser = argparse.ArgumentParser(description="Execute notebooks in place.")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of notebooks/")
    parser.add_argument("--timeout", type=int, default=600, help="seconds per cell (default 600)")
    options = parser.parse_args()
    for path in options.notebooks or sorted(FOLDER.glob("*.ipynb")):
        started = time.perf_counter()
        try:
            notebook = execute(nbformat.read(path, as_version=4), timeout_s=options.timeout)
        except FileNotFoundError:
            print(f"error: {path} does not exist", file=sys.stderr)
            return 2
        except CellExecutionError as error:
            print(f"error: {path.name} failed and was not saved:\n{error}", file=sys.stderr)
            return 1
        nbformat.write(tidy(notebook), path)
        print(f"{path.name}: {time.perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
