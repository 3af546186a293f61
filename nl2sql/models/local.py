"""Local transformers causal LMs: embedded models, folders, .gguf files, hub ids.

``LocalModel`` is thread-safe; callers block in ``generate`` while one worker thread (nl2sql.models.batching)
decodes for all of them. Not here: quantised inference, tensor parallelism.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nl2sql.errors import UsageError
from nl2sql.interfaces import Completion, Message, ToolDefinition, Usage
from nl2sql.machine import free_bytes
from nl2sql.models.chat import Chat, Request
from nl2sql.models.load import Source, load_parts

if TYPE_CHECKING:
    from nl2sql.models.batching import Router
    from nl2sql.models.rows import Row

FOR_TWO = 16  # rows at once from which on two workers on a CPU compute more than one with all threads
_POLL_S = 0.1  # how often a waiting caller looks at its cancel event


class LocalModel:
    """A transformers causal LM behind the ``Model`` protocol. Use ``load``, or ``load_model``.

    model, tokenizer: loaded transformers objects (the model in eval mode, on its device). revision: content hash.
    batch_size: rows decoded at once. max_cache_bytes: of keys and values (default: ``memory_limit``).
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        revision: str,
        batch_size: int = 32,
        max_cache_bytes: int | None = None,
    ) -> None:
        from nl2sql.models.prepacked_weights import pack
        from nl2sql.models.rows import Constrainer

        self.name = name
        self.revision = revision
        self.batch_size = batch_size
        self.context_window = int(getattr(model.config.get_text_config(), "max_position_embeddings", 2048))
        self._device = str(model.device)
        self._dtype = str(model.dtype).removeprefix("torch.")
        pack(model)
        self._chat = Chat(tokenizer, model.generation_config.eos_token_id)
        self._constrainer = Constrainer(tokenizer, model.config.get_text_config().vocab_size, self._chat.stop_ids)
        self.cache_limit = max_cache_bytes or memory_limit(self._device)
        self._engine, self._worker = open_engine(model, self._chat.decode, batch_size, self.cache_limit)
        # A daemon thread inside torch at interpreter exit can crash; stop it first, without keeping the model alive.
        self._at_exit = weakref.finalize(self, self._worker.close)

    @classmethod
    def load(
        cls,
        source: Source,
        *,
        device: str = "auto",
        dtype: str | None = None,
        batch_size: int = 32,
        adapter: str = "auto",
    ) -> LocalModel:
        """Load the weights that ``source`` names, with the LoRA adapter in the folder ``adapter`` merged in.

        Raises UsageError for a bad device, dtype or adapter, else ModelError.
        """
        loaded = load_parts(source, device=device, dtype=dtype, adapter=adapter)
        return cls(*loaded.parts, name=loaded.name, revision=loaded.revision, batch_size=batch_size)

    def generate(self, messages: Sequence[Message], **options: Any) -> list[Completion]:
        """Continue the open assistant turn; see ``Model.generate`` for the options.

        ``completion_tokens`` counts every token decoded, the end-of-turn token or the stop string's included;
        ``logprob`` sums their log-probabilities at temperature 1. The wall time of a call is shared equally by its
        ``n`` completions. Raises ModelError for a prompt that does not fit, a failing model, a malformed grammar, or
        tools that the chat template does not take.
        """
        started, request = time.perf_counter(), Request(messages, **options)
        request.check_sampling()
        grammar, n = request.grammar, request.n
        if request.tools and grammar is not None:
            self._chat.check_tools(grammar=True)
        prompt = self._chat.prompt_ids(messages, request.prefill, request.tools)
        request.check_room(len(prompt), self.context_window, self.name)
        base = secrets.randbits(63) if request.seed is None else request.seed
        rows = [
            self._row(
                prompt,
                max_new_tokens=request.max_new_tokens,
                stop=tuple(request.stop),
                sampling=request.sampling,
                seed=_row_seed(base, index),
                cancel=request.cancel,
                grammar=self._constrainer.start(grammar) if grammar is not None else None,
                alone=n == 1,
            )
            for index in range(n)
        ]
        self._wait(rows)
        seconds = (time.perf_counter() - started) / n
        return [
            Completion(
                row.text,
                row.finish,
                Usage(
                    prompt_tokens=len(prompt),
                    prefill_tokens=row.prefilled,
                    completion_tokens=len(row.ids),
                    model_calls=1,
                    seconds=seconds,
                    queue_seconds=row.queue_seconds,
                    compute_seconds=row.compute_seconds,
                ),
                row.logprob,
            )
            for row in rows
        ]

    def _row(self, prompt: list[int], **options: Any) -> Row:
        from nl2sql.models.rows import Row

        return Row(prompt=prompt, stop_ids=self._chat.stop_ids, **options)

    def _wait(self, rows: Sequence[Row]) -> None:
        """Have rows computed; raises the first one's error."""
        try:
            self._worker.submit(rows)
            for row in rows:
                while not row.done.wait(_POLL_S if row.cancel is not None else None):
                    pass
        finally:
            for row in rows:
                row.abandoned = True  # after Ctrl-C in this thread nobody waits any more
        for row in rows:
            if row.error is not None:
                raise row.error

    def prompt_ids(
        self, messages: Sequence[Message], prefill: str = "", tools: Sequence[ToolDefinition] = ()
    ) -> list[int]:
        """The token ids that ``generate`` would condition on; the tokenizer only, any thread."""
        return self._chat.prompt_ids(messages, prefill, tools)

    def check(self, *, grammar: bool, tools: bool) -> None:
        """Raises ModelError when llguidance is missing for a grammar, or the chat template takes no tools."""
        if grammar:
            self._constrainer.check()
        if tools:
            self._chat.check_tools(grammar=grammar)

    def next_logits(self, messages: Sequence[Message], prefill: str = "") -> tuple[Any, int]:
        """Float32 logits ``[vocab]`` of the next token, and how many prompt tokens came from the cache."""
        row = self._row(self.prompt_ids(messages, prefill), max_new_tokens=1)
        row.keep_logits = True
        self._wait([row])
        return row.logits, len(row.prompt) - row.prefilled

    def count_tokens(self, messages: Sequence[Message], prefill: str = "", tools: Sequence[ToolDefinition] = ()) -> int:
        """Prompt tokens that ``generate`` would condition on; the tokenizer only, any thread."""
        return len(self._chat.prompt_ids(messages, prefill, tools))

    def describe(self) -> dict[str, Any]:
        """The model as a manifest records it."""
        import torch
        import transformers

        return {
            "backend": "transformers",
            "name": self.name,
            "revision": self.revision,
            "device": self._device,
            "dtype": self._dtype,
            "batch_size": self.batch_size,
            "context_window": self.context_window,
            "chat_template": self._chat.has_template,
            "engine": self._engine,
            "threads": torch.get_num_threads(),
            "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", ""),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }

    @property
    def cache_bytes(self) -> int:
        """Memory that the engine's keys and values take now."""
        return self._worker.cache_bytes

    def worker_seconds(self) -> tuple[float, float]:
        """Seconds since loading in which there was work, and of these inside the model's forward passes."""
        return self._worker.busy_seconds, self._worker.forward_seconds

    def close(self) -> None:
        """Stop the worker; callers still waiting get Cancelled."""
        self._at_exit()


