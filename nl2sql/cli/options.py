"""The options that several commands take: which model, where it runs, and how it is set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nl2sql.errors import UsageError

if TYPE_CHECKING:
    from nl2sql.runs.plan import Trust

ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        help="smollm2-135m, qwen2.5-coder-0.5b, -1.5b, gemma3-270m (embedded), a hub id, a folder, a .gguf file, "
        "scripted:FILE, or a server's model: http://HOST/v1#NAME, openai/NAME, anthropic/NAME, ollama/NAME, vllm/NAME, "
        "llamacpp/NAME. See: nl2sql models list",
    ),
]
ServerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        help="KEY=VALUE for a server's model; may be repeated: tokenizer, context_window, timeout_s, retries, "
        "price_in, price_out (per million tokens), thinking (tokens), body.FIELD (a further field of every request).",
    ),
]
CacheOption = Annotated[
    bool, typer.Option("--no-cache", help="Compute every model call; take none from the response cache, keep none.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:NUMBER, or mps.")]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        help="float32 (default on CPU: same text at any batch composition), bfloat16, or auto, the fast lane: bfloat16 "
        "where the processor has instructions for it."
    ),
]
EngineUrlOption = Annotated[
    str,
    typer.Option(
        help="Ask the databases on another engine, without TS: mysql://USER@HOST/{db_id}, duckdb:FOLDER/{db_id}.duckdb."
    ),
]
QuestionsOption = Annotated[
    Path | None,
    typer.Option(help="A file of questions (JSON list or JSON lines) in place of a benchmark: Spider-DK.json, ..."),
]
DatabasesOption = Annotated[
    Path | None, typer.Option(help="The folder of DB/DB.sqlite for --questions; default: one near the file.")
]
CorrectionsOption = Annotated[
    Path | None,
    typer.Option(
        help="Corrected golds and questions, a YAML or JSON file by id: scores as published and as corrected."
    ),
]
KnowledgeOption = Annotated[
    Path | None,
    typer.Option("--knowledge", help="What is known of the database: a Markdown file, or an OSI model in YAML."),
]
VerifiedOption = Annotated[
    Path | None,
    typer.Option("--verified", help="Verified queries, YAML: reused for the same question, else examples."),
]
AdapterOption = Annotated[
    str,
    typer.Option(help="LoRA adapter of a local model: auto (the packaged one), none, a name, or a PEFT folder."),
]
ConfigOption = Annotated[list[Path] | None, typer.Option("--config", help="YAML config file; may be repeated.")]
SetOption = Annotated[
    list[str] | None, typer.Option("-c", "--set", help="Config override, e.g. -c react.max_steps=4; may be repeated.")
]
ConstrainOption = Annotated[
    Literal["none", "action", "sql", "plain"] | None,
    typer.Option(
        help="Grammars for what the model writes: none (default), action (the loop's turns), sql (also SQL), plain "
        "(SQL in the one style that the adapter learns)."
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust", help="Open what the run's manifest names: its code, addresses and paths, with your account and keys."
    ),
]
FormatOption = Annotated[
    Literal["text", "markdown", "latex", "csv"] | None,
    typer.Option("--format", help="Print the table alone: text, markdown, latex (booktabs), or csv."),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Every metric and test, tokens by kind, what gates and repairs did.")
]
TypedUrlOption = Annotated[
    str, typer.Option("--engine-url", help="The run's own engine, typed again: its $PASSWORD is read only then.")
]
OWN = "or your own: FILE.py:function, module:function, a plugin."
ToolOption = Annotated[
    list[str] | None,
    typer.Option("--tool", help="A tool to add to the loop: FILE.py:function, module:function, or a plugin's name."),
]
GateOption = Annotated[list[str] | None, typer.Option("--gate", help="A gate to add to the loop, named likewise.")]


def knowledge_settings(knowledge: Path | None, verified: Path | None = None) -> list[str]:
    """``--knowledge`` and ``--verified`` as config overrides."""
    named = {"knowledge.file": knowledge, "knowledge.verified": verified}
    return [f"{key}={json.dumps(str(file))}" for key, file in named.items() if file is not None]


def trust_of(trust: bool, engine_url: str = "") -> Trust:
    """What ``--trust`` and ``--engine-url`` say of a run folder."""
    from nl2sql.runs.plan import RunSpec, Trust, absolute

    return Trust(trust, {"engine_url": absolute(RunSpec(engine_url=engine_url)).engine_url} if engine_url else {})


def check_added(controller: str, added: Sequence[str]) -> None:
    """Raises UsageError where tools or gates are to be added to a packaged controller that is no loop."""
    from nl2sql.agents.controllers import LOOPS, PACKAGED

    if added and controller in PACKAGED and controller not in LOOPS:
        raise UsageError(f"{added[0]} is for a loop, not for {controller!r}; add --controller react_plus")
