"""``nl2sql models``: which models there are, fetching the embedded ones, what a spec names."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nl2sql.cli.group import Group
from nl2sql.cli.options import ServerOption
from nl2sql.errors import UsageError

if TYPE_CHECKING:
    from nl2sql.models.embedded import EmbeddedModel

app = typer.Typer(
    cls=Group,
    help="List, fetch and describe models.\n\nExample: nl2sql models pull smollm2-135m",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command("list")
def list_models(as_json: Json = False) -> None:
    """The embedded models, and which of them the cache holds.

    Example: nl2sql models list --json
    """
    from nl2sql.interfaces import DEFAULT_MODEL
    from nl2sql.models.embedded import embedded_models

    rows = [_facts(model) for model in embedded_models().values()]
    if as_json:
        _print_json({"default": DEFAULT_MODEL, "models": rows})
        return
    head = f"{'name':<14} {'params':>7} {'download':>9} {'on disk':>8}  {'cached':<7} {'license':<19}"
    print(f"{head} {'adapter':<17} sha256")
    for row in rows:
        print(
            f"{row['name']:<14} {row['parameters']:>7} {_mb(row['download_bytes']):>9} {_mb(row['disk_bytes']):>8}  "
            f"{'yes' if row['cached'] else 'no':<7} {row['license']:<19} {row['adapter']:<17} "
            f"{row['sha256'][:12]}"
        )
    print(
        f"\nDefault: {DEFAULT_MODEL}. --model also takes: a folder, a .gguf file, a hub id org/name, "
        "scripted:FILE,\nand a server's model: http://HOST/v1#NAME, openai/NAME, anthropic/NAME, ollama/NAME, "
        "vllm/NAME, llamacpp/NAME."
    )


@app.command("pull")
def pull_command(
    name: Annotated[str, typer.Argument(help="An embedded model's name (see `nl2sql models list`).")],
    force: Annotated[bool, typer.Option("--force", help="Make it anew even if the cache holds it.")] = False,
    as_json: Json = False,
) -> None:
    """Fetch an embedded model into the cache (NL2SQL_CACHE), checked by SHA-256; nothing to do if it is there.

    Example: nl2sql models pull smollm2-135m
    """
    from nl2sql.models.embedded import SOURCE, embedded_model, room
    from nl2sql.models.embedded import pull as pull_model

    model = embedded_model(name)
    was_cached = model.cached and not force
    if model.notice:
        print(model.notice, file=sys.stderr)
    if not was_cached:
        print(f"{name}: {room(model)}", file=sys.stderr)
    folder = pull_model(name, force=force)
    if as_json:
        _print_json({**_facts(model), "was_cached": was_cached})
    else:
        print(f"{name}: {'already in' if was_cached else 'ready in'} {folder} (license: {model.license})")
        if (source := folder / SOURCE).is_file():  # older caches have none
            print(source.read_text().strip())


@app.command()
def info(
    spec: Annotated[
        str,
        typer.Argument(help="An embedded name, folder, .gguf file, hub id, address, PROVIDER/NAME or scripted:FILE."),
    ],
    server: ServerOption = None,
    as_json: Json = False,
) -> None:
    """What a model spec names, without loading the weights; of a server, what it was found to do.

    Example: nl2sql models info http://localhost:8000/v1#NAME --json
    """
    facts = _describe(spec, tuple(server or ()))
    if as_json:
        _print_json(facts)
        return
    for key, value in facts.items():
        print(f"{key:<16} {value}")


def _describe(spec: str, server: tuple[str, ...]) -> dict[str, Any]:
    from nl2sql.models.embedded import embedded_model
    from nl2sql.models.spec import resolve_spec

    source = resolve_spec(spec)
    if server and source.kind != "http":
        raise UsageError(f"--server {server[0]} goes with a server's model, not with {spec!r}; leave it out")
    if source.kind == "embedded":
        return {"kind": "embedded", **_facts(embedded_model(source.value))}
    if source.kind == "scripted":
        from nl2sql.models.scripted import ScriptedModel

        return {"kind": "scripted", **ScriptedModel.from_file(source.value).describe()}
    if source.kind == "http":
        from nl2sql.models.http.model import HttpModel
        from nl2sql.models.http.providers import ServerOptions

        model = HttpModel(source.value, ServerOptions.parse(server))
        model.close()
        return {"kind": "http", **model.describe()}
    facts: dict[str, Any] = {"kind": source.kind, "name": source.value}
    if source.kind in ("folder", "gguf"):
        facts.update(_files(source.value))
    elif source.kind == "plugin":
        facts["note"] = "made by an installed package when first used; nl2sql new plugins lists it"
    else:
        facts["note"] = "a Hugging Face hub id; downloaded by transformers when first used"
    return facts


def _files(value: str) -> dict[str, Any]:
    from pathlib import Path

    from nl2sql.models.weight_files import weights_files, weights_revision

    path = Path(value)
    files = [path] if path.is_file() else weights_files(path)
    if not files:
        raise UsageError(f"folder {value!r} has no weights (*.safetensors); expected a transformers model folder")
    facts: dict[str, Any] = {
        "disk_bytes": sum(file.stat().st_size for file in files),
        "revision": weights_revision(files),
    }
    from nl2sql.machine import from_json

    config = path / "config.json"
    if config.is_file():
        try:
            loaded = from_json(config.read_text(encoding="utf-8"))
        except ValueError:
            raise UsageError(f"{config} is not JSON; expected a transformers model folder") from None
        for key in ("model_type", "max_position_embeddings", "vocab_size"):
            if key in loaded:
                facts[key] = loaded[key]
    return facts


def _facts(model: EmbeddedModel) -> dict[str, Any]:
    cached = model.cached
    return {
        "name": model.name,
        "title": model.title,
        "parameters": model.parameters,
        "license": model.license,
        "context_window": model.context_window,
        "chat_template": model.chat_template,
        "adapter": model.adapter,
        "download_bytes": model.download_bytes,
        "disk_bytes": model.disk_bytes,
        "engine": model.engine,
        "sha256": model.gguf_sha256,
        "packages": [wheel.requirement for wheel in model.wheels],
        "cached": cached,
        "folder": str(model.folder) if cached else None,
    }


def _mb(count: int) -> str:
    return f"{count / 1e6:.0f} MB"


def _print_json(data: dict[str, Any]) -> None:
    print(json.dumps(data, indent=2, ensure_ascii=False))
