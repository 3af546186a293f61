"""What a user types after ``--model``, and the way from there to transformers objects: weights, device, dtype, adapter.

>>> resolve_spec("scripted:replies.yaml")
Source(kind='scripted', value='replies.yaml')
>>> resolve_spec("openai/gpt-5-mini")
Source(kind='http', value='openai/gpt-5-mini')

Importing this module imports no model library. Not here: quantised weights.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nl2sql.config.plugins import plugins
from nl2sql.errors import ModelError, Nl2SqlError, UsageError, one_line
from nl2sql.machine import BFLOAT16, all_bytes, as_path, missing_part, multiplies_bfloat16, threads
from nl2sql.models.embedded import embedded_model, embedded_names, into_cache, pulled
from nl2sql.models.weight_files import (
    convert_gguf,
    find_adapter,
    folder_files,
    merge_adapter,
    quiet_transformers,
    refuse_missing,
    weights_hash,
    weights_revision,
)

logger = logging.getLogger(__name__)

FALLBACK = "smollm2-135m"  # where nobody has the weights of the default model
ENGINES = ("auto", "llamacpp", "slots")
SERVERS = ("openai", "anthropic", "ollama", "vllm", "llamacpp")  # known by name: models.http.providers
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_LIST_HINT = "`nl2sql models list` shows the embedded ones"


DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("auto", "float32", "bfloat16", "float16")


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
        f"or PLUGIN:TEXT of an installed plugin ({_LIST_HINT})"
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


class Loaded(NamedTuple):
    """parts: the transformers model in eval mode on its device, and its tokenizer."""

    parts: tuple[Any, Any]
    name: str
    revision: str


def load_parts(source: Source, *, device: str = "auto", dtype: str | None = None, adapter: str = "none") -> Loaded:
    """The transformers objects that ``source`` names, ``adapter`` merged in; ``Loaded.name`` says so.

    Raises UsageError for a bad device, dtype or adapter, else ModelError.
    """
    if missing := missing_part("torch", "transformers"):
        raise ModelError(
            f"{source.value} runs in this process, and {missing} (or a server: --model http://HOST/v1#NAME)"
        )
    folder = find_adapter(adapter, embedded_model(source.value).adapter if source.kind == "embedded" else "none")
    sleep_at_barriers()
    import torch
    from transformers import AutoTokenizer

    device = _pick_device(device)
    dtype, slow = pick_dtype(dtype, device.partition(":")[0], instructions())
    if slow:
        _warn_once(slow)
    where, kind = _locate(source), source.kind
    if device == "cpu":
        set_threads()
    with _reading(source, where), quiet_transformers():
        _check_room(where, source.value, dtype, device)
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
        try:
            model = _load_weights(where, getattr(torch, dtype)).to(device).eval()
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"model {source.value!r} does not fit into what {device} has free "
                f"({one_line(error, 120)}); use a smaller model, or a server's: --model http://HOST/v1#NAME"
            ) from None
    merged = merge_adapter(model, folder) if folder else ""
    revision = str(model.config._commit_hash or "") if kind == "hub" else _revision(source, Path(where))
    name, path = source.value, Path(source.value)
    if kind in ("folder", "gguf"):
        name = path.name if path.name not in ("", "..") else path.resolve().name
    if folder:
        name, revision = f"{name}+{folder.resolve().name}", f"{revision}+{merged}"
    return Loaded((model, tokenizer), name, revision)


def _check_room(where: str, name: str, dtype: str, device: str) -> None:
    """Raises ModelError where the weights exceed all memory of ``device``; counted by the configuration, unread."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(where, trust_remote_code=False)
    with torch.device("meta"):
        shape = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    needed, has = shape.num_parameters() * getattr(torch, dtype).itemsize, all_bytes()
    if device.startswith("cuda"):
        has = int(torch.cuda.get_device_properties(torch.device(device)).total_memory)
    if has is not None and needed > has:
        smaller = "--dtype bfloat16, " if dtype == "float32" else ""
        raise ModelError(
            f"model {name!r} takes {needed / 1e9:.1f} GB in {dtype}, {device} has {has / 1e9:.1f} GB; use {smaller}"
            "a smaller model, or a server's: --model http://HOST/v1#NAME"
        )


def _load_weights(where: str, dtype: Any) -> Any:
    """The model as transformers loads it. Raises ValueError where the files lack a parameter: it would be random."""
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": dtype, "output_loading_info": True, "trust_remote_code": False}
    try:
        model, found = AutoModelForCausalLM.from_pretrained(where, attn_implementation="sdpa", **options)
    except ValueError as error:
        if "does not support an attention implementation" not in str(error):
            raise
        model, found = AutoModelForCausalLM.from_pretrained(where, **options)  # it has none, or its own alone
    refuse_missing(model, found)
    return model


