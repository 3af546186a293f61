"""``nl2sql eval``: a controller and its control over a benchmark."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nl2sql.cli.executor import AddressOption, ExecutorOption, open_executor
from nl2sql.cli.group import HelpAllOption, grouped
from nl2sql.cli.options import (
    OWN,
    AdapterOption,
    CacheOption,
    ConfigOption,
    ConstrainOption,
    CorrectionsOption,
    DatabasesOption,
    DeviceOption,
    DtypeOption,
    EngineUrlOption,
    GateOption,
    KnowledgeOption,
    ModelOption,
    QuestionsOption,
    ServerOption,
    SetOption,
    ToolOption,
    TrustOption,
    VerboseOption,
    check_added,
    knowledge_settings,
)
from nl2sql.errors import Nl2SqlError, UsageError, printable, typed
from nl2sql.interfaces import DEFAULT_MODEL

if TYPE_CHECKING:
    from nl2sql.runs.plan import Trust

AGAIN = ("benchmark", "engine_url", "controller", "model", "adapter", "tools", "gates")  # beside --resume: the same
NAMES = {"tool": "tools", "gate": "gates"}  # option -> field of a plan
MOST_WITH_GOLDS = 300  # a run of more questions gets a page without the rows of the golds, which have to be executed

EVAL_OPTIONS = {  # title of the help -> what --help shows, and what --help-all shows beside it
    "Questions": (
        "benchmark split limit questions databases verified db",
        "dialogues history corrections engine_url sample_seed",
    ),
    "Agent": ("controller knowledge tool gate config set_", "turns constrain"),
    "Model": ("model adapter dtype batch_size server", "device engine no_cache"),
    "Scoring": ("replicas seeds control", "equal_tokens"),
    "Run": ("out resume dry_run verbose as_json quiet help_all", "executor address trust"),
}
EvalCommand = grouped(EVAL_OPTIONS)


def evaluate_command(
    context: typer.Context,
    benchmark: Annotated[
        str,
        typer.Option(
            help="packaged, vizql, a name in NL2SQL_BENCHMARKS, a folder, hf:ORG/NAME[:split], or a plugin's name."
        ),
    ] = "packaged",
    questions: QuestionsOption = None,
    databases: DatabasesOption = None,
    dialogues: Annotated[
        bool, typer.Option("--dialogues", help="Ask conversations: packaged-dialogues, or those of --benchmark.")
    ] = False,
    history: Annotated[
        Literal["gold", "own"] | None,
        typer.Option(help="What a turn follows: the golds (default), or what was answered in its own dialogue."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="A split of the benchmark, or all. packaged: quick (default), dev, test.")
    ] = None,
    engine_url: EngineUrlOption = "",
    corrections: CorrectionsOption = None,
    knowledge: KnowledgeOption = None,
    verified: Annotated[
        Path | None,
        typer.Option(help="Verified queries in place of a benchmark, YAML: each SQL is the gold of its question."),
    ] = None,
    db: Annotated[str | None, typer.Option("--db", help="The SQLite database of --verified.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="A seeded sample of so many questions or dialogues, by database.")
    ] = None,
    controller: Annotated[
        str,
        typer.Option(help=f"react, react_plus, best, reflect, candidates, single_shot, vizql, {OWN}"),
    ] = "react",
    model: ModelOption = DEFAULT_MODEL,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    adapter: AdapterOption = "auto",
    batch_size: Annotated[
        int, typer.Option("--batch-size", "--concurrency", help="Episodes (or requests to a server) at once.")
    ] = 32,
    engine: Annotated[
        Literal["auto", "llamacpp", "slots"],
        typer.Option(
            help="What runs a local model: llama.cpp (auto for .gguf files and the models that come as one), or our "
            "slots on torch (auto for others)."
        ),
    ] = "auto",
    server: ServerOption = None,
    no_cache: CacheOption = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    constrain: ConstrainOption = None,
    tool: ToolOption = None,
    gate: GateOption = None,
    turns: Annotated[
        Literal["text", "native", "auto"] | None,
        typer.Option(
            help="How a loop asks for actions: text (Thought/Action lines), native (a chat model's own tool calls), or "
            "auto: tried on ten questions."
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Repeat with these seeds, e.g. 1,2,3.")] = None,
    sample_seed: Annotated[int, typer.Option(help="Seed of the sample that --limit draws.")] = 0,
    replicas: Annotated[int | None, typer.Option(help="Perturbed replicas for TS; 0 leaves TS out.")] = None,
    control: Annotated[bool, typer.Option("--control/--no-control", help="Run single_shot beside it.")] = True,
    equal_tokens: Annotated[
        bool, typer.Option("--equal-tokens", help="Also single_shot with k samples at the loop's token budget.")
    ] = False,
    executor: ExecutorOption = "local",
    address: AddressOption = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: a new one under runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder; nothing is done twice.")] = None,
    trust: TrustOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print episodes, tokens and time; run nothing.")] = False,
    verbose: VerboseOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")] = False,
    help_all: HelpAllOption = False,
) -> None:
    """Run a controller and its single-shot control over a benchmark, and score both.

    \b
    Examples:
      nl2sql eval --limit 8
      nl2sql eval --benchmark spider --split holdout --limit 40 --out runs/spider
      nl2sql eval --controller react_plus -c react.max_steps=6 --dtype bfloat16
      nl2sql eval --model http://localhost:8000/v1#Qwen/Qwen2.5-7B-Instruct --server price_in=0.1
      nl2sql eval --resume runs/spider
      nl2sql eval --db shop.sqlite --verified shop_queries.yaml
      nl2sql eval --benchmark packaged --split dev --dry-run
      nl2sql eval --dialogues --history own --limit 10 -c session.resolve=edit
      nl2sql eval --model http://localhost:8000/v1#NAME --executor ray --address 10.0.0.1:6379
    """
    from nl2sql.runs import evaluate
    from nl2sql.runs.plan import Trust

    progress = not quiet
    if resume is not None:
        said = Trust(trust, _typed_again(context))
        with redirect_stdout(sys.stderr), open_executor(executor, address) as worker:
            report = evaluate.resume(resume, progress=progress, executor=worker, trust=said).report
    elif trust:
        raise UsageError("--trust is for the folder of --resume; leave it out")
    else:
        if limit is not None and limit < 1:
            raise UsageError(f"--limit {limit}: expected 1 or more")
        check_added(controller, [*(tool or ()), *(gate or ())])
        from nl2sql.agents.controllers import get_controller, timeless
        from nl2sql.benchmarks.dialogues import PACKAGED_DIALOGUES
        from nl2sql.benchmarks.load import named
        from nl2sql.config import load_config
        from nl2sql.runs.plan import RunSpec, absolute, default_split

        native = None if turns in (None, "auto") else str(turns == "native").lower()
        own = {"eval.replicas": replicas, "constrain": constrain, "react.native_tools": native}
        overrides = [*(set_ or ()), *(f"{key}={value}" for key, value in own.items() if value is not None)]
        overrides += knowledge_settings(knowledge)
        base = {**timeless(get_controller(controller).preset), **({"eval": {"replicas": 0}} if engine_url else {})}
        settings = load_config(config or (), overrides, base=base)
        if dialogues and not _was_given(context, "benchmark"):
            benchmark = PACKAGED_DIALOGUES
        benchmark = named(benchmark, questions, databases)
        if verified is not None:
            benchmark = _of_verified(verified, db, engine_url)
        elif db is not None:
            raise UsageError("--db goes with --verified FILE.yaml; a benchmark names its own databases")
        plan = RunSpec(
            benchmark=benchmark,
            split=default_split(benchmark, split),
            engine_url=engine_url,
            corrections=str(corrections or ""),
            history=history or ("gold" if dialogues else ""),
            limit=limit,
            sample_seed=sample_seed,
            controller=controller,
            model=model,
            device=device,
            dtype=dtype,
            batch_size=batch_size,
            engine=engine,
            adapter=adapter,
            server=tuple(server or ()),
            cache=not no_cache,
            control=control,
            equal_tokens=equal_tokens,
            seeds=_seeds(seeds),
            turns="auto" if turns == "auto" else "",
            tools=tuple(tool or ()),
            gates=tuple(gate or ()),
        )
        plan = absolute(plan)
        said = Trust(True, {"engine_url": plan.engine_url})
        if dry_run:
            from nl2sql.runs.progress import estimate

            print("loading the model and timing one call ...", file=sys.stderr)
            costs = estimate(plan, settings)
            print(json.dumps(costs, indent=2) if as_json else "\n".join(f"{k}: {v}" for k, v in costs.items()))
            return
        with redirect_stdout(sys.stderr), open_executor(executor, address) as worker:  # what a loop prints is no report
            report = evaluate.start(plan, settings, out=out, progress=progress, executor=worker).report
    folder = Path(report["run"])
    both = _both_ways(folder) if corrections is not None and (folder / "predictions.jsonl").is_file() else {}
    if as_json:
        from nl2sql.agents.record import json_text

        shown = {k: v for k, v in report.items() if k != "items"}
        print(json_text({**shown, "corrections": both} if both else shown, indent=2))
    else:
        from nl2sql.eval.stats import percent
        from nl2sql.runs.summary import summary_text

        print(printable(summary_text(report, verbose=verbose)))
        if both:
            changed = ", ".join(f"{len(both[kind])} {kind.replace('_', ' ')}" for kind in ("to_right", "to_wrong"))
            print(f"as published: EX {percent(both['published'])} of {both['published']['n']}; corrected: {changed}")
        print(f"\nrun folder: {report['run']}")
        print(f"report:     {_page(Path(report['run']), report['n'], progress, said)}")
        print(f"next:       {_next(Path(report['run']))}")
    if set(report["counts"]["finish"]) == {"error"}:
        raise typer.Exit(1)  # every single episode failed: nothing was measured


def _of_verified(verified: Path, db: str | None, engine_url: str) -> str:
    """The name of a file of verified queries as a benchmark; those that are stale are said."""
    from nl2sql.benchmarks.load import load_benchmark, named_verified

    name = named_verified(verified, db, engine_url)
    for question in load_benchmark(name).questions:
        if why := question.meta.get("stale"):
            print(printable(f"-- stale, left out: {question.text!r}: {why}"), file=sys.stderr)
    return name


def _both_ways(folder: Path) -> dict[str, Any]:
    """The run's EX as published beside that as corrected (``eval.corrected.Overlay``)."""
    from dataclasses import asdict

    from nl2sql.benchmarks import load_benchmark, scorable
    from nl2sql.benchmarks.corrections import read_corrections, score_corrected
    from nl2sql.eval import score_many
    from nl2sql.eval.comparison import overlays
    from nl2sql.eval.predictions import read_predictions
    from nl2sql.runs.plan import read_plan

    plan, config = read_plan(folder)
    loaded = load_benchmark(plan.benchmark, split=plan.split, engine_url=plan.engine_url)
    given, _ = read_predictions(folder, loaded.questions)
    asked = [question for question in loaded.questions if question.id in given]
    options: dict[str, Any] = {
        "rule": config.eval.rule,
        "timeout_s": config.eval.timeout_s,
        "max_rows": config.eval.max_rows,
    }
    kept = [question for question in asked if scorable(question)]
    answers = {"run": {question.id: given[question.id] for question in kept}}
    published = score_many(loaded, kept, answers, replicas=0, **options)
    told = read_corrections(plan.corrections)
    (found,) = overlays(published, score_corrected(loaded, asked, told, {"run": given}, published, **options))
    return asdict(found)


