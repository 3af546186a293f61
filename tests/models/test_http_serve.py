"""HttpModel against a real ``transformers serve`` process with the embedded model."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nl2sql.config import build_config
from nl2sql.errors import ModelError, UsageError
from nl2sql.interfaces import Grammar, Sampling
from nl2sql.models import load_model
from nl2sql.models.embedded import embedded_model, pull
from nl2sql.models.http.model import HttpModel
from nl2sql.runs.evaluate import evaluate

pytestmark = pytest.mark.model
START_S = 120
COUNT = [{"role": "user", "content": "Count from 1 to 20, separated by commas."}]


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``http://HOST/v1#FOLDER`` of a server that runs for this session."""
    if not embedded_model("smollm2-135m").cached:
        pull("smollm2-135m")
    folder = embedded_model("smollm2-135m").folder
    home = tmp_path_factory.mktemp("serve")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cache = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(home), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    bounds = ["--continuous-batching", "--cb-num-blocks", "64", "--cb-max-batch-tokens", "512"]
    options = ["--device", "cpu", "--dtype", "bfloat16", "--host", "127.0.0.1", "--port", str(port)]
    program = Path(sys.executable).with_name("transformers")
    log = (home / "log").open("w")
    process = subprocess.Popen(
        [str(program), "serve", str(folder), *options, *bounds],
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, **cache},
    )
    try:
        if not _up(process, f"http://127.0.0.1:{port}/health"):
            said = (home / "log").read_text(errors="replace").strip().splitlines()[-1:]
            pytest.skip(f"transformers serve does not start ({said}); pip install 'transformers[serving]'")
        yield f"http://127.0.0.1:{port}/v1#{folder}"
    finally:
        process.kill()
        process.wait()
        log.close()


def _up(process: subprocess.Popen[bytes], url: str) -> bool:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            time.sleep(0.2)
    return False


@pytest.fixture(scope="session")
def served(address: str) -> Iterator[HttpModel]:
    made = load_model(address, batch_size=4)
    assert isinstance(made, HttpModel)
    yield made
    made.close()


def test_it_is_found_to_need_a_rendered_prompt_and_to_ignore_stops_and_n(served: HttpModel) -> None:
    found = served.describe()
    assert (found["prefill"], found["honours"], found["token_counts"]) == ("completions", [], "tokenizer")
    assert found["context_window"] == 8192


def test_it_goes_on_in_the_open_turn_and_stops_at_a_stop_string(served: HttpModel) -> None:
    done = served.generate(COUNT, prefill="1, 2, 3, 4,", stop=["8"], max_new_tokens=24)[0]
    assert (done.text, done.finish_reason) == (" 5, 6, 7, ", "stop")
    assert done.usage.prompt_tokens == served.count_tokens(COUNT, "1, 2, 3, 4,")
    assert 8 <= done.usage.completion_tokens < 24
    assert served.generate(COUNT, prefill="1, 2, 3, 4,", max_new_tokens=4)[0].finish_reason == "length"


def test_many_at_once_give_the_answers_they_give_alone(served: HttpModel) -> None:
    turns = ["1, 2, 3,", "2, 4, 6, 8,", "10, 11, 12, 13,", "5, 6, 7, 8,"]

    def ask(turn: str) -> str:
        return served.generate(COUNT, prefill=turn, stop=["\n"], max_new_tokens=6)[0].text

    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(ask, turns))
    assert together[0].startswith(" 4, 5") and together[2].startswith(" 14, ")


def test_what_it_cannot_do_is_refused_in_one_line(served: HttpModel) -> None:
    with pytest.raises(ModelError, match="does not obey a lark grammar"):
        served.generate(COUNT, max_new_tokens=4, grammar=Grammar("lark", 'start: "yes"'))
    texts = [c.text for c in served.generate(COUNT, max_new_tokens=4, sampling=Sampling(1.0), seed=1, n=3)]
    assert len(texts) == 3 and len(set(texts)) == 1, "it decodes greedily"


def test_a_wrong_name_is_told_in_its_words(address: str) -> None:
    with pytest.raises(ModelError, match="pinned to"):
        load_model(address.partition("#")[0] + "#org/another")
    with pytest.raises(UsageError, match="which model of"):
        load_model(address.partition("#")[0])


def test_a_run_over_it_is_like_any_other(served: HttpModel, tmp_path: Path) -> None:
    config = build_config({"eval": {"replicas": 0}, "single_shot": {"max_new_tokens": 12}})
    out = tmp_path / "run"
    run = evaluate(
        "packaged", served, "single_shot", split="quick", limit=2, control=False, config=config, out=out, progress=False
    )
    rows = run.predictions()
    assert len(rows) == 2 and all(row["usage"]["completion_tokens"] for row in rows)
    assert not any((row["error"] or "").startswith("model: http") for row in rows)
