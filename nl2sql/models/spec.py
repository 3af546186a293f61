"""The specs that a user types after ``--model``, and the kinds of model that they name. Imports no model library.

>>> resolve_spec("scripted:replies.yaml")
Source(kind='scripted', value='replies.yaml')
>>> resolve_spec("openai/gpt-5-mini")
Source(kind='http', value='openai/gpt-5-mini')
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from nl2sql.config.plugins import plugins
from nl2sql.errors import UsageError
from nl2sql.machine import as_path, missing_part, multiplies_bfloat16
from nl2sql.models.embedded import embedded_model, embedded_names

FALLBACK = "smollm2-135m"  # where nobody has the weights of the default model
ENGINES = ("auto", "llamacpp", "slots")
SERVERS = ("openai", "anthropic", "ollama", "vllm", "llamacpp")  # known by name: models.http.providers
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_LIST_HINT = "`nl2sql models list` shows the embedded ones"


@dataclass(frozen=True)
class Source:
    """The place that a model's weights come from."""

    kind: Literal["embedded", "scripted", "folder", "gguf", "hub", "http", "plugin"]
    value: str  # name, path, hub id, address, PROVIDER/NAME, or PLUGIN:TEXT


def resolve_spec(spec: str) -> Source:
    """The kind of model that ``spec`` names, without loading anything. Raises UsageError when it names none."""
    spec = spec.strip()
    names = embedded_names()
    if spec in names:
        return Source("embedded", spec)
    if spec.startswith("scripted:"):
        return Source("scripted", spec.removeprefix("scripted:"))
    if re.match(r"https?://", spec, re.IGNORECASE):
        return Source("http", spec)
    path = as_path(spec)
    if path and path.is_dir():
        return Source("folder", str(path))
    if spec.partition("/")[0] in SERVERS and "/" in spec:  # also in place of a hub id openai/...
        return Source("http", spec)
    if spec.lower().endswith(".gguf"):
        if not (path and path.is_file()):
            raise UsageError(f"model file {spec!r} does not exist; give the path of a .gguf file, or {_LIST_HINT}")
        return Source("gguf", str(path))
    if path and path.is_file():
        raise UsageError(f"model {spec!r} is a file but not a .gguf one; for scripted replies write scripted:{spec}")
    if ":" in spec and spec.partition(":")[0] in plugins("models"):
        return Source("plugin", spec)
    near = difflib.get_close_matches(spec.lower(), names, n=1, cutoff=0.5)
    if _HUB_ID.fullmatch(spec) and not spec.startswith((".", "/")):
        return Source("hub", spec)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"unknown model {spec!r}; {hint}known: {', '.join(names)}, scripted:FILE, a folder, a .gguf file, "
        f"a hub id org/name, http://HOST/v1#NAME, or PROVIDER/NAME with PROVIDER one of {', '.join(SERVERS)}, "
        f"or PLUGIN:TEXT of an installed plugin "
        f"({_LIST_HINT})"
    )


def runs_on_llamacpp(source: Source, engine: str, device: str = "auto", dtype: str | None = None) -> bool:
    """Whether llama.cpp runs a local model: where it is asked for, an entry's own, or what runs a .gguf file best.

    dtype auto takes our engine where torch is there and the processor multiplies matrices of bfloat16, which the
    wheel of llama.cpp makes no use of: several times as fast for many calls, slower to load (docs/models.md).

    Raises UsageError where it is asked for and cannot, and for an engine that is none.
    """
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}; choose one of {', '.join(ENGINES)}")
    fits = source.kind in ("embedded", "gguf")
    if engine == "llamacpp":
        if not fits or device not in ("auto", "cpu") or dtype not in (None, "auto"):
            raise UsageError(
                f"--engine llamacpp runs embedded models and .gguf files, on the CPU and in their own precision; not "
                f"{source.value!r}, --device {device}, --dtype {dtype}"
            )
        return True
    if engine != "auto" or device not in ("auto", "cpu") or dtype not in (None, "auto") or not fits:
        return False
    no_torch = bool(missing_part("torch", "transformers"))
    if source.kind == "gguf" or embedded_model(source.value).engine == "llamacpp":
        return no_torch or dtype != "auto" or not multiplies_bfloat16()
    return no_torch and not missing_part("xllamacpp")