def _page(folder: Path, questions: int, progress: bool, trust: Trust) -> str:
    """The report of a run, written into its folder, or why it could not be and the command that writes it."""
    from nl2sql.runs.folder import own_file
    from nl2sql.runs.report import write_report

    try:
        golds = questions <= MOST_WITH_GOLDS
        page = own_file(folder, "report.html")
        return str(write_report([folder], page, golds=golds, progress=progress, force=True, trust=trust))
    except Nl2SqlError as error:
        return f"not written ({error}); nl2sql report {typed(folder)} --out report.html"


def _next(folder: Path) -> str:
    """The command that a run is most looked at with: beside its control, else what of it failed."""
    from nl2sql.runs.plan import read_plan

    plan, _ = read_plan(folder)
    if not (folder / "control").is_dir() or plan.engine_url or "benchmark" in plan.objects:
        return shlex.join(["nl2sql", "runs", "failures", str(folder), "--out", "failures.csv"])
    return shlex.join(["nl2sql", "runs", "compare", str(folder), str(folder / "control")])


def _typed_again(context: typer.Context) -> dict[str, Any]:
    """The settings of a resumed run that were typed beside it. Raises UsageError for others than may be."""
    from nl2sql.runs.plan import RunSpec, absolute

    given = {NAMES.get(name, name): name for name in context.params if _was_given(context, name)}
    allowed = {"resume", "trust", "executor", "address", "verbose", "as_json", "quiet", *AGAIN}
    if extra := [name for field, name in given.items() if field not in allowed]:
        flags = ", ".join("--" + name.strip("_").replace("_", "-") for name in extra)
        raise UsageError(f"--resume takes its settings from the run's manifest; leave out {flags}")
    typed_now: dict[str, Any] = {field: context.params[name] for field, name in given.items() if field in AGAIN}
    typed_now |= {field: tuple(typed_now[field]) for field in NAMES.values() if field in typed_now}
    made = absolute(RunSpec(**typed_now))
    return {field: getattr(made, field) for field in typed_now}


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _seeds(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--seeds {text!r}: expected whole numbers separated by commas, e.g. 1,2,3") from None