def sleep_at_barriers() -> None:
    """Let OpenMP's threads sleep where they wait for each other; works only before torch is first imported.

    By default they spin, and beside any other busy process two threads then collapse: 0.8 to 5.1 s for a step of 16
    rows against 0.5 s (measured on 2 shared cores; docs/models.md). OMP_WAIT_POLICY in the environment wins.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def set_threads() -> int:
    """Give torch one thread per core this process may use, or NL2SQL_THREADS; returns the number."""
    import torch

    count = threads()
    torch.set_num_threads(count)
    return count


def _pick_device(device: str) -> str:
    """A device as torch names it."""
    import torch

    kind, _, number = device.partition(":")
    if kind not in DEVICES or (":" in device and not (kind == "cuda" and number.isdigit())):
        raise UsageError(f"unknown device {device!r}; choose one of {', '.join(DEVICES)}")
    has = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if has[name])
    if not has[kind]:
        raise UsageError(f"device {device!r} is not available to this torch ({torch.__version__}); use --device cpu")
    if number and int(number) >= (count := torch.cuda.device_count()):
        raise UsageError(f"device {device!r}: this torch sees {count} GPUs; give cuda:0 to cuda:{count - 1}")
    return device


def pick_dtype(dtype: str | None, device: str, has: Collection[str]) -> tuple[str, str]:
    """The dtype that weights are loaded in, and a warning ("" without one).

    None is float32 on a CPU: it alone gives the same text at any batch composition. auto is bfloat16 on a CPU that
    computes in it; one that does not converts around every product. Both are bfloat16 on CUDA, float32 on MPS.

    device: cpu, cuda or mps. has: the instructions of the CPU, as torch names it. Raises UsageError for another dtype.

    >>> pick_dtype("auto", "cpu", ["avx2", "avx512_f"]), pick_dtype("auto", "cpu", ["avx2", "avx512_bf16"])
    (('float32', ''), ('bfloat16', ''))
    """
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}")
    fast = device == "cuda" or (device == "cpu" and not {*BFLOAT16, "bf16"}.isdisjoint(has))  # the last is ARM's
    if dtype is None:
        return "bfloat16" if device == "cuda" else "float32", ""
    if dtype == "auto":
        return "bfloat16" if fast else "float32", ""
    slow = dtype == "bfloat16" and device == "cpu" and not fast
    return dtype, "this processor has no instructions for bfloat16: --dtype float32 is faster" if slow else ""


def instructions() -> frozenset[str]:
    """What the processor has, as torch names it; none where torch was built without oneDNN, which would use them."""
    import torch

    if not torch.backends.mkldnn.is_available():
        return frozenset()
    if not hasattr(torch.cpu, "get_capabilities"):  # an older torch
        return frozenset(["avx512_bf16"] if torch.cpu._is_avx512_bf16_supported() else [])
    return frozenset(name for name, there in torch.cpu.get_capabilities().items() if there is True)


_warn_once = cache(logger.warning)  # a question model is loaded in the same dtype


def _locate(source: Source) -> str:
    """The folder (or hub id) that transformers loads from; pulls or converts when the cache lacks it."""
    if source.kind == "embedded":
        found = pulled(embedded_model(source.value))
        return str(_converted(found) if found.is_file() else found)
    if source.kind == "gguf":
        return str(_converted(Path(source.value)))
    if source.kind == "folder" and not (Path(source.value) / "config.json").is_file():
        raise UsageError(f"folder {source.value!r} has no config.json; expected a transformers model folder")
    if source.kind == "hub":
        logger.warning("looking for %s on the Hugging Face hub and in its cache", source.value)
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries are told once, by our own error
    return source.value


def _converted(gguf: Path) -> Path:
    """The safetensors folder of a user's .gguf file, made in the cache on first use and known by its hash."""
    digest = weights_hash(gguf)
    with _reading(Source("gguf", str(gguf)), str(gguf)):
        return into_cache(f"gguf-{digest[:24]}", lambda target: convert_gguf(gguf, target), what=str(gguf))


def _revision(source: Source, folder: Path) -> str:
    if source.kind == "embedded":
        return f"sha256:{embedded_model(source.value).gguf_sha256}"
    return weights_revision([Path(source.value)] if source.kind == "gguf" else folder_files(folder))


@contextmanager
def _reading(source: Source, where: str) -> Iterator[None]:
    """What readers of weights raise, whatever a stranger's bytes make it, is told as an error of ``source``."""
    try:
        yield
    except Nl2SqlError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is
        raise _load_error(source, where, error) from None


def _load_error(source: Source, where: str, error: Exception) -> ModelError:
    first = one_line(error, 240)
    if isinstance(error, MemoryError) or "allocate memory" in first:
        return ModelError(
            f"model {source.value!r} takes more memory than there is ({first or 'MemoryError'}); give a smaller model, "
            "or a server's: --model http://HOST/v1#NAME"
        )
    if source.kind == "hub":
        return ModelError(
            f"hub model {source.value!r} could not be loaded ({first}); check the name and the network, or give a "
            "local folder: --model /path/to/folder, or --model smollm2-135m"
        )
    if source.kind == "embedded":
        again = f"run `nl2sql models pull {source.value} --force` to make it anew"
        return ModelError(f"the cached weights in {where} cannot be loaded ({first}); {again}")
    hint = f"join its parts first: llama-gguf-split --merge {where} WHOLE.gguf" if _PART.search(where) else _FORMS
    return ModelError(f"model {source.value!r} cannot be loaded ({type(error).__name__}: {first}); {hint}")


_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")  # of a model that was split
_FORMS = "expected a transformers causal LM folder or a .gguf file of a supported architecture; fetch a cut one again"
