"""The response cache: what is the same call, what is never cached, and what a cached answer costs."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nl2sql.errors import Cancelled, ModelError
from nl2sql.interfaces import Completion, Grammar, Model, Sampling, Usage
from nl2sql.models import response_cache
from nl2sql.models.response_cache import CachedModel, ResponseCache, cached, code_hash
from nl2sql.models.scripted import ScriptedModel

CHAT = [{"role": "user", "content": "How many orders?"}]


class Counting:
    """A model that says how often it was asked."""

    name, context_window, batch_size = "counting", 1000, 4

    def __init__(self, revision: str | None = "r1", delay_s: float = 0.0) -> None:
        self.calls = 0
        self.revision, self.delay_s = revision, delay_s
        self.error: Exception | None = None

    def generate(self, messages: Sequence[Any], *, n: int = 1, cancel: Any = None, **_: Any) -> list[Completion]:
        self.calls += 1
        time.sleep(self.delay_s)
        if self.error:
            raise self.error
        usage = Usage(10, 10, 3, 1, 0.5, 0.1, 0.2, cost=0.25)
        return [Completion(f"answer {self.calls}.{i} é \ud800", "stop", usage, -1.5) for i in range(n)]

    def count_tokens(self, messages: Sequence[Any], prefill: str = "") -> int:
        return 10

    def describe(self) -> dict[str, Any]:
        return {"backend": "test", "name": self.name, "revision": self.revision, "batch_size": self.batch_size}

    def close(self) -> None:
        pass


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.sqlite"


def test_the_same_call_is_asked_once_even_by_another_process_and_costs_nothing_then(path: Path) -> None:
    first = CachedModel(Counting(), path)
    assert isinstance(first, Model) and first.batch_size == 4
    fresh = first.generate(CHAT, prefill="SELECT", stop=[";"], max_new_tokens=5)[0]
    assert fresh.usage == Usage(10, 10, 3, 1, 0.5, 0.1, 0.2, cost=0.25)
    first.close()
    inner = Counting()
    found = CachedModel(inner, path).generate(CHAT, prefill="SELECT", stop=[";"], max_new_tokens=5)[0]
    assert inner.calls == 0
    assert (found.text, found.finish_reason, found.logprob) == (fresh.text, "stop", -1.5)
    usage = found.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.model_calls, usage.cached_calls) == (10, 3, 1, 1)
    assert (usage.prefill_tokens, usage.cost, usage.compute_seconds, usage.queue_seconds) == (0, 0, 0, 0)
    assert usage.seconds < 0.4


OTHER: list[dict[str, Any]] = [
    {"messages": [{"role": "system", "content": "How many orders?"}]},
    {"messages": [*CHAT, {"role": "user", "content": ""}]},
    {"prefill": "SELEC"},
    {"stop": [","]},
    {"stop": []},
    {"max_new_tokens": 6},
    {"n": 2},
    {"grammar": Grammar("lark", 'start: "x"')},
    {"grammar": Grammar("json_schema", 'start: "x"')},
    {"sampling": Sampling(), "seed": 1},
    {"sampling": Sampling(), "seed": 2},
    {"sampling": Sampling(0.3), "seed": 1},
    {"sampling": Sampling(top_p=0.5), "seed": 1},
]


def test_whatever_decides_an_answer_makes_another_call(path: Path) -> None:
    inner = Counting()
    model = CachedModel(inner, path)
    base: dict[str, Any] = {"messages": CHAT, "prefill": "SELECT", "stop": [";"], "max_new_tokens": 5}
    for change in [{}, *OTHER]:
        model.generate(**{**base, **change})
    assert inner.calls == 1 + len(OTHER)
    for change in [{}, *OTHER, {"seed": 7}]:  # without sampling a seed decides nothing
        model.generate(**{**base, **change})
    assert inner.calls == 1 + len(OTHER)


def test_other_weights_are_other_calls(path: Path) -> None:
    for revision in ("r1", "r2", "r1"):
        inner = Counting(revision)
        CachedModel(inner, path).generate(CHAT, max_new_tokens=5)
    assert inner.calls == 0
    inner = Counting("r1")
    inner.describe = lambda: {"backend": "test", "name": "counting", "revision": "r1", "dtype": "bfloat16"}  # type: ignore[method-assign]
    CachedModel(inner, path).generate(CHAT, max_new_tokens=5)
    assert inner.calls == 1


def test_the_key_is_the_token_ids_where_a_model_shows_them(path: Path) -> None:
    inner = Counting()
    inner.prompt_ids = lambda messages, prefill: [len(prefill)]  # type: ignore[attr-defined]
    model = CachedModel(inner, path)
    for prefill in ("ab", "cd", "e"):
        model.generate(CHAT, prefill=prefill, max_new_tokens=5)
    assert inner.calls == 2


def test_samples_without_a_seed_are_drawn_anew(path: Path) -> None:
    inner = Counting()
    model = CachedModel(inner, path)
    for _ in range(3):
        model.generate(CHAT, max_new_tokens=5, sampling=Sampling())
    assert inner.calls == 3


def test_models_whose_answers_depend_on_order_or_on_nothing_known_are_not_wrapped(path: Path) -> None:
    scripted, nameless = ScriptedModel(["a", "b"]), Counting(None)
    assert cached(scripted, path) is scripted and cached(nameless, path) is nameless
    assert isinstance(cached(Counting(), path), CachedModel)


def test_errors_are_not_remembered(path: Path) -> None:
    inner = Counting()
    model = CachedModel(inner, path)
    inner.error = ModelError("gone")
    for _ in range(2):
        with pytest.raises(ModelError, match="gone"):
            model.generate(CHAT, max_new_tokens=5)
    inner.error = None
    assert model.generate(CHAT, max_new_tokens=5)[0].text.startswith("answer 3")


def test_a_call_under_way_is_waited_for(path: Path) -> None:
    inner = Counting(delay_s=0.3)
    model = CachedModel(inner, path)
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(lambda _: model.generate(CHAT, max_new_tokens=5)[0], range(8)))
    assert inner.calls == 1 and len({c.text for c in done}) == 1
    assert sum(c.usage.cached_calls for c in done) == 7


def test_one_that_waits_for_anothers_answer_can_be_cancelled(path: Path) -> None:
    model = CachedModel(Counting(delay_s=2), path)
    thread = threading.Thread(target=lambda: model.generate(CHAT, max_new_tokens=5))
    thread.start()
    time.sleep(0.1)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        model.generate(CHAT, max_new_tokens=5, cancel=cancel)
    thread.join()


# -------------------------------------------------------------------------------------------------- on the disk


def test_a_file_that_is_no_database_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b"this is not a database, it is a text of some length" * 100)
    cache = ResponseCache(path)
    cache.put(b"k", [{"a": 1}])
    assert cache.get(b"k") == [{"a": 1}]
    assert "set aside" in caplog.text and len(list(path.parent.glob("*.damaged-*"))) == 1


def test_damage_inside_is_noticed_in_use_and_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = ResponseCache(path)
    for number in range(500):
        cache.put(f"key {number}".encode(), [{"text": os.urandom(200).hex()}])
    cache.close()
    data = bytearray(path.read_bytes())
    for at in range(8 * 4096, len(data), 4096):
        data[at : at + 200] = os.urandom(200)
    path.write_bytes(data)
    cache = ResponseCache(path)
    found = [cache.get(f"key {number}".encode()) for number in range(500)]
    assert None in found
    cache.put(b"new", [{"a": 1}])
    assert cache.get(b"new") == [{"a": 1}]
    assert "damaged" in caplog.text


def test_a_torn_entry_is_forgotten(path: Path) -> None:
    cache = ResponseCache(path)
    cache.put(b"k", [{"a": 1}])
    other = sqlite3.connect(path)
    other.execute("UPDATE answers SET answer = ?", (b"\x00\x01",))
    other.commit()
    assert cache.get(b"k") is None
    assert other.execute("SELECT count(*) FROM answers").fetchone() == (0,)


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("x")
    model = CachedModel(Counting(), tmp_path / "file" / "answers.sqlite")
    assert model.generate(CHAT, max_new_tokens=5)[0].text.startswith("answer 1")
    assert "cannot be used" in caplog.text


def test_the_least_recently_used_go_when_it_grows_too_large(path: Path) -> None:
    cache = ResponseCache(path, max_bytes=400_000)
    for number in range(1000):
        cache.put(f"key {number}".encode(), [{"text": os.urandom(500).hex()}])
    cache.trim()
    kept = [number for number in range(1000) if cache.get(f"key {number}".encode())]
    assert kept and kept == list(range(kept[0], 1000))
    assert path.stat().st_size < 800_000


WRITER = """
import sys
from pathlib import Path
from nl2sql.models.response_cache import ResponseCache
cache = ResponseCache(Path(sys.argv[1]))
number = 0
while True:
    cache.put(f"{sys.argv[2]} {number}".encode(), [{"text": "x" * 2000, "number": number}])
    number += 1
    print(number, flush=True)
