"""nl2sql models list | pull | info."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nl2sql.cli.models import app
from nl2sql.errors import UsageError
from nl2sql.models import embedded

runner = CliRunner()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))


def run(*args: str) -> str:
    result = runner.invoke(app, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list_shows_names_licences_and_what_is_cached() -> None:
    text = run("list")
    assert "smollm2-135m" in text and "Apache-2.0" in text and "Gemma Terms of Use" in text and " no " in text


def test_list_json() -> None:
    data = json.loads(run("list", "--json"))
    assert data["default"] == "qwen2.5-coder-1.5b"
    first = data["models"][0]
    assert first["cached"] is False and first["folder"] is None and len(first["sha256"]) == 64


def test_pull_of_a_cached_model_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded.EmbeddedModel, "cached", property(lambda self: True))
    assert "smollm2-135m: already in" in run("pull", "smollm2-135m")
    assert json.loads(run("pull", "smollm2-135m", "--json"))["was_cached"] is True


def test_pull_shows_the_licence_terms_before_it_fetches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []
    monkeypatch.setattr(embedded, "pull", lambda name, force=False: seen.append(name) or tmp_path)
    result = runner.invoke(app, ["pull", "gemma3-270m"], catch_exceptions=False)
    assert seen == ["gemma3-270m"] and "Gemma Terms of Use" in result.stderr
    assert "ready in" in result.stdout and "238 MB" in result.stderr


def test_info_of_an_embedded_model() -> None:
    assert json.loads(run("info", "smollm2-135m", "--json"))["context_window"] == 8192
    text = run("info", "smollm2-135m")
    assert "license          Apache-2.0" in text and "adapter          smollm2-135m-sql" in text


def test_info_of_a_script_a_folder_a_file_and_a_hub_id(tmp_path: Path) -> None:
    script = tmp_path / "s.yaml"
    script.write_text("replies: ['SELECT 1']", encoding="utf-8")
    assert json.loads(run("info", f"scripted:{script}", "--json"))["kind"] == "scripted"
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    folder = json.loads(run("info", str(tmp_path), "--json"))
    assert folder["model_type"] == "llama" and folder["revision"].startswith("sha256:")
    (tmp_path / "w.gguf").write_bytes(b"GGUF")
    assert json.loads(run("info", str(tmp_path / "w.gguf"), "--json"))["disk_bytes"] == 4
    assert json.loads(run("info", "org/name", "--json"))["kind"] == "hub"


@pytest.mark.parametrize("args", [["pull", "nope"], ["info", "nope"]])
def test_an_unknown_name_is_a_usage_error(args: list[str]) -> None:
    with pytest.raises(UsageError, match="nl2sql models list"):
        runner.invoke(app, args, catch_exceptions=False)


@pytest.mark.parametrize("command", ["list", "pull", "info"])
def test_every_command_has_an_example_in_its_help(command: str) -> None:
    assert "Example: nl2sql models" in run(command, "--help")
