"""GGUF files on llama.cpp, in a child process of ours: embedded models that come as one, and ``--model FILE.gguf``.

``LlamaCppModel`` is an ``HttpModel`` whose server is known, so that nothing is probed: prompts are rendered here with
the file's own chat template, turned into tokens there, and sent as tokens. When llama.cpp dies, every call that it was
computing fails with a ModelError, and the next call starts it anew; the rest of a run goes on. No torch is needed.

Not here: hidden states and the likelihood of a prompt's own tokens (the torch engine has them).
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.metadata
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nl2sql.errors import Cancelled, ModelError, one_line
from nl2sql.interfaces import Completion, Message, ToolDefinition, Usage
from nl2sql.machine import missing_part, threads
from nl2sql.models.chat import Chat, Request, ServedTokenizer
from nl2sql.models.embedded import embedded_model, pulled
from nl2sql.models.http.grammar import Trials
from nl2sql.models.http.model import HttpModel, seed_of
from nl2sql.models.http.probe import Abilities
from nl2sql.models.http.providers import OWN, Place, ServerOptions
from nl2sql.models.http.wire import Counts, read_counts
from nl2sql.models.load import Source
from nl2sql.models.local import VARIABLE, memory_limit
from nl2sql.models.weight_files import find_gguf_adapter, read_header, weights_revision

CHILD = Path(__file__).with_name("llamacpp_child.py")
START_S = 300.0  # a child that does not listen by then never will
REQUEST_S = 86400.0  # for one answer: how long it takes is a matter of the machine, and callers can cancel
COUNTING = 8  # requests that compute nothing, beside the rows
SLOT_TOKENS = 2048  # cells for each row at least, where memory allows: a loop's prompt and what it writes
_FORMS = {"lark": "grammar (llguidance)", "json_schema": "json_schema"}


class LlamaCppModel(HttpModel):
    """A GGUF file on llama.cpp. Use ``load_model``.

    batch_size: rows computed at once. adapter: a LoRA adapter as GGUF, applied as the weights are used. Raises
    ModelError for a file that llama.cpp does not take, and where xllamacpp is not installed.
    """

    def __init__(self, gguf: Path, *, name: str, batch_size: int = 8, adapter: Path | None = None) -> None:
        if missing := missing_part("xllamacpp"):
            raise ModelError(f"{name} runs on llama.cpp, and {missing}")
        self.revision = "+".join(weights_revision([file]) for file in (gguf, adapter) if file)
        header = read_header(gguf)
        window, cells = _cells(header, batch_size)
        self.cells, self.cache_bytes = cells, cells * _token_bytes(header)
        self.threads = threads()
        name = f"{name}+{adapter.resolve().parent.name}" if adapter else name
        settings = {"model": str(gguf), "name": name, "slots": batch_size, "cells": cells, "threads": self.threads}
        self._child = Child(settings | {"adapter": str(adapter or "")})
        self._weights: dict[str, Any] = {}  # fields of each request
        place = Place(self._child.address, name, OWN, self._child.key)
        self._connect(place, ServerOptions(timeout_s=REQUEST_S, retries=0), batch_size + COUNTING)
        self.batch_size = batch_size
        try:
            self.tokenizer = tokenizer = ServedTokenizer(header.get("tokenizer.chat_template", ""), self._ask_child)
            abilities = Abilities("completions", window, True, "tokenizer", stops=True, logprobs={"logprobs": 1})
            self._know(Chat(tokenizer, None), abilities, Trials(_FORMS, samples=True))
            self._slots = Slots(batch_size, cells, self._child.folder, self._ask_child, lambda: self._child.starts)
        except BaseException:
            self.close()
            raise

    @classmethod
    def load(cls, source: Source, *, batch_size: int = 8, adapter: str = "auto") -> LlamaCppModel:
        """The embedded model or .gguf file that ``source`` names; pulled where the cache lacks it.

        adapter: auto (the embedded model's, where it has a GGUF form), none, a packaged name, a folder, a .gguf file.
        """
        entry = embedded_model(source.value, "llamacpp") if source.kind == "embedded" else None
        found = find_gguf_adapter(adapter, entry.adapter if entry else "none")
        gguf = pulled(entry) if entry else Path(source.value)
        return cls(gguf, name=entry.name if entry else gguf.name, batch_size=batch_size, adapter=found)

    def adapter_at(self, scale: float) -> LlamaCppModel:
        """The same model with its LoRA adapter at ``scale`` of its strength, in the same process; closed with this one.
        Itself, where there is no adapter."""
        if "+" not in self.name:
            return self
        scaled = copy.copy(self)
        scaled.name, scaled.revision = f"{self.name}@{scale:g}", f"{self.revision}@{scale:g}"
        scaled._weights = {"lora": [{"id": 0, "scale": scale}]}
        return scaled

    def generate(self, messages: Sequence[Message], **options: Any) -> list[Completion]:
        """Continue the open assistant turn; see ``Model.generate`` for the options.

        ``logprob`` sums the log-probabilities of the tokens at temperature 1, before a grammar. Raises ModelError,
        also where llama.cpp ended meanwhile.
        """
        request = Request(messages, **options)
        request.check_sampling()
        with self._child.alive():
            return self._generate(request)

    def describe(self) -> dict[str, Any]:
        """The model as a manifest records it."""
        return {
            "backend": "llama.cpp",
            "engine": "llamacpp",
            "name": self.name,
            "revision": self.revision,
            "device": "cpu",
            "batch_size": self.batch_size,
            "context_window": self.context_window,
            "chat_template": self._chat is not None and self._chat.has_template,
            "cells": self.cells,
            "threads": self.threads,
            "xllamacpp": importlib.metadata.version("xllamacpp"),
        }

    def cache_identity(self) -> dict[str, Any]:
        """The identity of this model for the response cache."""
        described = self.describe()
        return {key: described[key] for key in ("backend", "name", "revision", "xllamacpp")}

    def close(self) -> None:
        """Hang up and end the child; callers still waiting get Cancelled."""
        super().close()
        self._child.close()

    def _prompt(
        self, messages: Sequence[Message], prefill: str, tools: Sequence[ToolDefinition] = ()
    ) -> tuple[str, dict[str, Any]]:
        assert self._chat is not None
        return "completions", {"model": self.name, "prompt": self._chat.prompt_ids(messages, prefill, tools)}

    def _ask(self, request: Request, extra: dict[str, Any], whole: int) -> list[Completion]:
        """As ``HttpModel._ask``: each completion is a row of its own, with a slot and a seed."""
        ids = self._prompt(request.messages, request.prefill, request.tools)[1]["prompt"]
        ask = super()._ask

        def row(index: int) -> Completion:
            one = replace(request, n=1, seed=seed_of(request.seed, index))
            with self._slots.row(ids, one.max_new_tokens, one.cancel, self._weights) as (slot, read):
                (made,) = ask(one, extra | {"id_slot": slot, **self._weights}, 1)
            computed = (read.prompt or 0) - read.reused
            usage = Usage(prefill_tokens=computed, compute_seconds=read.compute_seconds)
            return replace(made, usage=made.usage + usage)

        if request.n == 1:
            return [row(0)]
        with ThreadPoolExecutor(request.n, thread_name_prefix="llamacpp-row") as threads:
            return list(threads.map(row, range(request.n)))

    def _ask_child(self, path: str, body: dict[str, Any] | None, cancel: threading.Event | None = None) -> Any:
        method = "GET" if body is None else "POST"
        with self._child.alive():
            return self._server.send(method, f"{self._child.root}/{path}", body, cancel=cancel).data


class Child:
    """The process that llama.cpp runs in. Thread-safe; started anew where it ended, at the same address."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.key = secrets.token_urlsafe(24)
        self._folder = tempfile.TemporaryDirectory(prefix="nl2sql-llamacpp-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self._settings = settings | {"key": self.key, "port": 0, "folder": f"{self.folder}{os.sep}"}
        self._log = self.folder / "log"
        self.starts = 0
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[str]] = []  # the one that runs; shared with the finalizer
        self._at_exit = weakref.finalize(self, _end, self._processes, self._folder)
        self.root = self._start()
        self.address = f"{self.root}/v1"
        self._settings["port"] = int(self.root.rpartition(":")[2])

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """A process that runs, for a call to it. A ModelError of the block says so where the process ended."""
        process = self._running()
        try:
            yield
        except Cancelled:
            raise
        except ModelError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)  # a connection that breaks is seen before the end of the process
            if process.poll() is None or not self._at_exit.alive:
                raise
            raise ModelError(
                f"llama.cpp ended ({_status(process.returncode)}) while it computed this call: {self._last_words()}; "
                "the next call starts it anew"
            ) from error

    def close(self) -> None:
        self._at_exit()

    def _running(self) -> subprocess.Popen[str]:
        with self._lock:
            if not self._at_exit.alive:
                raise ModelError("the model is closed")
            if self._processes[-1].poll() is not None:
                self._start()
            return self._processes[-1]

    def _start(self) -> str:
        """Start the process and wait until it listens; its address."""
        # Threads that spin where they wait for each other collapse beside other work (``load.sleep_at_barriers``).
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", str(CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        self._processes[:] = [process]
        self.starts += 1
        assert process.stdin is not None and process.stdout is not None
        slow = threading.Timer(START_S, process.kill)
        slow.start()
        try:
            process.stdin.write(json.dumps(self._settings) + "\n")
            process.stdin.flush()
            said = json.loads(process.stdout.readline() or "{}")
        except (OSError, ValueError):
            said = {}
        finally:
            slow.cancel()
        if "address" not in said:
            process.kill()
            process.wait()
            why = said.get("error") or _status(process.returncode)
            raise ModelError(
                f"llama.cpp cannot load {self._settings['model']} ({one_line(why, 200)}: {self._last_words()}); "
                "expected a .gguf file of a supported architecture, whole, and memory for it"
            )
        return str(said["address"])

    def _last_words(self) -> str:
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return one_line(lines[-1], 200) if lines else "it said nothing"


