"""Model back ends: local transformers models, HTTP servers, scripted replies, and the embedded weights.

``load_model`` turns what a user types after ``--model`` into a ``Model``. Importing this package imports no
model library.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nl2sql.errors import UsageError

if TYPE_CHECKING:
    from nl2sql.interfaces import Model

DEFAULT_MODEL = "smollm2-135m"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_LIST_HINT = "`nl2sql models list` shows the embedded ones"


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
    a hub id ``org/name``, or a server's model ``http://HOST/v1#NAME``. device: auto, cpu, cuda or mps. dtype: float32,
    bfloat16, float16 or None (float32 on CPU, bfloat16 on CUDA). batch_size: rows decoded, or requests made, at once.
    server: ``KEY=VALUE`` options of an HTTP server. cache: answer repeated calls from the response cache. engine: how a
    local model batches: auto, slots, or continuous (transformers' own; docs/engine.md). adapter: a LoRA adapter that is
    merged into a local model's weights: auto (the packaged one of an embedded model that has one), none, the name of a
    packaged one, or a folder in PEFT's format.
    Raises UsageError for a spec that names nothing, ModelError when the weights or the server cannot be had.
    """
    source = resolve_spec(spec)
    if batch_size < 1:
        raise UsageError(f"batch size {batch_size} is not positive; use --batch-size 32")
    model = _open(source, device, dtype, batch_size, tuple(server), engine, adapter)
    if not cache:
        return model
    from nl2sql.models.response_cache import cached

    return cached(model)


def _open(
    source: Source, device: str, dtype: str | None, batch_size: int, server: tuple[str, ...], engine: str, adapter: str
) -> Model:
    if adapter not in ("auto", "none") and source.kind in ("http", "scripted"):
        raise UsageError(f"--adapter goes with a local model, not with {source.value!r}; leave it out")
    if source.kind == "http":
        from nl2sql.models.http.model import HttpModel
        from nl2sql.models.http.options import ServerOptions

        if device != "auto" or dtype is not None:
            raise UsageError("--device and --dtype are the server's own business; leave them out with an HTTP model")
        return HttpModel(source.value, ServerOptions.parse(server), batch_size=batch_size)
    if server:
        raise UsageError(f"--server {server[0]} goes with --model http://HOST/v1#NAME, not with {source.value!r}")
    if source.kind == "scripted":
        from nl2sql.models.scripted import ScriptedModel

        return ScriptedModel.from_file(source.value)
    from nl2sql.models.local import LocalModel

    return LocalModel.load(source, device=device, dtype=dtype, batch_size=batch_size, engine=engine, adapter=adapter)


@dataclass(frozen=True)
class Source:
    """Where a model's weights come from."""

    kind: Literal["embedded", "scripted", "folder", "gguf", "hub", "http"]
    value: str  # name, path, hub id or address


def resolve_spec(spec: str) -> Source:
    """What kind of model ``spec`` names, without loading anything. Raises UsageError when it names none."""
    from nl2sql.models.embedded import embedded_names

    spec = spec.strip()
    names = embedded_names()
    if spec in names:
        return Source("embedded", spec)
    if spec.startswith("scripted:"):
        return Source("scripted", spec.removeprefix("scripted:"))
    if re.match(r"https?://", spec, re.IGNORECASE):
        return Source("http", spec)
    path = Path(spec).expanduser()
    if path.is_dir():
        return Source("folder", str(path))
    if spec.lower().endswith(".gguf"):
        if not path.is_file():
            raise UsageError(f"model file {spec!r} does not exist; give the path of a .gguf file, or {_LIST_HINT}")
        return Source("gguf", str(path))
    if path.is_file():
        raise UsageError(f"model {spec!r} is a file but not a .gguf one; for scripted replies write scripted:{spec}")
    near = difflib.get_close_matches(spec.lower(), names, n=1, cutoff=0.5)
    if _HUB_ID.fullmatch(spec) and not spec.startswith((".", "/")):
        return Source("hub", spec)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"unknown model {spec!r}; {hint}known: {', '.join(names)}, scripted:FILE, a folder, a .gguf file, "
        f"a hub id org/name, http://HOST/v1#NAME ({_LIST_HINT})"
    )
