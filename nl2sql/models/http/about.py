"""What a server says of itself and its models, and counts with its own tokenizer; nothing that it computes.

>>> whole_number(8192), whole_number("8192")
(8192, None)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nl2sql.errors import ModelError
from nl2sql.interfaces import Message
from nl2sql.models.http.prompts import CONTINUE
from nl2sql.models.http.server import Server
from nl2sql.models.http.transport import RequestRefused
from nl2sql.models.http.wire import MOST


def served_models(server: Server) -> list[dict[str, Any]]:
    """The entries of ``/models``; empty where there is no such list. Raises ModelError when nobody answers."""
    try:
        data = server.send("GET", f"{server.base}/models").data
    except RequestRefused as refused:
        if refused.status in (401, 403) or 300 <= refused.status < 400:
            raise
        return []
    found = data.get("data") if isinstance(data, Mapping) else None
    rows = found if isinstance(found, list) else []
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]


def count_remotely(
    server: Server, name: str, kind: str, messages: Sequence[Message], prefill: str, fields: Mapping[str, Any]
) -> int:
    """Tokens of a prompt by the server's own tokenizer. Raises ModelError where it has none."""
    root = server.base.removesuffix("/v1")
    chat = [dict(message) for message in messages]
    if kind == "vllm":
        if prefill:
            body = {"messages": [*chat, {"role": "assistant", "content": prefill}], **CONTINUE}
        else:
            body = {"messages": chat}
        data = server.send("POST", f"{root}/tokenize", {"model": name, **fields, **body}, retries=1).data
        count = data.get("count") if isinstance(data, Mapping) else None
    else:
        body = {"messages": chat, **fields}
        data = server.send("POST", f"{root}/apply-template", body, retries=1).data
        prompt = data.get("prompt") if isinstance(data, Mapping) else None
        if not isinstance(prompt, str):
            raise ModelError(f"{server.base}: /apply-template gives no prompt")
        whole = {"content": prompt + prefill, "add_special": True, "parse_special": True}
        data = server.send("POST", f"{root}/tokenize", whole, retries=1).data
        tokens = data.get("tokens") if isinstance(data, Mapping) else None
        count = len(tokens) if isinstance(tokens, list) else None
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST:
        raise ModelError(f"{server.base}: /tokenize gives no count")
    return count


def about_server(server: Server, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The server's word about itself and the model; nothing that changes from one start to the next."""
    root = server.base.removesuffix("/v1")
    described = entry.get("meta")
    meta: Mapping[str, Any] = described if isinstance(described, Mapping) else {}
    about: dict[str, Any] = {key: entry[key] for key in ("owned_by", "root") if isinstance(entry.get(key), str)}
    about |= {
        key: meta[key]
        for key in ("n_params", "size", "n_vocab")
        if isinstance(meta.get(key), int) and abs(meta[key]) < MOST**2
    }
    window = entry.get("max_model_len")
    version = _ask(server, f"{root}/{'api/' * (server.place.provider == 'ollama')}version").get("version")
    props = _ask(server, f"{root}/props") if not isinstance(version, str) else {}
    if isinstance(version, str):
        about["version"] = version
    if isinstance(props.get("build_info"), str):
        about["version"] = props["build_info"]
    settings = props.get("default_generation_settings")
    if window is None and isinstance(settings, Mapping):
        window = settings.get("n_ctx")
    if whole_number(window):
        about["window"] = window
    return about


def loaded_model(server: Server, name: str) -> Mapping[str, Any]:
    """What Ollama says of a model that it holds in memory, its window as it was started among it."""
    models = _ask(server, f"{server.base.removesuffix('/v1')}/api/ps").get("models")
    rows = [row for row in models if isinstance(row, Mapping)] if isinstance(models, list) else []
    return next((row for row in rows if row.get("model") in (name, f"{name}:latest")), {})


def whole_number(value: Any) -> int | None:
    """A count that a server gives, where it is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST else None


def _ask(server: Server, url: str) -> Mapping[str, Any]:
    try:
        data = server.send("GET", url, retries=0).data
    except ModelError:
        return {}
    return data if isinstance(data, Mapping) else {}
