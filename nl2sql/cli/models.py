"""``nl2sql models``: which models there are, fetching them, what a spec names, and does everything work here?"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nl2sql.cli import options as opt
from nl2sql.cli.options import Group, coloured
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.interfaces import DEFAULT_MODEL
from nl2sql.machine import cache_dir, cores, free_bytes, from_json, install_command

if TYPE_CHECKING:
    from nl2sql.models.doctor import Check
    from nl2sql.models.embedded import EmbeddedModel

app = typer.Typer(cls=Group)

Finding = tuple[
    Literal["ok", "warn", "fail"], str
]  # of a check: works, works with a drawback, fails; and what was seen
MARKS = {"ok": ("ok  ", "green"), "warn": ("note", "yellow"), "fail": ("FAIL", "red")}
NEEDED_BYTES = 2 * 10**9  # free disk, or memory, for a small model, its conversion and replicas
OPTIONAL = {
    **{"torch": "local", "pandas": "data", "llguidance": "grammar", "jupyterlab": "notebooks"},
    **{"duckdb": "engines", "mcp": "mcp", "langgraph": "graph"},
}


@app.command("list")
def list_models(as_json: opt.Json = False) -> None:
    """The embedded models, and which of them the cache holds.

    Example: nl2sql models list --json
    """
    from nl2sql.eval.tables import records_text
    from nl2sql.models.embedded import embedded_models

    rows = [_facts(model) for model in embedded_models().values()]
    if as_json:
        _print_json({"default": DEFAULT_MODEL, "models": rows})
        return
    table = [["name", "params", "download", "on disk", "cached", "license", "adapter", "sha256"]]
    for row in rows:
        sizes = [f"{row[key] / 1e6:.0f} MB" for key in ("download_bytes", "disk_bytes")]
        cached = "yes" if row["cached"] else "no"
        table.append(
            [row["name"], row["parameters"], *sizes, cached, row["license"], row["adapter"], row["sha256"][:12]]
        )
    print("\n".join(records_text(table)))
    print(
        f"\nDefault: {DEFAULT_MODEL}. --model also takes: a folder, a .gguf file, a hub id org/name, "
        "scripted:FILE,\nand a server's model: http://HOST/v1#NAME, openai/NAME, anthropic/NAME, ollama/NAME, "
        "vllm/NAME, llamacpp/NAME."
    )


@app.command("pull")
def pull_command(
    name: Annotated[str, typer.Argument(help="An embedded model's name (see `nl2sql models list`).")],
    force: Annotated[bool, typer.Option("--force", help="Make it anew even if the cache holds it.")] = False,
    as_json: opt.Json = False,
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
    server: opt.Server = None,
    as_json: opt.Json = False,
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
    from nl2sql.models.load import resolve_spec

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
    if source.kind == "plugin":
        return facts | {"note": "made by an installed package when first used; nl2sql new plugins lists it"}
    if source.kind not in ("folder", "gguf"):
        return facts | {"note": "a Hugging Face hub id; downloaded by transformers when first used"}
    from nl2sql.models.weight_files import weights_files, weights_revision

    path = Path(source.value)
    files = [path] if path.is_file() else weights_files(path)
    if not files:
        raise UsageError(
            f"folder {source.value!r} has no weights (*.safetensors); expected a transformers model folder"
        )
    facts |= {"disk_bytes": sum(file.stat().st_size for file in files), "revision": weights_revision(files)}
    config = path / "config.json"
    if config.is_file():
        try:
            loaded = from_json(config.read_text(encoding="utf-8"))
        except ValueError:
            raise UsageError(f"{config} is not JSON; expected a transformers model folder") from None
        shown = ("model_type", "max_position_embeddings", "vocab_size")
        facts |= {key: loaded[key] for key in shown if key in loaded}
    return facts


def _facts(model: EmbeddedModel) -> dict[str, Any]:
    same = ("name", "title", "parameters", "license", "context_window", "chat_template", "adapter")
    facts = {name: getattr(model, name) for name in (*same, "download_bytes", "disk_bytes", "engine")}
    cached = {"cached": model.cached, "folder": str(model.folder) if model.cached else None}
    packages = [wheel.requirement for wheel in model.wheels]
    return {**facts, "sha256": model.gguf_sha256, "packages": packages, **cached}


def _print_json(data: dict[str, Any]) -> None:
    print(json.dumps(data, indent=2, ensure_ascii=False))


@app.command()
def doctor(
    model: Annotated[str, typer.Option("--model", "-m", help="What to check: as for nl2sql eval.")] = DEFAULT_MODEL,
    device: opt.Device = "auto",
    dtype: opt.Dtype = None,
    as_json: opt.Json = False,
) -> None:
    """Check this machine and a local model: cache folder, sandbox, reused caches, batches, grammars, speed.

    Exit code 1 when a check fails; notes do not fail it.

    \b
    Examples:
      nl2sql models doctor
      nl2sql models doctor --model ./my-model --dtype bfloat16 --json
    """
    from nl2sql.models.doctor import check_model
    from nl2sql.models.load import resolve_spec

    source = resolve_spec(model)
    results: list[Check] = []

    def show(checks: Iterator[Check]) -> None:
        for check in checks:
            results.append(check)
            if not as_json:
                print(f"{coloured(*MARKS[check.status], sys.stdout)}  {check.name:<24} {check.detail}", flush=True)

    show(_machine_checks())
    if source.kind in ("scripted", "http", "plugin"):
        if not as_json:
            print(f"note  {'model':<24} {model} is no model of ours on this machine: not checked")
    else:
        show(check_model(source, device=device, dtype=dtype))
    failed = sum(check.status == "fail" for check in results)
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [check.to_dict() for check in results]}, indent=1))
    raise typer.Exit(1 if failed else 0)


def _machine_checks() -> Iterator[Check]:
    """Everything that needs no model; yields each finding as it is made."""
    from nl2sql.models.doctor import Check

    looks = {"versions": _versions, "machine": _memory, "cache folder": _cache, "sandbox": _sandbox}
    for name, look in (looks | {"benchmarks": _benchmarks, "optional parts": _parts}).items():
        yield Check(name, *look())


def _versions() -> Finding:
    versions = ", ".join(f"{name} {_version(name)}" for name in ("torch", "transformers", "sqlglot"))
    return "ok", f"Python {platform.python_version()}, {versions}, SQLite {sqlite3.sqlite_version}"


def _parts() -> Finding:
    missing = [extra for module, extra in OPTIONAL.items() if importlib.util.find_spec(module) is None]
    hint = f"not installed: {', '.join(missing)} ({install_command(*missing)})"
    return ("warn", hint) if missing else ("ok", "all installed")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _memory() -> Finding:
    free = free_bytes()
    if free is None:
        return "ok", f"{cores()} cores"
    return _room(free, f"{cores()} cores", "use a smaller --batch-size")


def _cache() -> Finding:
    try:
        folder = cache_dir()
        with tempfile.NamedTemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except (Nl2SqlError, OSError) as error:
        return "fail", f"{error}; set NL2SQL_CACHE to a folder that can be written"
    return _room(free, str(folder), "set NL2SQL_CACHE to a larger disk")


def _room(free: int, where: str, hint: str) -> Finding:
    status = f"{where}, {free / 1e9:.1f} GB free"
    return ("warn", f"{status}: little; {hint}") if free < NEEDED_BYTES else ("ok", status)


def _sandbox() -> Finding:
    """A query runs, a write is refused, and the file is what it was."""
    from nl2sql.databases.sqlite.database import QueryPool

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.sqlite"
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
        before = path.read_bytes()
        with closing(QueryPool(workers=1)) as pool:
            read = pool.run(path, "SELECT a FROM t", timeout_s=10, max_rows=5)
            write = pool.run(path, "DELETE FROM t", timeout_s=10, max_rows=5)
        if read.success and not write.success and path.read_bytes() == before:
            return "ok", "a query runs in its worker process, a write is refused"
        return "fail", f"query: {read.error or 'ok'}; write: {write.error or 'was not refused'}"


def _benchmarks() -> Finding:
    root = os.environ.get("NL2SQL_BENCHMARKS")
    if not root:
        return "ok", "packaged (set NL2SQL_BENCHMARKS to a folder of others)"
    if not Path(root).is_dir():
        return "fail", f"NL2SQL_BENCHMARKS={root} is not a folder"
    names = sorted(entry.name for entry in Path(root).iterdir() if entry.is_dir())
    return "ok", f"packaged, and in {root}: {', '.join(names) or 'none'}"[:200]
