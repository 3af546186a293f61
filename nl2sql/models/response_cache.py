"""Answers of a model remembered on disk, so that the same call is not computed twice, in one run or the next.

``CachedModel`` wraps any ``Model``. A call's key is the SHA-256 of everything that decides its answer: the weights'
revision and dtype, library versions (or the server), the prompt's token ids (messages and open turn where the back end
shows none), stop strings, limits, sampling, seed, ``n``, grammar. Greedy calls and seeded samples are kept; samples
without a seed go straight through. Models whose answers depend on order (scripted ones) or that have no revision are
not wrapped.

``ResponseCache`` is one SQLite file in write-ahead mode: several threads and processes share it, a killed one leaves
it whole. A file that is not a database is set aside with a warning; a cache that cannot be read or written costs time,
nothing else. The least recently used answers go when the file grows past its bound.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import hashlib
import json
import logging
import sqlite3
import threading
import time
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from nl2sql.databases.sqlite.disk import write_ahead
from nl2sql.errors import Cancelled
from nl2sql.interfaces import Completion, Message, Model, ToolDefinition, Usage, adapter_at
from nl2sql.machine import cache_dir, masked
from nl2sql.models.chat import Request

logger = logging.getLogger(__name__)

FORMAT = 1  # change it whenever keys or entries are made in another way
MAX_BYTES = 2**30  # of the file; the answers used least recently go first
_TOUCH_S = 3600.0  # how exact "last used" is: an hour, to spare a write for each hit
_CHECK_EVERY = 256  # puts between two looks at the size
_WAIT_S = 0.1  # how often one that waits for another's answer looks at its cancel event
_IDENTITY = ("backend", "engine", "name", "revision", "device", "dtype")  # of describe(): what decides an answer
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer BLOB NOT NULL, used REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_use ON answers (used);
"""


def default_path() -> Path:
    return cache_dir("responses") / f"answers-{FORMAT}.sqlite"


def cached(model: Model, path: str | Path | None = None) -> Model:
    """``model`` behind the response cache, or as it is when its answers cannot be cached."""
    if hasattr(model, "for_episode") or not model.describe().get("revision"):
        return model
    return CachedModel(model, path)


class CachedModel:
    """A ``Model`` that answers repeated calls from ``path`` (default: in the cache folder). Thread-safe.

    A call that is under way is waited for, not made a second time. A cached answer's usage has the tokens of the
    first time, ``prefill_tokens`` 0, no seconds but those of looking it up, no cost, and ``cached_calls`` 1.
    """

    def __init__(self, model: Model, path: str | Path | None = None) -> None:
        self._model = model
        self._cache = ResponseCache(Path(path) if path is not None else default_path())
        special = getattr(model, "cache_identity", None)
        described = model.describe()
        self._identity = special() if special else {key: described.get(key) for key in _IDENTITY}
        self._identity |= _libraries()
        self._under_way: dict[bytes, threading.Event] = {}
        self._lock = threading.Lock()
        self.name = model.name
        self.context_window = model.context_window

    def generate(self, messages: Sequence[Message], **options: Any) -> list[Completion]:
        """As the model itself, or what it said to the same call before; see ``Model.generate`` for the options."""
        request = Request(messages, **options)
        if request.sampling is not None and request.seed is None:
            return self._model.generate(messages, **options)
        started = time.perf_counter()
        key = self._key(request)
        with self._alone(key, request.cancel):
            entries = self._cache.get(key)
            if entries is not None and len(entries) == request.n:
                seconds = (time.perf_counter() - started) / request.n
                return [_from_entry(entry, seconds) for entry in entries]
            answers = self._model.generate(messages, **options)
            if all(answer.finish_reason != "cancelled" for answer in answers):
                self._cache.put(key, [_to_entry(answer) for answer in answers])
            return answers

    def count_tokens(self, messages: Sequence[Message], prefill: str = "", tools: Sequence[ToolDefinition] = ()) -> int:
        """As the model counts."""
        return self._model.count_tokens(messages, prefill, **({"tools": tools} if tools else {}))

    def describe(self) -> dict[str, Any]:
        """As the model describes itself: with or without the cache, its answers are the same."""
        return self._model.describe()

    def adapter_at(self, scale: float) -> CachedModel:
        """The model with its LoRA adapter at ``scale``, with the same cache; itself, where it cannot change."""
        model: Any = adapter_at(self._model, scale)
        if model is self._model:
            return self
        plain = copy.copy(self)
        plain._model, plain.name = model, model.name
        plain._identity = self._identity | model.cache_identity()
        return plain

    def close(self) -> None:
        self._model.close()
        self._cache.close()

    def __getattr__(self, name: str) -> Any:
        if "_model" not in self.__dict__:  # half built, or being copied
            raise AttributeError(name)
        return getattr(self._model, name)

    def _key(self, request: Request) -> bytes:
        messages, prefill, tools = request.messages, request.prefill, request.tools
        if ids := getattr(self._model, "prompt_ids", None):
            prompt = ids(messages, prefill, **({"tools": tools} if tools else {}))
        else:
            prompt = [[[m["role"], m["content"], m.get("tool_calls", [])] for m in messages], prefill, list(tools)]
        grammar, sampling = request.grammar, request.sampling
        parts = {
            "model": self._identity,
            "prompt": list(prompt),
            "stop": request.stop,
            "max_new_tokens": request.max_new_tokens,
            "n": request.n,
            "sampling": None if sampling is None else [sampling.temperature, sampling.top_p, request.seed],
            "grammar": None if grammar is None else [grammar.kind, grammar.text],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).digest()

    @contextlib.contextmanager
    def _alone(self, key: bytes, cancel: threading.Event | None) -> Iterator[None]:
        """Only one caller at a time asks for the same thing. Raises Cancelled."""
        while True:
            with self._lock:
                other = self._under_way.get(key)
                if other is None:
                    mine = self._under_way[key] = threading.Event()
                    break
            while not other.wait(_WAIT_S):
                if cancel is not None and cancel.is_set():
                    raise Cancelled("cancelled while waiting for the model")
        try:
            yield
        finally:
            with self._lock:
                del self._under_way[key]
            mine.set()


