"""A loopback server that misbehaves in seventy ways: an episode or one line of error each, and the key nowhere."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from models.standin import Dialect, sends, serving

from nl2sql.agents.controllers import answer
from nl2sql.agents.display import episode_html
from nl2sql.benchmarks import load_benchmark
from nl2sql.errors import CONTROL
from nl2sql.models import load_model
from nl2sql.models.response_cache import cached
from nl2sql.runs.folder import RunFolder

KEY = "sk-0f3a9b-Qz7Lw2Xk55"
CASES = yaml.safe_load(Path(__file__).with_name("hostile_servers.yaml").read_text(encoding="utf-8"))
MARKS = {
    "ESCAPED": "".join(f"\\u{ord(sign):04x}" for sign in KEY),
    "HUGE": "1" + "0" * 4000,
    "DEEP": "[" * 100_000,
    "PARENTHESES": "SELECT " + "(" * 6000,
    "ACTIONS": "Action: x[" * 40_000,
    "MEGABYTE": "word " * 200_000,
    "NINE": "x" * (9 * 2**20),
    "KEY": KEY,
    "TAIL": KEY[-10:],
    "CALLS": "".join(
        f'data: {{"choices": [{{"delta": {{"tool_calls": {calls}}}}}]}}\n'
        for calls in ('"x"', "[{}]", '[{"index": 0}]', '[{"index": 1}, {}]')
    )
    + "data: [DONE]\n",
}


def filled(value: Any) -> Any:
    """A case with its marks filled in."""
    if isinstance(value, dict):
        return {filled(name): filled(item) for name, item in value.items()}
    if isinstance(value, list):
        return [filled(item) for item in value]
    if isinstance(value, str):
        for mark, meaning in MARKS.items():
            value = value.replace(mark, meaning)
    return value


def test_there_are_sixty_kinds() -> None:
    assert len({case["name"] for case in CASES}) >= 60


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize("case", CASES, ids=[str(case["name"]) for case in CASES])
def test_an_episode_or_one_line_and_the_key_nowhere(
    case: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("NL2SQL_API_KEY", KEY)
    database = load_benchmark("packaged").database("chess_league")
    name = case.pop("name")
    if "bytes" in case:
        content: Any = bytes.fromhex(case["bytes"])
    else:
        content = filled(case["text"]) if "text" in case else filled(case.get("body", {}))
    headers = {key.replace("-", "_"): filled(value) for key, value in case.get("headers", {}).items()}

    def bad(handler: Any) -> None:
        if isinstance(content, bytes):
            return handler.raw(content, case.get("status", 200))
        return sends(content, case.get("status", 200), **headers)(handler)

    with serving(Dialect(key=KEY)) as server:
        model = cached(load_model(server.spec, server=("retries=1", "timeout_s=20")), tmp_path / "cache.sqlite")
        server.when = lambda text: bad
        started = time.monotonic()
        episodes = [answer("How many customers?", database, model, loop) for loop in ("single_shot", "react")]
        assert time.monotonic() - started < 20, name
        model.close()
    store = RunFolder(tmp_path / "run", "k", tmp_path)
    for episode in episodes:
        store.add(episode)
        said = episode.error or ""
        assert "\n" not in said and len(said) < 1000 and not CONTROL.search(said)
        assert "controller: " not in said.replace("controller: window_exceeded", "").replace("controller: no SQL", "")
        assert case.get("say", "") in said, said
        if "say" in case:
            assert said.startswith("model: ")
    store.close()
    written = "".join(json.dumps(vars(episode), default=str) + episode_html(episode.to_dict()) for episode in episodes)
    written += caplog.text + "".join(
        p.read_bytes().decode("utf-8", "replace") for p in tmp_path.rglob("*") if p.is_file()
    )
    assert KEY not in written and KEY[-10:] not in written and KEY[-8:] not in written
