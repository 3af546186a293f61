"""The table of runs for a paper, in each of its formats."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from synthetic_run import write_run
from typer.testing import CliRunner

from nl2sql.cli.runs import report_command
from nl2sql.eval.tables import FORMATS, table_csv, table_latex
from nl2sql.runs.run import HEAD, Run, paper_rows, spread_rows

app = typer.Typer()
app.command()(report_command)


@pytest.fixture
def printed(tmp_path: Path) -> Callable[[str], str]:
    """What the command prints about two runs, by format."""
    runs = [str(write_run(tmp_path / name, 6, seed=at)) for at, name in enumerate(("first", "second"))]

    def prints(format_: str) -> str:
        result = CliRunner().invoke(app, [*runs, "--format", format_], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return prints


def test_each_run_and_each_control_is_a_row_with_its_test(printed: Callable[[str], str]) -> None:
    head, *rows = list(csv.reader(io.StringIO(printed("csv"))))
    assert head == HEAD.split("|")
    runs = [row for row in rows if row[head.index("won")]]
    assert len(runs) == 2 and len(rows) > 2, "a control has no test against itself"
    assert {row[head.index("pipeline")] for row in rows} > {"single_shot"}


def test_every_format_holds_the_same_cells(tmp_path: Path, printed: Callable[[str], str]) -> None:
    rows = paper_rows([Run.load(tmp_path / name).report for name in ("first", "second")])
    for name in FORMATS:
        shown = printed(name).replace("\\_", "_").replace("\\%", "%")
        assert all(cell in shown for row in rows for cell in row), name
    assert not (tmp_path / "report.html").exists(), "with --format no page is written"


def test_a_control_that_several_runs_share_stands_once(tmp_path: Path) -> None:
    report = Run.load(write_run(tmp_path / "run", 6)).report
    assert paper_rows([report, report]) == paper_rows([report])


def test_seconds_of_cached_answers_are_marked(tmp_path: Path) -> None:
    report = Run.load(write_run(tmp_path / "run", 6)).report
    timed = paper_rows([report])[1][-1]
    usage = {**report["usage"], "cached_calls": 1}
    assert timed and paper_rows([{**report, "usage": usage}])[1][-1] == "cached"


def test_the_rarer_columns_stand_with_verbose_alone(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 6)
    report = Run.load(folder).report
    (head, row, *_), (usual, short, *_) = paper_rows([report], verbose=True), paper_rows([report])
    assert head[: len(usual)] == usual and row[: len(short)] == short
    assert head[len(usual) :] == ["p (McNemar)", "EM", "calls / question"] and len(row) == len(head)
    command = [str(folder), "--format", "csv", "--verbose"]
    assert "p (McNemar)" in CliRunner().invoke(app, command, catch_exceptions=False).stdout


def test_what_latex_would_read_as_a_command_is_escaped() -> None:
    shown = table_latex([["a_b", "100%"], ["x & y", r"\input{/etc/passwd} ~^#$<>|"]])
    assert r"a\_b & 100\% \\" in shown and r"x \& y" in shown
    assert r"\textbackslash{}input\{/etc/passwd\}" in shown


@pytest.mark.skipif(not (shutil.which("pdflatex") or shutil.which("tectonic")), reason="needs LaTeX")
def test_the_table_compiles(tmp_path: Path, printed: Callable[[str], str]) -> None:
    begin = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\\tiny\n"
    (tmp_path / "t.tex").write_text(begin + printed("latex") + "\\end{document}\n", encoding="utf-8")
    command = ["pdflatex", "-halt-on-error"] if shutil.which("pdflatex") else ["tectonic"]
    done = subprocess.run([*command, "t.tex"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize(
    ("cell", "written"), [("=1+1", "'=1+1"), ("@x", "'@x"), ("+3.1", "+3.1"), ("-3", "-3"), ("-x", "'-x")]
)
def test_no_cell_of_csv_is_a_formula(cell: str, written: str) -> None:
    assert table_csv([["a", cell]]) == f"a,{written}"


def test_runs_that_differ_in_their_seed_alone_have_a_mean_and_a_spread(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, 6) for name in ("one", "two", "other")]
    for folder, seed, ex in zip(folders, (1, 2, 3), (0.5, 0.6, 0.9), strict=True):
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        manifest["config"] |= {"seed": seed} | ({"prompts": {"react_system": "x"}} if seed == 3 else {})
        (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        report["metrics"][next(name for name in report["metrics"] if name.startswith("EX"))]["value"] = ex
        (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")
    shown = CliRunner().invoke(app, [*map(str, folders), "--format", "csv"], catch_exceptions=False).stdout
    head, *rows = list(csv.reader(io.StringIO(shown)))
    (spread,) = [row for row in rows if "mean of" in row[head.index("pipeline")]]
    assert spread[head.index("EX")] == "55.0 ± 7.1" and "mean of 2 seeds" in spread[head.index("pipeline")]
    assert spread_rows([Run.load(folders[0])]) == []
