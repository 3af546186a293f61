"""nl2sql models doctor: what it checks, and that it can fail."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from models.tiny import saved_tiny, tiny_tokenizer
from typer.testing import CliRunner

from nl2sql.cli import app
from nl2sql.cli.models import OPTIONAL
from nl2sql.models.doctor import check_model
from nl2sql.models.load import Source


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("tiny")
    return saved_tiny(where)


def test_a_sound_model_passes_every_check(folder: Path) -> None:
    done = CliRunner().invoke(app, ["models", "doctor", "--model", str(folder), "--json"])
    report = json.loads(done.stdout)
    assert report["ok"] and done.exit_code == 0
    names = {check["name"] for check in report["checks"]}
    assert {"sandbox", "cache folder", "reused cache = fresh", "same text in any batch", "grammars"} <= names
    assert all(check["status"] == "ok" for check in report["checks"] if check["name"] not in ("machine", "benchmarks"))


def test_what_may_be_missing_is_named_by_an_extra_that_exists() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(OPTIONAL.values()) <= set(project["optional-dependencies"])


def test_an_engine_that_computes_something_else_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that forgets a reused prefix: the check that exists for it fails, and so does the command."""
    from nl2sql.models.slots import SlotDecoder

    honest = SlotDecoder.forward

    def forgetful(self: SlotDecoder, segments: Any) -> torch.Tensor:
        for slot, _, _ in segments:
            if len(slot.tokens) > 60:
                with torch.inference_mode():
                    for keys, _ in slot.layers.values():
                        keys[:, :, :40] = 0
        return honest(self, segments)

    checks = {check.name: check for check in _checked(folder, monkeypatch, forgetful)}
    assert checks["reused cache = fresh"].status == "fail"


def _checked(folder: Path, monkeypatch: pytest.MonkeyPatch, forward: Any) -> list[Any]:
    from nl2sql.models.slots import SlotDecoder

    monkeypatch.setattr(SlotDecoder, "forward", forward)
    return list(check_model(Source("folder", str(folder))))


def test_a_template_that_rewrites_history_is_noted() -> None:
    from nl2sql.models.doctor import _template

    rewriting = tiny_tokenizer(
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
        "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1] }}"
        "{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    )
    assert _template(rewriting).status == "warn" and "rewrites" in _template(rewriting).detail
    assert _template(tiny_tokenizer()).status == "ok"


@pytest.mark.parametrize("arguments", [["--model", "no-such"], ["--dtype", "int3"], ["--device", "tpu"]])
def test_wrong_arguments_are_usage_errors(arguments: list[str]) -> None:
    from nl2sql.errors import UsageError

    done = CliRunner().invoke(app, ["models", "doctor", *arguments])
    assert isinstance(done.exception, UsageError)