def _token_bytes(header: dict[str, Any]) -> int:
    """Bytes that the keys and values of a token take, in float16."""
    heads = _of(header, "attention.head_count") or 1
    width = _of(header, "embedding_length") // heads
    sizes = [_of(header, f"attention.{part}_length") or width for part in ("key", "value")]
    return max(1, 2 * _of(header, "block_count") * (_of(header, "attention.head_count_kv") or heads) * sum(sizes))


def _of(header: dict[str, Any], key: str) -> int:
    return int(header.get(f"{header.get('general.architecture', '')}.{key}") or 0)


def _cells(header: dict[str, Any], slots: int) -> tuple[int, int]:
    """The window of a row, and the tokens whose keys and values are held for all rows, within the memory limit."""
    window = _of(header, "context_length") or SLOT_TOKENS
    cells = min(max(window, slots * SLOT_TOKENS), memory_limit() // _token_bytes(header)) // 256 * 256
    if cells < 512:
        raise ModelError(f"memory allows keys and values of {cells} tokens only; set {VARIABLE} higher")
    return min(window, cells), cells


def _status(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"


def _end(processes: list[subprocess.Popen[str]], folder: tempfile.TemporaryDirectory[str]) -> None:
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
    folder.cleanup()


# ---------------------------------------------------------- which slot of the server holds which tokens
# llama.cpp reuses what a slot holds for the next row of that slot only. A long prompt is therefore
# read by a request of its own and saved, which takes milliseconds; any slot restores it, and a row
# whose beginning another one is reading waits for that. Rows are let in as long as the tokens of
# all fit into the cells for keys and values. Thread-safe.

WORTH = 16  # tokens; fewer are read again rather than restored, saved or waited for
SAVED_BYTES = 512 * 2**20  # of prompts on disk; the least recently used go
_POLL_S = 0.1  # how often a waiting row looks at its cancel event


@dataclass
class _Slot:
    number: int
    held: bytes = b""  # the tokens that it certainly has, 4 bytes each
    reading: bytes = b""  # the prompt that its row reads now, and saves
    row: int = 0  # cells that its row may take; 0: idle
    used: int = 0  # by which row, counted

    @property
    def cells(self) -> int:
        return self.row or len(self.held) // 4


class Slots:
    """``count`` slots over ``cells`` cells; saved prompts lie in ``folder``.

    ask: sends ``(path, body, cancel)`` to the server; parsed JSON comes back. starts: how often the server was started;
    what it held is gone when that has changed.
    """

    def __init__(
        self, count: int, cells: int, folder: Path, ask: Callable[..., Any], starts: Callable[[], int]
    ) -> None:
        self._cells, self._folder, self._ask, self._starts = cells, folder, ask, starts
        self._slots = [_Slot(number) for number in range(count)]
        self._saved: OrderedDict[bytes, tuple[Path, int]] = OrderedDict()  # tokens -> file and its bytes
        self._changed = threading.Condition()
        self._rows, self._start = 0, starts()

    @contextlib.contextmanager
    def row(
        self,
        ids: Sequence[int],
        room: int,
        cancel: threading.Event | None,
        weights: Mapping[str, Any] = MappingProxyType({}),
    ) -> Iterator[tuple[int, Counts]]:
        """The number of a slot for a row of ``ids`` and ``room`` tokens more, and what was read into it already.

        weights: fields of a request that say with which weights it is read (``adapter_at``), none for the server's
        own; what others have read is never reused. Raises ModelError and Cancelled.
        """
        tokens = _mark(weights) + array("I", ids).tobytes()
        slot, source, crowded = self._take(tokens, len(ids) + room, cancel)
        try:
            for other in crowded:
                self._ask(f"slots/{other.number}?action=erase", {}, cancel)
            if source:
                with contextlib.suppress(ModelError):  # it is read, then
                    self._ask(f"slots/{slot.number}?action=restore", {"filename": source.name}, cancel)
            yield slot.number, self._read(slot, ids, cancel, weights) if slot.reading else Counts()
            slot.held = tokens
        except BaseException:
            slot.held = b""  # whatever it holds
            raise
        finally:
            with self._changed:
                slot.row, slot.reading = 0, b""
                self._changed.notify_all()

    def _take(
        self, tokens: bytes, cells: int, cancel: threading.Event | None
    ) -> tuple[_Slot, Path | None, list[_Slot]]:
        """A slot for a row, the file that it is to restore, and the slots that must be emptied for it."""
        with self._changed:
            while not (slot := self._idle(tokens, cells)):
                self._changed.wait(_POLL_S)
                if cancel is not None and cancel.is_set():
                    raise Cancelled("cancelled while waiting for the model")
            self._rows += 1
            source, best = self._best(tokens, slot)
            if source:
                self._saved.move_to_end(source)
            if len(tokens) // 4 - best > WORTH:
                slot.reading = tokens[:-4]  # llama.cpp computes the last token of a row in any case
            slot.row, slot.used = cells, self._rows
            crowded = []
            for other in sorted(self._slots, key=lambda s: s.used):
                if not other.row and other.held and sum(s.cells for s in self._slots) > self._cells:
                    other.held = b""
                    crowded.append(other)
            return slot, self._saved[source][0] if source else None, crowded

    def _idle(self, tokens: bytes, cells: int) -> _Slot | None:
        """An idle slot, unless the row does not fit now, or another one reads what it begins with."""
        if self._start != self._starts():
            self._start = self._starts()
            for slot in self._slots:
                slot.held = b""
        idle = [slot for slot in self._slots if not slot.row]
        taken = sum(slot.row for slot in self._slots)
        if not idle or (taken and taken + cells > self._cells):
            return None
        # Where the conversation goes on; else what was used longest ago, so that those of others can go on.
        grown = [slot for slot in idle if slot.held and tokens.startswith(slot.held)]
        slot = max(grown, key=lambda s: len(s.held)) if grown else min(idle, key=lambda s: (bool(s.held), s.used))
        readers = [common(tokens, other.reading) for other in self._slots if other.reading]
        return None if max(readers, default=0) > self._best(tokens, slot)[1] + WORTH else slot

    def _best(self, tokens: bytes, slot: _Slot) -> tuple[bytes, int]:
        """The saved prompt that spares the slot most reading (empty: none), and how many tokens it has then."""
        own = common(tokens, slot.held)
        best = max(self._saved, key=lambda saved: common(tokens, saved), default=b"")
        there = common(tokens, best)
        return (best, there) if there > own + WORTH else (b"", own)

    def _read(
        self, slot: _Slot, ids: Sequence[int], cancel: threading.Event | None, weights: Mapping[str, Any]
    ) -> Counts:
        """Read a prompt into the slot and save it for others."""
        body = {"prompt": list(ids[:-1]), "max_tokens": 0, "temperature": 0, "id_slot": slot.number, **weights}
        counts = read_counts(self._ask("v1/completions", body, cancel))
        file = self._folder / f"{slot.used}.prompt"
        with contextlib.suppress(ModelError):  # a full disk: others read it themselves
            size = self._ask(f"slots/{slot.number}?action=save", {"filename": file.name}, cancel).get("n_written")
            with self._changed:
                self._saved[slot.reading] = file, int(size or 0)
                while sum(size for _, size in self._saved.values()) > SAVED_BYTES:
                    old, _ = self._saved.pop(next(iter(self._saved)))
                    old.unlink(missing_ok=True)
        with self._changed:
            slot.reading = b""
            self._changed.notify_all()
        return counts


def _mark(weights: Mapping[str, Any]) -> bytes:
    """What stands before the tokens that were read with other weights: of the size of one, and no token's number."""
    return b"\xff%b\xff" % hashlib.sha256(repr(weights).encode()).digest()[:2] if weights else b""


def common(a: bytes, b: bytes) -> int:
    """The tokens, of 4 bytes each, that both begin with.

    >>> common(b"aaaabbbb", b"aaaabbbc")
    1
    """
    low, high = 0, min(len(a), len(b)) // 4
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[4 * low : 4 * middle] == b[4 * low : 4 * middle] else (low, middle - 1)
    return low
