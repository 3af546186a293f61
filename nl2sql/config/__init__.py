"""Configuration: frozen pydantic models, one per component (``sections``); files and ``key=value`` overrides merge.

The resolved configuration is written into every run's manifest. An error names the key, and what was expected; an
unknown key is one that lists the known ones.

>>> load_config(overrides=["react.max_steps=4"]).react.max_steps
4
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from nl2sql.config.sections import *  # noqa: F403
from nl2sql.config.sections import Config
from nl2sql.errors import UsageError, one_line
from nl2sql.machine import from_json, from_yaml

OPTIONS = {  # of commands, which are often typed as keys
    *("adapter", "batch_size", "benchmark", "controller", "device", "dtype"),
    *("limit", "model", "out", "seeds", "server", "split"),
}


def load_config(
    files: Iterable[str | Path] = (), overrides: Iterable[str] = (), *, base: dict[str, Any] | None = None
) -> Config:
    """Merge ``base``, then YAML ``files`` in order, then ``key.sub=value`` overrides (values read as YAML).

    Raises UsageError for a missing or malformed file, an unknown key, or a value of the wrong kind.
    """
    data: dict[str, Any] = json.loads(json.dumps(base or {}))
    for file in files:
        merge(data, _read_file(Path(file)))
    for item in overrides:
        merge(data, read_override(item))
    return build_config(data)


def read_override(item: str) -> dict[str, Any]:
    """``key.sub=value`` as nested data. Raises UsageError for another form, or a value that is not YAML."""
    key, sep, value = item.partition("=")
    if not sep or not key.strip():
        raise UsageError(f"config override {item!r} is not key=value; example: -c react.max_steps=4")
    node: Any = value
    if value.strip() and not key.strip().startswith("prompts."):  # a prompt is text, whatever it looks like
        try:
            node = from_yaml(value)
        except yaml.YAMLError as error:
            why = one_line(str(getattr(error, "problem", None) or error), 200)
            message = f"config override {key}={value!r} is not YAML: {why}; example: -c react.max_steps=4"
            raise UsageError(message) from None
    for part in reversed(key.strip().split(".")):
        node = {part: node}
    return dict(node)


def build_config(data: dict[str, Any]) -> Config:
    """Validate a plain dict; errors name the key, the value and what was expected."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden" and where in OPTIONS:
            option = f"--{where.replace('_', '-')}"
            raise UsageError(f"{where!r} is no config key but an option of the command: {option}") from None
        if first["type"] == "extra_forbidden":
            raise UsageError(f"unknown config key {where!r}{known_keys(where, config_keys())}") from None
        raise UsageError(f"config {where}={first.get('input')!r}: {first['msg']}") from None


def known_keys(key: str, known: Sequence[str]) -> str:
    """The keys to type instead of ``key``: the nearest of ``known``, and its section's keys or all sections."""
    close = get_close_matches(key, known, 1)
    section = key.partition(".")[0]
    siblings = [other for other in known if other.startswith(f"{section}.")]
    shown = siblings or dict.fromkeys(
        f"{head}.*" if rest else head for head, _, rest in (k.partition(".") for k in known)
    )
    return f"{f' (did you mean {close[0]!r}?)' if close else ''}; known: {', '.join(shown)}"


def config_keys(model: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """Every dotted key that a config accepts."""
    keys: list[str] = []
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys += config_keys(kind, f"{prefix}{name}.")
        else:
            keys.append(f"{prefix}{name}")
    return keys


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        loaded = from_json(text, once=True) if path.suffix.lower() == ".json" else from_yaml(text)
    except FileNotFoundError:
        raise UsageError(f"config file {path} does not exist") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        said = one_line(str(error).replace('in "<unicode string>", ', "in "), 200)
        raise UsageError(f"config file {path} cannot be read: {said}") from None
    if not isinstance(loaded or {}, dict):
        raise UsageError(f"config file {path} holds a {type(loaded).__name__}; expected a mapping")
    return loaded or {}


def merge(into: dict[str, Any], other: dict[str, Any]) -> None:
    """Lay ``other`` over ``into``, key by key, in place; ``other`` is copied, and stays as it is."""
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = deepcopy(value)
