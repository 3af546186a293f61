"""What a manifest names is opened on the word of whoever asks, and nothing is imported before that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from click.testing import CliRunner

from nl2sql.cli import app
from nl2sql.config import build_config
from nl2sql.errors import UsageError
from nl2sql.machine import with_password
from nl2sql.runs.evaluate import resume, start
from nl2sql.runs.plan import ALL, READ, SCORED, RunSpec, Trust, check_named, said_again

URL = "postgresql://$USER:a$SECRET@box:1/$HOME"
NO_TS = build_config({"eval": {"replicas": 0}})


def refused(plan: RunSpec, settings: tuple[str, ...] = ALL, trust: Trust | bool = False, **scoring: object) -> str:
    try:
        check_named(Path("theirs"), plan, build_config({"eval": scoring}), trust, settings)
    except UsageError as error:
        return str(error)
    return ""


def test_what_is_packaged_is_opened() -> None:
    assert not refused(RunSpec()) and not refused(RunSpec(benchmark="vizql", controller="vizql", adapter="none"))
    assert not refused(RunSpec(), SCORED, rule="bag~1e-3", replicas=100, timeout_s=120)


def test_each_command_asks_for_what_it_opens() -> None:
    own = RunSpec(controller="evil.py:f", model="http://box/v1#m")
    assert not refused(own, READ) and not refused(own, SCORED) and "controller='evil.py:f'" in refused(own)
    assert not refused(RunSpec(), READ, rule="evil.py:f") and "eval.rule=" in refused(
        RunSpec(), SCORED, rule="evil.py:f"
    )
    assert not refused(own, trust=True) and not refused(RunSpec(controller="own", objects=("controller",)))


def test_benchmarks_of_the_reader_are_his_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine" / "shop").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("NL2SQL_BENCHMARKS", str(tmp_path / "mine"))
    assert not refused(RunSpec(benchmark="shop"), READ)
    assert not refused(RunSpec(benchmark=str(tmp_path / "mine" / "shop")), READ)
    for other in ("../elsewhere", str(tmp_path / "elsewhere"), "hf:org/name", "nowhere"):
        assert "add --trust" in refused(RunSpec(benchmark=other), READ), other


def test_a_variable_is_read_where_the_url_is_typed_and_in_its_password_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = RunSpec(engine_url=URL)
    for trust in (False, True, Trust(True, {"engine_url": URL + "x"})):
        assert "add --engine-url" in refused(plan, READ, trust)
    assert not refused(plan, READ, Trust(typed={"engine_url": URL}))
    monkeypatch.setenv("SECRET", "p@ss/w")
    monkeypatch.setenv("USER", "reader")
    assert with_password(URL) == "postgresql://$USER:ap%40ss%2Fw@box:1/$HOME"


def test_an_interrupted_run_says_what_to_type_again() -> None:
    assert said_again(RunSpec(), NO_TS) == ""
    assert said_again(RunSpec(model="http://box/v1#m"), NO_TS) == " --trust"
    assert said_again(RunSpec(engine_url=URL), NO_TS) == f" --engine-url '{URL}'"


def test_own_code_is_run_where_it_is_trusted_or_typed_and_as_it_was(tmp_path: Path) -> None:
    code, out = tmp_path / "own.py", tmp_path / "run"
    source = (
        "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
        "from nl2sql.agents.record import Episode\n"
        "def own(question, resources, config):\n    return Episode(question, 'own', sql='SELECT 1')\n"
    )
    code.write_text(source)
    (tmp_path / "s.json").write_text(json.dumps({"replies": {"*": ["SELECT 1"]}}))
    model = f"scripted:{tmp_path / 's.json'}"
    plan = RunSpec(split="quick", limit=1, controller=f"{code}:own", model=model, control=False)
    start(plan, NO_TS, out=out, progress=False)
    line = ["eval", "--resume", str(out), "-q"]

    def said(*more: str) -> tuple[bool, str]:
        """Did the code run, and what is said."""
        (tmp_path / "ran").unlink(missing_ok=True)
        done = CliRunner().invoke(typer.main.get_command(app), [*line, *more])
        return (tmp_path / "ran").exists(), str(done.exception or "")

    same = ["--controller", f"{code}:own", "--model", model]
    assert said() == (False, said()[1]) and "add --trust" in said()[1]
    assert said(*same[:2])[0] is False
    assert said(*same) == (True, "") and said("--trust") == (True, "")
    assert "was run with controller=" in said("--controller", "react", "--trust")[1]
    assert "leave out --limit" in said("--limit", "3", "--trust")[1]
    code.write_text(source + "# another\n")
    ran, why = said("--trust")
    assert not ran and f"{code} changed since" in why
    with pytest.raises(UsageError, match="changed since"):
        resume(out, progress=False, trust=True)