class ResponseCache:
    """Key -> JSON in one SQLite file of at most about ``max_bytes``."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.path, self._max_bytes = path, max_bytes
        self._lock = threading.Lock()
        self._puts = self._inode = 0  # the latter of the file that is open
        self._connection: sqlite3.Connection | None = None
        with self._lock:
            self._open()

    def get(self, key: bytes) -> list[dict[str, Any]] | None:
        """The answers put under ``key``; None when there is nothing, or nothing readable."""
        row = self._run("SELECT answer, used FROM answers WHERE key = ?", (key,))
        if not row:
            return None
        try:
            entries: list[dict[str, Any]] = json.loads(zlib.decompress(row[0][0]))
            used = float(row[0][1])
        except (zlib.error, ValueError, TypeError):
            self._run("DELETE FROM answers WHERE key = ?", (key,))
            return None
        now = time.time()
        if abs(now - used) > _TOUCH_S:
            self._run("UPDATE answers SET used = ? WHERE key = ?", (now, key))
        return entries

    def put(self, key: bytes, answer: list[dict[str, Any]]) -> None:
        packed = zlib.compress(masked(json.dumps(answer, separators=(",", ":"))).encode())
        self._run("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, packed, time.time()))
        self._puts += 1
        if self._puts % _CHECK_EVERY == 0:
            self.trim()

    def trim(self) -> None:
        """Drop the least recently used answers until nine tenths of the bound are left."""
        pages = self._run(
            "SELECT (SELECT page_count FROM pragma_page_count) - freelist_count, page_size "
            "FROM pragma_freelist_count, pragma_page_size"
        )
        rows = self._run("SELECT count(*) FROM answers")
        if not pages or not rows or not rows[0][0]:
            return
        used = pages[0][0] * pages[0][1]
        if used > self._max_bytes:
            drop = max(1, int(rows[0][0] * (1 - 0.9 * self._max_bytes / used)))
            self._run("DELETE FROM answers WHERE key IN (SELECT key FROM answers ORDER BY used LIMIT ?)", (drop,))

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.close()
                self._connection = None

    def _run(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Execute one statement. A failure is logged and gives no rows; a broken file is replaced."""
        with self._lock:
            if self._connection is None:
                return []
            try:
                with self._connection:
                    return self._connection.execute(sql, values).fetchall()
            except sqlite3.OperationalError as error:  # locked for too long, full disk, read-only
                logger.warning("response cache %s: %s; going on without this entry", self.path, error)
            except sqlite3.DatabaseError as error:
                self._connection.close()
                self._open(damage=error)
            return []

    def _open(self, damage: sqlite3.DatabaseError | None = None) -> None:
        """Connect; a damaged file is set aside first. Leaves no connection when nothing can be opened."""
        self._connection = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_name(f"{self.path.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # two processes must not set each other's new file aside
                if damage is not None and self.path.exists() and self.path.stat().st_ino == self._inode:
                    self._set_aside(damage)
                try:
                    self._connection = _connect(self.path)
                except sqlite3.OperationalError:
                    raise
                except sqlite3.DatabaseError as error:
                    self._set_aside(error)
                    self._connection = _connect(self.path)
                self._inode = self.path.stat().st_ino
        except (OSError, sqlite3.Error) as error:
            logger.warning("response cache %s cannot be used (%s); going on without it", self.path, error)

    def _set_aside(self, error: sqlite3.Error) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        self.path.rename(aside)
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        logger.warning("response cache %s is damaged (%s); set aside as %s", self.path, error, aside.name)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, check_same_thread=False)
    try:
        write_ahead(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_SCHEMA)
        connection.execute("SELECT key, used FROM answers ORDER BY used LIMIT 1").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _to_entry(answer: Completion) -> dict[str, Any]:
    usage = answer.usage
    return {
        "text": answer.text,
        "finish": answer.finish_reason,
        "prompt": usage.prompt_tokens,
        "completion": usage.completion_tokens,
        "logprob": answer.logprob,
        **({"thinking": answer.thinking} if answer.thinking else {}),
    }


def _from_entry(entry: dict[str, Any], seconds: float) -> Completion:
    usage = Usage(entry["prompt"], 0, entry["completion"], 1, seconds, cached_calls=1)
    return Completion(entry["text"], entry["finish"], usage, entry["logprob"], entry.get("thinking", ""))


def _libraries() -> dict[str, str]:
    from importlib.metadata import Distribution

    names = ("torch", "transformers", "llguidance")
    versions = {f"{name} version": found.version for name in names for found in Distribution.discover(name=name)}
    return versions | {"back ends": code_hash(Path(__file__).parent)}


def code_hash(folder: Path, kinds: Collection[str] = (".py",)) -> str:
    """SHA-256 of a package's files of ``kinds``, all levels: a mended back end must not go on giving old answers."""
    sources = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.suffix in kinds):
        sources.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return sources.hexdigest()
