"""The notebooks run from anywhere, are committed with their outputs, and show the loop that the package has."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nl2sql.config import ReactConfig
from nl2sql.models.embedded import embedded_names, pull
from nl2sql.agents.react import react

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELL_TIMEOUT_S = 600  # a whole notebook took 35 to 125 s on two cores that other tests kept busy, on a slow machine 400
PARAMETERS = {
    "REACT_MAX_STEPS": 8,
    "REACT_MAX_NEW_TOKENS": 256,
    "REACT_DO_SAMPLE": False,
    "REACT_TEMPERATURE": 0.2,
    "REACT_TOP_P": 0.9,
    "USE_LINK_SCHEMA": True,
    "MAX_CLEAN_REJECT_RETRIES": 1,
}
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|tmp|home|Users|var|usr|opt)/")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    import nbformat  # seconds, which each process that collects the tests would spend

    return nbformat.read(path, as_version=4)


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def outputs_of(cells: list[Any]) -> list[Any]:
    return [output for cell in cells for output in cell.outputs]


def noise(output: Any) -> bool:
    """Is this output an error, a warning or a progress bar?"""
    widget = "application/vnd.jupyter.widget-view+json" in output.get("data", {})
    return output.output_type == "error" or output.get("name") == "stderr" or widget


def loop_display() -> str:
    """The Markdown that the evaluation notebook shows of the loop's source, as committed."""
    cells = code_cells(ROOT / "notebooks" / "03_agentic_eval.ipynb")
    cells = [cell for cell in cells if "getsource(react)" in cell.source]
    assert len(cells) == 1
    return str(cells[0].outputs[0].data["text/markdown"])


@pytest.mark.notebook
@pytest.mark.timeout(1200)
@each_notebook
def test_notebook_runs_in_an_empty_folder_without_errors_or_noise(path: Path) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "execute_notebooks.py"))
    for name in embedded_names():  # here, so that a download's progress bar is not an output of the notebook
        if f'"{name}"' in path.read_text(encoding="utf-8").replace("\\", ""):
            pull(name)
    fresh = script["tidy"](script["execute"](read(path), timeout_s=CELL_TIMEOUT_S))  # a failing cell raises
    cells = [cell for cell in fresh.cells if cell.cell_type == "code"]
    assert not [output for output in outputs_of(cells) if noise(output)]


def test_only_progress_bars_are_taken_out_of_the_outputs() -> None:
    import nbformat

    script = runpy.run_path(str(ROOT / "scripts" / "execute_notebooks.py"))
    stream = {"output_type": "stream", "name": "stderr"}
    bar = nbformat.from_dict({**stream, "text": "react:   0%|          | 0/3\rreact: 100%|##########| 3/3\n"})
    warning = nbformat.from_dict({**stream, "text": "react: 100%|##########| 3/3\nWarning: something is wrong\n"})
    widget = nbformat.v4.new_output("display_data", {script["WIDGET"]: {"model_id": "x"}, "text/plain": "  0%|"})
    table = nbformat.v4.new_output("display_data", {"text/html": "<table></table>"})
    assert [script["is_bar"](output) for output in (bar, warning, widget, table)] == [True, False, True, False]


def outputs_with(kind: str, name: str) -> list[Any]:
    return [output for output in outputs_of(code_cells(ROOT / "notebooks" / name)) if kind in output.get("data", {})]


def test_committed_notebooks_show_figures_traces_and_a_report() -> None:
    for name in ("03_agentic_eval.ipynb", "04_ablations.ipynb", "07_error_analysis.ipynb"):
        assert outputs_with("image/png", name), name
    assert any("step good" in output.data["text/html"] for output in outputs_with("text/html", "01_quickstart.ipynb"))
    assert any("<iframe" in output.data["text/html"] for output in outputs_with("text/html", "07_error_analysis.ipynb"))


@each_notebook
def test_progress_bars_are_on(path: Path) -> None:
    assert not [cell.source for cell in code_cells(path) if "progress=False" in cell.source.replace(" ", "")]


@each_notebook
def test_committed_notebook_was_executed_from_top_to_bottom(path: Path) -> None:
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert outputs_of(cells)


@each_notebook
def test_committed_outputs_hold_no_errors_and_no_progress_bars(path: Path) -> None:
    assert not [output for output in outputs_of(code_cells(path)) if noise(output)]


@each_notebook
def test_committed_notebook_names_no_path_of_this_machine(path: Path) -> None:
    found = MACHINE_PATH.search(path.read_text(encoding="utf-8"))
    assert found is None, found


@each_notebook
def test_committed_notebook_holds_no_execution_times(path: Path) -> None:
    notebook = read(path)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert all(not cell.metadata for cell in notebook.cells)


def test_displayed_loop_is_the_packages() -> None:
    expected = f"```python\n{inspect.getsource(react)}```"
    assert loop_display() == expected, "stale: run python scripts/execute_notebooks.py notebooks/03_agentic_eval.ipynb"


def test_seven_loop_parameters_are_set_in_one_cell_with_the_references_values() -> None:
    cell = next(c for c in code_cells(ROOT / "notebooks/03_agentic_eval.ipynb") if "REACT_MAX_STEPS =" in c.source)
    assigned = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(cell.source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert assigned == PARAMETERS


def test_the_references_values_are_the_packages_defaults() -> None:
    fields = [name.lower().removeprefix("react_") for name in PARAMETERS]
    defaults = ReactConfig()
    assert [getattr(defaults, field) for field in fields] == list(PARAMETERS.values())


def test_each_parameter_is_used_in_the_config() -> None:
    sources = "\n".join(c.source for c in code_cells(ROOT / "notebooks/03_agentic_eval.ipynb"))
    for name in PARAMETERS:
        assert re.search(rf"=\s*{name}\b", sources), f"{name} is set but not used"


def test_refreshing_a_notebook_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    missing = tmp_path / "nothing.ipynb"
    script = ROOT / "scripts" / "execute_notebooks.py"
    found = subprocess.run([sys.executable, str(script), str(missing)], capture_output=True, text=True)
    assert found.returncode == 2
    assert found.stderr == f"error: {missing} does not exist\n"
