"""scripts/record_behaviour.py: a checkout is recorded twice and compared; one other verdict is a difference."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from unittest import mock

import programs
import pytest

PARTS = "scripted_single_shot,react_fixtures,score_spider_1000,real_react"


def tool(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script in ``place``, with an empty cache and without benchmarks."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NL2SQL_")}
    environment = kept | {"NL2SQL_CACHE": str(place / "cache")}
    with contextlib.chdir(place), mock.patch.dict(os.environ, environment, clear=True):
        return programs.script("record_behaviour.py", *arguments)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs, and two recordings of this checkout: ``one`` and ``two``."""
    folder = tmp_path_factory.mktemp("behaviour")
    made = tool(folder, "inputs", "--inputs", "in")
    assert made.returncode == 0, made.stderr
    for out in ("one", "two"):
        if out == "two":
            shutil.copytree(folder / "one" / "cache", folder / "two" / "cache")  # the changed copies of the databases
        done = tool(folder, "record", "--inputs", "in", "--out", out, "--only", PARTS)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "left out, NL2SQL_BENCHMARKS is not set (a folder with spider/ in it): score_spider_1000" in done.stdout
        assert f"left out, {folder / 'in'} has no weights" in done.stdout
    return folder


def edited(place: Path, name: str, file: str, old: str, new: str) -> Path:
    """A copy of recording ``two`` with the first ``old`` in a file of scripted_single_shot as ``new``."""
    copy = place / name
    shutil.copytree(place / "two", copy, symlinks=True)
    path = copy / "scripted_single_shot" / "run" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return copy


def test_a_checkout_does_twice_the_same(place: Path) -> None:
    compared = tool(place, "compare", "one", "two")
    assert compared.returncode == 0, compared.stdout + compared.stderr
    lines = compared.stdout.splitlines()
    assert "scripted_single_shot/run/predictions.jsonl: same: 40 lines" in lines
    transcripts = len(list((place / "in" / "react_fixtures").iterdir()))
    assert f"react_fixtures/stdout: same: {transcripts} lines" in lines
    assert lines[-1] == "2 parts: all the same"


def test_what_is_recorded_is_not_recorded_again(place: Path) -> None:
    before = (place / "one" / "react_fixtures" / "done.json").stat().st_mtime_ns
    again = tool(place, "record", "--inputs", "in", "--out", "one", "--only", "react_fixtures")
    assert (again.returncode, again.stdout) == (0, "")
    assert (place / "one" / "react_fixtures" / "done.json").stat().st_mtime_ns == before


def test_another_verdict_is_a_difference_that_names_the_field(place: Path) -> None:
    edited(place, "verdict", "report.json", '"ex": true', '"ex": false')
    compared = tool(place, "compare", "one", "verdict")
    assert compared.returncode == 1, compared.stdout + compared.stderr
    said = "scripted_single_shot/run/report.json items: DIFFERENT in 1 of 40 records, fields ex (1)"
    assert said in compared.stdout
    assert compared.stdout.splitlines()[-1] == "2 parts, 1 files differ"


def test_a_key_that_one_side_lacks_can_be_accepted(place: Path) -> None:
    edited(place, "key", "manifest.json", '"deterministic": false', '"deterministic": false, "stepwise": false')
    compared = tool(place, "compare", "one", "key")
    assert compared.returncode == 1
    assert "fields config.repair.stepwise (1)" in compared.stdout
    (place / "accept").write_text("# left the configuration\nscripted_*||config.repair.*\n", encoding="utf-8")
    accepted = tool(place, "compare", "one", "key", "--accept", "accept")
    assert accepted.returncode == 0, accepted.stdout
    assert "scripted_single_shot/run/manifest.json: same: 1 record  (1 accepted differences)" in accepted.stdout


def test_a_part_that_was_not_recorded_is_a_difference(place: Path) -> None:
    copy = shutil.copytree(place / "two", place / "fewer", symlinks=True)
    shutil.rmtree(copy / "react_fixtures")
    compared = tool(place, "compare", "one", "fewer")
    assert compared.returncode == 1
    assert f"react_fixtures: MISSING in {copy}" in compared.stdout
