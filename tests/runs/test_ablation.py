"""Ablations: grids are checked before anything runs; a cell that must differ does, one that cannot does not."""

from __future__ import annotations

import inspect
import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from nl2sql.benchmarks import load_benchmark
from nl2sql.cli import app
from nl2sql.errors import Cancelled, UsageError
from nl2sql.models import load_model
from nl2sql.runs import ablation as module
from nl2sql.runs.ablation import (
    BASE,
    PLAN_AXES,
    SHARED,
    Ablation,
    ablate,
    ablation_text,
    check_metric,
    expand,
    read_grid,
)
from nl2sql.runs.evaluate import resume
from nl2sql.runs.folder import read_jsonl
from nl2sql.runs.job import Trial
from nl2sql.runs.plan import MODEL_OPTIONS, RunSpec
from nl2sql.runs.rescore import replay
from nl2sql.runs.run import Run

ROOT = Path(__file__).resolve().parents[2]
BAD = (ROOT / "tests" / "fixtures" / "bad_grids.txt").read_text(encoding="utf-8").split("\n---\n")
GATES = [f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")]


def mending_script(path: Path) -> str:
    """Every second question is right only after a forced repair: the model itself never asks for one."""
    replies: dict[str, Any] = {}
    for number, question in enumerate(load_benchmark("packaged", split="quick").questions):
        gold, wrong = question.gold[0], "SELECT 1 AS one FROM nowhere"
        start = ["Action: extract_constraints[{}]", "Action: generate_sql[{}]"]
        # with repair: "done" is overridden by repair_sql, whose reply is the gold; without: it is a step for nothing
        acts = [wrong, GATES[0], "done", gold, *GATES] if number % 2 else [gold, *GATES]
        replies[question.text] = {"react": [*start, *acts, *["no"] * 20], "single_shot": [wrong]}
    path.write_text(json.dumps({"replies": replies}), encoding="utf-8")
    return f"scripted:{path}"


def grid_of(model: str, **parts: Any) -> dict[str, Any]:
    base = {"model": model, "limit": 20, "config": {"eval": {"replicas": 0}}}
    return {"base": base, **parts}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    folder = tmp_path_factory.mktemp("ablation")
    model = mending_script(folder / "script.json")
    cells = expand(
        grid_of(model, axes={"react.repair": [True, False], "react.vanilla": [False]}, cells={"renamed": {}})
    )
    return ablate(cells, folder / "out", progress=False)


# ------------------------------------------------------------------------------------------------------ grids


def names(grid: dict[str, Any]) -> list[str]:
    return [cell.name for cell in expand(grid)]


def test_one_at_a_time_changes_one_key_per_cell() -> None:
    grid = {"axes": {"react.repair": [False], "react.max_steps": [4, 8, 16], "controller": ["react_plus"]}}
    cells = {cell.name: cell for cell in expand(grid)}
    assert list(cells) == [
        BASE,
        "repair=false",
        "max_steps=4",
        "max_steps=16",
        "controller=react_plus",
    ]  # 8 is the base's
    assert cells["max_steps=4"].config.react.max_steps == 4 and cells["max_steps=4"].config.react.repair
    assert cells["controller=react_plus"].config.react.auto_finish  # the controller's preset


def test_a_full_grid_has_every_combination() -> None:
    grid = {"design": "grid", "axes": {"react.repair": [True, False], "constrain": ["none", "action"]}}
    assert names(grid) == [
        BASE,
        "repair=true,constrain=action",
        "repair=false,constrain=none",
        "repair=false,constrain=action",
    ]


def test_every_option_of_a_run_has_its_place_in_a_grid() -> None:
    placed = {*SHARED, *PLAN_AXES, "seeds", "objects"}  # seeds: the axis ``seed``; objects: not from a file
    placed |= {"turns"}  # a cell names the form itself: react.native_tools
    assert placed == {field.name for field in fields(RunSpec)}
    of_models = set(inspect.signature(load_model).parameters) - {"spec"}
    assert of_models <= set(MODEL_OPTIONS), "cells would share a model that is not theirs"


def test_tools_and_gates_of_ones_own_stand_in_the_base() -> None:
    cells = expand({"base": {"tools": ["own.py:look_up"], "gates": []}, "axes": {"react.repair": [False]}})
    assert [cell.plan.tools for cell in cells] == [("own.py:look_up",)] * 2
    with pytest.raises(UsageError, match="expected a list of texts"):
        expand({"base": {"tools": "own.py:look_up"}, "axes": {"react.repair": [False]}})


def test_every_config_key_can_be_an_axis() -> None:
    from nl2sql.config import Config, config_keys

    defaults = Config()
    for key in config_keys():
        value: Any = defaults
        for part in key.split("."):
            value = getattr(value, part)
        assert names({"axes": {key: [value]}, "cells": {"same": {key: value}}}) == [BASE, "same"]


def test_a_base_setting_goes_before_the_preset_and_a_cell_before_the_base() -> None:
    base = {"controller": "react_plus", "config": {"react": {"auto_finish": False, "max_steps": 5}}}
    cells = {cell.name: cell.config.react for cell in expand({"base": base, "cells": {"x": {"react.max_steps": 3}}})}
    assert cells[BASE].repeat_hint and not cells[BASE].auto_finish and cells["x"].max_steps == 3


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.split("\n")[0])
def test_an_invalid_grid_is_refused_in_one_line_that_says_what_is_wrong(case: str, tmp_path: Path) -> None:
    message, _, text = case.removeprefix("# ").partition("\n")
    (tmp_path / "grid.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as found:
        read_grid(tmp_path / "grid.yaml")
    assert message in str(found.value) and "\n" not in str(found.value)
    assert str(found.value).startswith(f"grid {tmp_path / 'grid.yaml'}")


def test_a_grid_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_grid(tmp_path / "nowhere.yaml")


def test_the_packaged_grid_has_eight_cells_of_120_questions() -> None:
    cells = read_grid(ROOT / "scripts" / "ablation.yaml")
    assert len(cells) == 8 and {cell.plan.limit for cell in cells} == {120}
    assert {"renamed", "no-repair", "no-schema"} <= {cell.name for cell in cells}


# ------------------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("file", ["ablation.yaml", "reflection.yaml", "adapter.yaml", "sessions.yaml"])
def test_a_cell_differs_from_the_base_in_what_it_names_and_nothing_else(file: str) -> None:
    text = (ROOT / "scripts" / file).read_text(encoding="utf-8")
    grid = yaml.safe_load(text)
    for _ in range(2):  # expanding leaves the grid as it is
        base, *cells = expand(grid)
        for cell in cells:
            ours, theirs = (module._flat(one.plan, one.config) for one in (cell, base))
            changed = {key for key in ours if ours[key] != theirs[key]}
            named = set(cell.changed)
            assert changed == named or (cell.plan.controller == "react_plus" and named <= changed), cell.name
    assert grid == yaml.safe_load(text)


def test_a_cell_that_must_differ_differs_and_a_renamed_one_does_not(done: Ablation) -> None:
    tests = done.tests()
    assert tests["repair=false"].losses == 10 and tests["repair=false"].wins == 0
    assert tests["repair=false"].p_holm is not None and tests["repair=false"].p_holm < 0.01
    assert (tests["renamed"].wins, tests["renamed"].losses, tests["renamed"].p_holm) == (0, 0, 1.0)


def test_the_table_shows_tests_and_what_they_detect(done: Ablation) -> None:
    text = ablation_text(done)
    line = next(line for line in text.splitlines() if line.startswith("repair=false"))
    assert "-50.0" in line and "p (Holm)" in text and "single_shot, with guardrails" in text
    data = json.loads((done.folder / "ablation.json").read_text(encoding="utf-8"))
    assert [cell["name"] for cell in data["cells"]] == [cell.name for cell in done.cells]
    assert data["cells"][0]["test"] is None and data["cells"][1]["test"]["losses"] == 10
    with pytest.raises(UsageError, match=r"one of VA, EM, EX\[bag\]"):
        done.tests("TS")
    assert done.metric("EX") == "EX[bag]"


def test_seconds_of_cached_answers_are_said_to_be_none(done: Ablation) -> None:
    data = done.to_dict()
    assert not any("no measurement" in note for note in module.ablation_notes(data))
    data["cells"][2]["usage"] = {**data["cells"][2]["usage"], "cached_calls": 3}
    assert any(note.endswith("no measurement: vanilla=false") for note in module.ablation_notes(data))


def test_each_cell_is_an_ordinary_run(done: Ablation) -> None:
    run = Run.load(done.folder / "renamed")
    assert resume(run.folder, progress=False, trust=True).report["metrics"] == run.report["metrics"]
    assert len(run.to_dataframe()) == 20


def test_what_is_finished_is_not_done_again(done: Ablation, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a finished cell was opened")

    monkeypatch.setattr(module, "RunContext", never)
    assert ablate(done.cells, done.folder, progress=False).to_dict() == done.to_dict()


CHANGED = [  # (part of a finished cell's manifest, what is said)
    (("prompts", "generate_user"), "prompts"),
    (("members", "few_shot_pool"), "few_shot_pool changed since"),
    (("fingerprints", "scale_models"), "scale_models changed between the cells"),
    (("model", "revision"), r"model scripted:.* changed between the cells"),
]


@pytest.mark.parametrize(("part", "wanted"), CHANGED, ids=lambda value: str(value))
def test_cells_of_different_prompts_data_or_weights_are_not_compared(
    part: tuple[str, str], wanted: str, done: Ablation, tmp_path: Path
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(done.folder, out)
    path = out / "renamed" / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest[part[0]][part[1]] = manifest["key"] = "other"
    for file in (out / "renamed").glob("*.jsonl"):
        file.write_text(file.read_text(encoding="utf-8").replace(key_of(done), "other"), encoding="utf-8")
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(UsageError, match=wanted):
        ablate(done.cells, out, progress=False)


def key_of(done: Ablation) -> str:
    return str(done.runs["renamed"].manifest["key"])


def test_an_interrupted_ablation_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mending_script(tmp_path / "script.json")
    grid = grid_of(model, cells={"one": {"react.repair": False}, "two": {}})
    whole = ablate(expand(grid), tmp_path / "whole", progress=False).to_dict()
    run_trial, started = module.run_trial, []

    def stopping(cell: Trial, folder: Path, opened: Any, **options: Any) -> Any:
        started.append(folder.name)
        if started == [BASE, "one"]:
            raise KeyboardInterrupt
        return run_trial(cell, folder, opened, **options)

    monkeypatch.setattr(module, "run_trial", stopping)
    with pytest.raises(Cancelled, match=r"interrupted in cell one; what is finished is kept .* continue with: again"):
        ablate(expand(grid), tmp_path / "out", command="again", progress=False)
    resumed = ablate(expand(grid), tmp_path / "out", progress=False).to_dict()
    assert started == [BASE, "one", "one", "two"]
    verdicts = [[(cell["name"], cell["metrics"], cell["test"]) for cell in data["cells"]] for data in (whole, resumed)]
    assert verdicts[0] == verdicts[1]


def test_the_bar_counts_every_question_of_every_cell_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, int] = {"total": 0, "done": 0}

    class Bar:
        def __init__(self, total: int, **_: Any) -> None:
            seen["total"] = total

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: Any) -> None: ...

        def set_description(self, _: str) -> None: ...

        def update(self, count: int) -> None:
            seen["done"] += count

    monkeypatch.setattr(module, "tqdm", Bar)
    model = mending_script(tmp_path / "script.json")
    ablate(expand(grid_of(model, cells={"shot": {"controller": "single_shot"}})), tmp_path / "out", progress=False)
    assert seen == {"total": 20 * 3, "done": 20 * 3}  # the base with its control, and the control alone
    assert len(read_jsonl(tmp_path / "out" / "shot" / "predictions.jsonl")) == 20


# ---------------------------------------------------------------------------------------------------- folders


def test_a_folder_is_one_ablation_and_nothing_else(done: Ablation, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds a run of nl2sql eval"):
        ablate(done.cells, done.folder / BASE)
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="is not empty and no ablation"):
        ablate(done.cells, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"base": {"model": "smolm2-135m"}}, "cell base: unknown model 'smolm2-135m'; did you mean"),
        ({"cells": {"late": {"model": "nowhere.gguf"}}}, "cell late: model file 'nowhere.gguf' does not exist"),
        ({"base": {"model": "scripted:nowhere.json"}}, "nowhere.json"),
        ({"base": {"benchmark": "nowhere"}}, "nowhere"),
    ],
)
def test_a_grid_that_cannot_be_run_leaves_nothing_behind(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    grid = grid_of(mending_script(tmp_path / "script.json"), cells={"one": {}})
    grid = {key: {**value, **changed.get(key, {})} for key, value in grid.items()}
    with pytest.raises(UsageError, match=message):
        ablate(expand(grid), tmp_path / "out", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["script.json"]


def test_a_cell_of_the_same_name_with_other_settings_is_refused_before_anything_runs(done: Ablation) -> None:
    model = done.cells[0].plan.model
    cells = expand(grid_of(model, cells={"new": {}, "renamed": {"react.max_steps": 3}}))
    with pytest.raises(
        UsageError, match=r"cell renamed in .* was begun with react.max_steps=8, and the grid now says 3"
    ):
        ablate(cells, done.folder)


def test_an_ablation_of_another_version_is_refused_by_name(done: Ablation, tmp_path: Path) -> None:
    (tmp_path / "ablation.json").write_text('{"format": 7, "nl2sql": "9.9"}', encoding="utf-8")
    with pytest.raises(UsageError, match=r"ablation format 7 of nl2sql 9\.9"):
        ablate(done.cells, tmp_path)


def test_a_grid_can_grow(done: Ablation) -> None:
    model = done.cells[0].plan.model
    axes = {"react.repair": [True, False], "react.vanilla": [False]}
    cells = expand(grid_of(model, axes=axes, cells={"renamed": {}, "more": {"react.max_steps": 9}}))
    assert "more" in ablate(cells, done.folder, progress=False).runs


def test_a_metric_that_the_cells_will_not_have_is_refused_before_one_runs(tmp_path: Path) -> None:
    grid = grid_of(mending_script(tmp_path / "s.json"), cells={"suites": {"eval.replicas": 2}})
    (tmp_path / "g.yaml").write_text(json.dumps(grid), encoding="utf-8")
    command = ["ablate", str(tmp_path / "g.yaml"), "--out", str(tmp_path / "out"), "--metric"]
    for name in ("EXX", "TS", "TS[bag,perturb,N=2]"):
        error = CliRunner().invoke(app, [*command, name]).exception
        assert isinstance(error, UsageError) and "one of VA, EM, EX[bag]" in str(error)
    assert not (tmp_path / "out").exists()
    check_metric(expand(grid, ["eval.replicas=2"]), "TS")


def test_the_packaged_grid_reads_as_yaml() -> None:
    assert yaml.safe_load((ROOT / "scripts" / "ablation.yaml").read_text(encoding="utf-8"))["base"]["limit"] == 120


def test_an_ablation_is_scored_by_the_rule_that_is_asked_for(tmp_path: Path) -> None:
    grid = grid_of(mending_script(tmp_path / "s.json"), cells={"no-repair": {"react.repair": False}})
    cells = expand(grid, ["eval.rule=bird-set"])
    done = ablate(cells, tmp_path / "out", progress=False)
    data = done.to_dict()
    assert data["metric"] == "EX[bird-set]" and "EX[bird-set]" in ablation_text(done)
    assert done.tests()["no-repair"].losses > 0 == done.tests("VA")["no-repair"].wins
    replay(tmp_path / "out" / "no-repair", overrides=["eval.rule=spider"], replace=True, progress=False)
    again = rf"nl2sql runs replay {tmp_path}/out/no-repair -c eval.rule=bird-set --replace"
    with pytest.raises(UsageError, match=again):
        ablate(cells, tmp_path / "out", progress=False)
    with pytest.raises(UsageError, match="cell rule=spider is scored by spider and cell base by bag"):
        ablate(expand(grid | {"axes": {"eval.rule": ["spider"]}}), tmp_path / "other", progress=False)
    assert not (tmp_path / "other").exists()
