"""Model back ends: local transformers models, HTTP servers, scripted replies, and the embedded weights.

``load_model`` turns what a user types after ``--model`` into a ``Model``. Importing this package imports no
model library.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from nl2sql.errors import ModelError, UsageError, one_line
from nl2sql.interfaces import DEFAULT_MODEL
from nl2sql.models.embedded import embedded_model, pulled
from nl2sql.models.load import FALLBACK, Source, resolve_spec, runs_on_llamacpp

if TYPE_CHECKING:
    from nl2sql.interfaces import Model

logger = logging.getLogger(__name__)


def load_model(
    spec: str,
    *,
    device: str = "auto",
    dtype: str | None = None,
    batch_size: int = 32,
    server: Iterable[str] = (),
    cache: bool = False,
    engine: str = "auto",
    adapter: str = "auto",
) -> Model:
    """Load the model that ``spec`` names.

    spec: an embedded name (``smollm2-135m``; pulled on first use), ``scripted:FILE``, a folder, a ``.gguf`` file,
    a hub id ``org/name``, or a server's model: ``http://HOST/v1#NAME``, ``openai/NAME`` and likewise anthropic, ollama,
    vllm, llamacpp; or ``PLUGIN:TEXT``, of an installed plugin. device: auto, cpu, cuda, or mps. dtype: float32,
    bfloat16, float16, None (float32 on CPU, bfloat16 on CUDA), or auto (bfloat16 too on a CPU with instructions for
    it). batch_size: rows decoded, or requests made, at once. server: ``KEY=VALUE`` options of an HTTP server. cache:
    answer repeated calls from the response cache. engine: what runs a local model: auto, llamacpp, or slots (ours, on
    torch; docs/engine.md). adapter: a LoRA adapter of a local model: auto (the packaged one of an embedded model that
    has one), none, the name of a packaged one, a folder in PEFT's format, or, for llama.cpp, a .gguf file.
    Raises UsageError for a spec that names nothing, ModelError when the weights or the server cannot be had.
    """
    source = resolve_spec(spec)
    if batch_size < 1:
        raise UsageError(f"batch size {batch_size} is not positive; use --batch-size 32")
    if source.kind == "embedded":
        source = at_hand(source)
    model = _open(source, device, dtype, batch_size, tuple(server), engine, adapter)
    if not cache:
        return model
    from nl2sql.models.response_cache import cached

    return cached(model)


def at_hand(source: Source) -> Source:
    """An embedded model; in place of the default one, where nobody has its weights, the smaller one."""
    if source.value != DEFAULT_MODEL or source.value == FALLBACK:
        return source
    try:
        pulled(embedded_model(source.value))
    except ModelError as error:
        logger.warning("%s; using %s instead", one_line(error, 400), FALLBACK)
        return Source("embedded", FALLBACK)
    return source


def _open(
    source: Source, device: str, dtype: str | None, batch_size: int, server: tuple[str, ...], engine: str, adapter: str
) -> Model:
    if adapter not in ("auto", "none") and source.kind in ("http", "scripted", "plugin"):
        raise UsageError(f"--adapter goes with a local model, not with {source.value!r}; leave it out")
    if source.kind == "http":
        from nl2sql.models.http.model import HttpModel
        from nl2sql.models.http.providers import ServerOptions

        if device != "auto" or dtype not in (None, "auto"):
            raise UsageError("--device and --dtype are the server's own business; leave them out with an HTTP model")
        return HttpModel(source.value, ServerOptions.parse(server), batch_size=batch_size)
    if server:
        raise UsageError(f"--server {server[0]} goes with --model http://HOST/v1#NAME, not with {source.value!r}")
    if source.kind == "scripted":
        from nl2sql.models.scripted import ScriptedModel

        return ScriptedModel.from_file(source.value)
    if source.kind == "plugin":
        from nl2sql.config.plugins import made_by_plugin

        name, _, text = source.value.partition(":")
        model: Model = made_by_plugin("models", name, text)
        return model
    if runs_on_llamacpp(source, engine, device, dtype):
        from nl2sql.models.llamacpp import LlamaCppModel

        return LlamaCppModel.load(source, batch_size=batch_size, adapter=adapter)
    from nl2sql.models.local import LocalModel

    return LocalModel.load(source, device=device, dtype=dtype, batch_size=batch_size, adapter=adapter)