"""


def test_several_processes_share_it_and_one_that_is_killed_leaves_it_whole(path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], stdout=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    counts = [0, 0]
    for index, writer in enumerate(writers):
        assert writer.stdout is not None
        while counts[index] < 50:
            counts[index] = int(writer.stdout.readline())
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    cache = ResponseCache(path)
    for name, count in zip(("one", "two"), counts, strict=True):
        assert all(cache.get(f"{name} {number}".encode()) for number in range(count))
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_change_in_any_back_end_changes_the_key(tmp_path: Path) -> None:
    package = tmp_path / "models"
    shutil.copytree(Path(response_cache.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    seen = {code_hash(package)}
    for name in ("batching.py", "http/wire.py"):
        with (package / name).open("a") as file:
            file.write("# mended\n")
        seen.add(code_hash(package))
    assert len(seen) == 3


def test_without_its_adapter_a_model_has_answers_of_its_own_in_the_same_cache(tmp_path: Path) -> None:
    adapted, plain = Counting("with"), Counting("without")
    adapted.adapter_at = lambda scale: plain  # type: ignore[attr-defined]
    plain.cache_identity = lambda: {"revision": "without"}  # type: ignore[attr-defined]
    model = CachedModel(adapted, tmp_path / "cache.db")
    for _ in range(2):
        for each in (model, model.adapter_at(0.3)):
            each.generate([{"role": "user", "content": "q"}], max_new_tokens=4)
    assert (adapted.calls, plain.calls) == (1, 1)
    alone = CachedModel(plain, tmp_path / "cache.db")
    assert alone.adapter_at(0.3) is alone, "it has none"