def _row_seed(seed: int, index: int) -> int:
    """A seed of its own for completion ``index``: independent of how many there are and of the batch."""
    digest = hashlib.sha256(f"{seed}:{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def open_engine(
    model: Any, decode: Callable[[Sequence[int]], str], batch_size: int, max_cache_bytes: int
) -> tuple[str, Router]:
    """The engine, and its name for the manifest: slots, or sequential where they do not fit the model."""
    import torch

    from nl2sql.models.batching import BatchWorker, Router
    from nl2sql.models.slots import SlotDecoder, make_decoder

    first = make_decoder(model)
    slots = isinstance(first, SlotDecoder)
    alone = not slots or batch_size < FOR_TWO or model.device.type != "cpu"
    workers = 1 if alone else min(2, torch.get_num_threads())
    decoders = [first, *(SlotDecoder(model, first.token_bytes) for _ in range(workers - 1))]
    router = Router(
        [
            BatchWorker(
                decoder,
                decode,
                batch_size=(batch_size + n) // workers,
                max_cache_bytes=max_cache_bytes // workers,
                threads=torch.get_num_threads() // workers if workers > 1 else None,
            )
            for n, decoder in enumerate(decoders)
        ]
    )
    return "slots" if slots else "sequential", router


MOST_BYTES = 4 * 10**9  # by default
VARIABLE = "NL2SQL_MEMORY_GB"


def memory_limit(device: str = "cpu") -> int:
    """Bytes of keys and values, by default: on a CPU a quarter of what is free now and at most ``MOST_BYTES``.

    On a GPU half of what is free there. Raises UsageError where ``VARIABLE`` in the environment is no size.
    """
    if text := os.environ.get(VARIABLE, ""):
        with suppress(ValueError):
            if 0 < float(text) < 1e6:
                return int(float(text) * 1e9)
        raise UsageError(f"{VARIABLE}={text!r} is not a size in GB; example: {VARIABLE}=4")
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(torch.device(device))[0]) // 2
    return min((free_bytes() or MOST_BYTES) // 4, MOST_BYTES)
