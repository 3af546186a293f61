"""``nl2sql eval``, a controller and its control over a benchmark, and ``nl2sql ablate``, the cells of a grid."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from nl2sql.cli import options as opt
from nl2sql.cli.options import EVERY, HelpAllOption
from nl2sql.errors import Nl2SqlError, UsageError, printable, typed
from nl2sql.interfaces import DEFAULT_MODEL

if TYPE_CHECKING:
    from nl2sql.runs.plan import Trust

AGAIN = ("benchmark", "engine_url", "controller", "model", "adapter", "tools", "gates")  # beside --resume: the same
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


class EvalCommand(TyperCommand):
    """The command whose help shows its options in groups, the rarer ones with ``--help-all`` alone."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the groups of ``EVAL_OPTIONS``."""
        records = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        for title, (usual, rarer) in EVAL_OPTIONS.items():
            names = usual.split() + rarer.split() * ctx.meta.get(EVERY, False) + ["help"] * (title == "Run")
            with formatter.section(title):
                formatter.write_dl([records[name] for name in names])


def evaluate_command(
    context: typer.Context,
    benchmark: Annotated[
        str,
        typer.Option(
            help="packaged, vizql, a name in NL2SQL_BENCHMARKS, a folder, hf:ORG/NAME[:split], or a plugin's name."
        ),
    ] = "packaged",
    questions: opt.Questions = None,
    databases: opt.Databases = None,
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
    engine_url: opt.EngineUrl = "",
    corrections: opt.Corrections = None,
    knowledge: opt.Knowledge = None,
    verified: Annotated[
        Path | None,
        typer.Option(help="Verified queries in place of a benchmark, YAML: each SQL is the gold of its question."),
    ] = None,
    db: Annotated[str | None, typer.Option("--db", help="The SQLite database of --verified.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="A seeded sample of so many questions or dialogues, by database.")
    ] = None,
    controller: opt.Controller = "react",
    model: opt.Model = DEFAULT_MODEL,
    device: opt.Device = "auto",
    dtype: opt.Dtype = None,
    adapter: opt.Adapter = "auto",
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
    server: opt.Server = None,
    no_cache: opt.Cache = False,
    config: opt.Config = None,
    set_: opt.Set = None,
    constrain: opt.Constrain = None,
    tool: opt.Tool = None,
    gate: opt.Gate = None,
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
    executor: opt.Executor = "local",
    address: opt.Address = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: a new one under runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder; nothing is done twice.")] = None,
    trust: opt.Trust = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print episodes, tokens and time; run nothing.")] = False,
    verbose: opt.Verbose = False,
    as_json: opt.Json = False,
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
      nl2sql eval --dialogues --history own --limit 10 -c session.resolve=rules
      nl2sql eval --model http://localhost:8000/v1#NAME --executor ray --address 10.0.0.1:6379
    """
    from nl2sql.runs import evaluate
    from nl2sql.runs.plan import Trust

    progress = not quiet
    if resume is not None:
        said = Trust(trust, _typed_again(context))
        with redirect_stdout(sys.stderr), opt.open_executor(executor, address) as worker:
            report = evaluate.resume(resume, progress=progress, executor=worker, trust=said).report
    elif trust:
        raise UsageError("--trust is for the folder of --resume; leave it out")
    else:
        if limit is not None and limit < 1:
            raise UsageError(f"--limit {limit}: expected 1 or more")
        opt.check_added(controller, [*(tool or ()), *(gate or ())])
        from nl2sql.agents.controllers import get_controller, timeless
        from nl2sql.benchmarks.load import load_benchmark, named, named_verified
        from nl2sql.benchmarks.packaged import PACKAGED_DIALOGUES
        from nl2sql.config import load_config
        from nl2sql.runs.plan import absolute, default_split

        native = None if turns in (None, "auto") else turns == "native"
        own = {"eval.replicas": replicas, "constrain": constrain, "react.native_tools": native}
        overrides = opt.overrides(set_, {**own, "knowledge.file": knowledge})
        base = {**timeless(get_controller(controller).preset), **({"eval": {"replicas": 0}} if engine_url else {})}
        settings = load_config(config or (), overrides, base=base)
        if dialogues and not _was_given(context, "benchmark"):
            benchmark = PACKAGED_DIALOGUES
        benchmark = named(benchmark, questions, databases)
        if verified is not None:
            benchmark = named_verified(verified, db, engine_url)
            for question in load_benchmark(benchmark).questions:
                if why := question.meta.get("stale"):
                    print(printable(f"-- stale, left out: {question.text!r}: {why}"), file=sys.stderr)
        elif db is not None:
            raise UsageError("--db goes with --verified FILE.yaml; a benchmark names its own databases")
        asked: dict[str, Any] = {"benchmark": benchmark, "split": default_split(benchmark, split)}
        asked |= {"history": history or ("gold" if dialogues else ""), "corrections": str(corrections or "")}
        asked |= {"seeds": _seeds(seeds), "turns": "auto" if turns == "auto" else ""}
        plan = absolute(opt.plan_of(context.params, **asked))
        said = Trust(True, {"engine_url": plan.engine_url})
        if dry_run:
            from nl2sql.runs.evaluate import estimate

            print("loading the model and timing one call ...", file=sys.stderr)
            costs = estimate(plan, settings)
            print(json.dumps(costs, indent=2) if as_json else "\n".join(f"{k}: {v}" for k, v in costs.items()))
            return
        # what a loop prints is no report
        with redirect_stdout(sys.stderr), opt.open_executor(executor, address) as worker:
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
        print(f"\nrun folder: {folder}")
        print(f"report:     {_page(folder, report['n'], progress, said)}")
        print(f"next:       {_next(folder)}")
    if set(report["counts"]["finish"]) == {"error"}:
        raise typer.Exit(1)  # every single episode failed: nothing was measured


def _both_ways(folder: Path) -> dict[str, Any]:
    """The run's EX as published beside that as corrected (``eval.corrected.Overlay``)."""
    from nl2sql.benchmarks import load_benchmark, scorable
    from nl2sql.benchmarks.check import read_corrections, score_corrected
    from nl2sql.eval import score_many
    from nl2sql.eval.comparison import overlays
    from nl2sql.eval.predictions import read_predictions
    from nl2sql.runs.plan import read_plan

    plan, config = read_plan(folder)
    loaded = load_benchmark(plan.benchmark, split=plan.split, engine_url=plan.engine_url)
    given, _ = read_predictions(folder, loaded.questions)
    asked = [question for question in loaded.questions if question.id in given]
    how = config.eval
    options: dict[str, Any] = {"rule": how.rule, "timeout_s": how.timeout_s, "max_rows": how.max_rows}
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
    from nl2sql.runs.plan import absolute

    given = {opt.FIELDS.get(name, name): name for name in context.params if _was_given(context, name)}
    allowed = {"resume", "trust", "executor", "address", "verbose", "as_json", "quiet", *AGAIN}
    if extra := [name for field, name in given.items() if field not in allowed]:
        flags = ", ".join("--" + name.strip("_").replace("_", "-") for name in extra)
        raise UsageError(f"--resume takes its settings from the run's manifest; leave out {flags}")
    again = {name: context.params[name] for field, name in given.items() if field in AGAIN}
    made = absolute(opt.plan_of(again))
    return {field: getattr(made, field) for field in given if field in AGAIN}


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


def ablate_command(
    grid: Annotated[Path, typer.Argument(help="A YAML file of base, axes and cells (docs/runs.md).")],
    out: Annotated[Path | None, typer.Option(help="Folder of the cells; default: runs/<name of the grid>.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("-c", "--set", help="Setting over the grid's base, e.g. -c eval.rule=spider; may be repeated."),
    ] = None,
    metric: Annotated[str | None, typer.Option(help="What the table compares; default EX. E.g. VA.")] = None,
    executor: opt.Executor = "local",
    address: opt.Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells; run nothing.")] = False,
    as_json: opt.Json = False,
    format_: opt.Format = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Run every cell of a grid over the same questions, and compare each with the base.

    Each cell is an ordinary run in its own folder under --out. The same command again continues an interrupted
    ablation; what is finished is not done again.

    \b
    Examples:
      nl2sql ablate scripts/ablation.yaml --dry-run
      nl2sql ablate scripts/ablation.yaml --out runs/ablation
      nl2sql ablate scripts/ablation.yaml --out runs/ablation --format latex > table.tex
      nl2sql report runs/ablation --out ablation.html
    """
    from nl2sql.agents.record import json_text
    from nl2sql.runs.ablation import read_grid

    cells = read_grid(grid, set_ or ())
    folder = out or Path("runs") / grid.stem
    if dry_run:
        listed = [{"name": cell.name, "changed": dict(cell.changed)} for cell in cells]
        lines = [f"{cell.name:40} {json_text(cell.changed)}" for cell in cells]
        print(json_text(listed, indent=2) if as_json else "\n".join([*lines, f"{len(cells)} cells in {folder}"]))
        return
    from nl2sql.eval.tables import FORMATS
    from nl2sql.runs.ablation import ablate, ablation_rows, ablation_text, check_metric

    if metric is not None:
        check_metric(cells, metric)
    overrides = [part for item in set_ or () for part in ("-c", item)]
    command = shlex.join(["nl2sql", "ablate", str(grid), "--out", str(folder), *overrides])
    with redirect_stdout(sys.stderr), opt.open_executor(executor, address) as worker:  # what a loop prints is no table
        done = ablate(cells, folder, command=command, progress=not quiet, executor=worker)
    if as_json:
        print(json_text(done.to_dict(metric), indent=2))
    elif format_:
        print(FORMATS[format_](ablation_rows(done.to_dict(metric))))
    else:
        print(ablation_text(done, metric))
        print(f"\nrun folders: {folder}/*; traces: nl2sql report {typed(folder)} --out ablation.html")
