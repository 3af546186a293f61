"""What decides a run: its plan, and what the plan names, opened. A run folder's manifest is the plan's record.

Opening a benchmark needs no model; ``open_model`` is the only function that loads a model library. The loop, the config
and the scoring (sqlglot, pydantic) are imported by the functions that need them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from nl2sql.agents import prompts
from nl2sql.benchmarks import draw_sample, left_out_counts, load_benchmark, scorable
from nl2sql.benchmarks.dialogues import PACKAGED_DIALOGUES, behind_left_out, draw_dialogues, has_dialogues
from nl2sql.benchmarks.load import check_databases, from_anywhere
from nl2sql.benchmarks.structured import VIZQL
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.interfaces import DEFAULT_MODEL, Benchmark, Model, Question, content_key, question_key
from nl2sql.machine import as_path
from nl2sql.runs.folder import read_manifest

if TYPE_CHECKING:
    from nl2sql.agents.controllers import NamedController
    from nl2sql.config import Config

MODEL_OPTIONS = ("model", "adapter", "device", "dtype", "batch_size", "engine", "server", "cache")  # of a plan
UNREADABLE = "unreadable: "  # in place of a database's fingerprint, before the reason


@dataclass(frozen=True)
class Plan:
    """All that decides a run, as the manifest keeps it; enough to resume it.

    ``objects`` names what was given as a Python object (benchmark, model, controller) and must be given again.
    """

    benchmark: str = "packaged"
    split: str | None = None
    limit: int | None = None
    sample_seed: int = 0
    controller: str = "react"
    model: str = DEFAULT_MODEL
    device: str = "auto"
    dtype: str | None = None
    batch_size: int = 32
    engine: str = "auto"
    adapter: str = "auto"
    server: tuple[str, ...] = ()  # KEY=VALUE options of an HTTP model
    cache: bool = True  # answer repeated calls of a model opened here from the response cache
    control: bool = True
    equal_tokens: bool = False
    seeds: tuple[int, ...] = ()
    objects: tuple[str, ...] = ()
    engine_url: str = ""  # the benchmark's databases on another engine than SQLite
    history: str = ""  # of turns of dialogues: gold or own (runs.dialogues); not asked for: gold
    tools: tuple[str, ...] = ()  # added to those of the loop: config.plugins.FORMS
    gates: tuple[str, ...] = ()
    corrections: str = ""  # a file that is laid over the benchmark (benchmarks.corrections)
    turns: str = ""  # auto: the form of the loop's turns was found by trying; the config holds what came of it


def plan_record(plan: Plan) -> dict[str, Any]:
    """The plan as a manifest keeps it; it says nothing of what came later and was not asked for."""
    later = ("history", "turns", "tools", "gates", "corrections")
    return {key: value for key, value in asdict(plan).items() if key not in later or value}


def absolute(plan: Plan) -> Plan:
    """The plan with its paths made absolute, so that the run resumes from any folder; names stay as they are."""
    return replace(
        plan,
        benchmark=plan.benchmark if "benchmark" in plan.objects else from_anywhere(plan.benchmark),
        engine_url=_absolute_url(plan.engine_url),
        controller=_absolute(plan.controller) if ".py:" in plan.controller else plan.controller,
        model=plan.model if "model" in plan.objects else _absolute(plan.model),
        adapter=_absolute(plan.adapter),
        corrections=_absolute(plan.corrections) if plan.corrections else "",
        tools=tuple(_absolute(spec) if ".py:" in spec else spec for spec in plan.tools),
        gates=tuple(_absolute(spec) if ".py:" in spec else spec for spec in plan.gates),
    )


def _absolute(spec: str) -> str:
    head, sep, path = spec.partition("scripted:")
    if sep and not head:
        return f"scripted:{Path(path).expanduser().absolute()}"
    file = as_path(spec.partition(".py:")[0] + ".py" if ".py:" in spec else spec)
    return str(Path(spec).expanduser().absolute()) if file and file.exists() else spec


def _absolute_url(url: str) -> str:
    """The URL with its path made absolute, where it has one."""
    form, colon, path = url.partition(":") if url.startswith(("duckdb:", "clickhouse:")) else ("", "", url)
    if not path or ":" in path:
        return url
    return f"{form}{colon}{Path(path).expanduser().absolute()}"


def default_split(benchmark: str, split: str | None) -> str | None:
    """What is packaged is not taken whole unless that is asked for: its test questions are for measuring."""
    return split or {"packaged": "quick", PACKAGED_DIALOGUES: "dev", VIZQL: "dev"}.get(benchmark)


def read_plan(folder: Path) -> tuple[Plan, Config]:
    """The plan and the resolved config of a run folder. Raises UsageError where it holds none, or another version's."""
    from pydantic import TypeAdapter

    from nl2sql.config import build_config

    manifest = read_manifest(folder)
    try:
        kept: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in manifest["plan"].items()}
        plan = Plan(**kept)
        for name, kind in get_type_hints(Plan).items():
            TypeAdapter(kind).validate_python(getattr(plan, name), strict=True)
        return plan, build_config(manifest["config"])
    except (TypeError, KeyError, AttributeError, ValueError, RuntimeError, UsageError):
        raise UsageError(
            f"{folder / 'manifest.json'} is not a manifest of this version; start a new run with another --out"
        ) from None


def open_benchmark(plan: Plan, objects: Mapping[str, Any]) -> Benchmark:
    """The benchmark of a plan, by name or as the object that was given. Raises UsageError, BenchmarkError."""
    if "benchmark" not in plan.objects:
        benchmark = load_benchmark(plan.benchmark, split=plan.split, engine_url=plan.engine_url)
        if not plan.corrections:
            return benchmark
        from nl2sql.benchmarks.corrections import with_corrections

        return with_corrections(benchmark, plan.corrections)
    given: Benchmark | None = objects.get("benchmark")
    if given is None:
        raise UsageError(f"the run was given the benchmark {plan.benchmark} as an object, and only Python can give it")
    if plan.split is not None or plan.engine_url or plan.corrections:
        raise UsageError("split=, engine_url= and corrections= go with a benchmark's name, not with an object")
    return given


def pick(benchmark: Benchmark, plan: Plan) -> list[Question]:
    """The questions of a plan: without the items that scores leave out, then the seeded sample; of dialogues, whole.

    With the history ``own`` a dialogue ends before a turn that is left out: nobody answers it for the turns behind it.
    """
    behind = behind_left_out(benchmark.questions) if plan.history == "own" else ()
    usable = [question for question in benchmark.questions if scorable(question) and question.id not in behind]
    if not usable:
        check_databases(benchmark)
        raise UsageError(f"benchmark {benchmark.name!r} has no scorable questions in split {plan.split or 'all'!r}")
    draw = draw_dialogues if has_dialogues(usable) else draw_sample
    return draw(usable, plan.limit, plan.sample_seed)


def left_out_of(benchmark: Benchmark, history: str) -> dict[str, int]:
    """Reason -> number of questions that a run with that history leaves out."""
    behind = len(behind_left_out(benchmark.questions)) if history == "own" else 0
    return left_out_counts(benchmark.questions) | ({"behind_left_out": behind} if behind else {})


def open_model(plan: Plan) -> Model:
    from nl2sql.models import load_model

    if plan.batch_size < 1:
        raise UsageError(f"--batch-size {plan.batch_size}: expected 1 or more")
    return load_model(
        plan.model,
        device=plan.device,
        dtype=plan.dtype,
        batch_size=plan.batch_size,
        engine=plan.engine,
        adapter=plan.adapter,
        server=plan.server,
        cache=plan.cache,
    )


def behind_cache(plan: Plan, model: Model) -> Model:
    """A model object as the plan wants it: behind the response cache or as it is."""
    if not plan.cache:
        return model
    from nl2sql.models.response_cache import cached

    return cached(model)


def check_config(model: Model, config: Config) -> None:
    """Before a run: raises ModelError or UsageError where the model cannot do what ``config`` wants, or where a corpus,
    a few-shot pool, a question model, a rule or a folder of replicas that it names is not there."""
    from nl2sql.agents.controllers import check_model_abilities
    from nl2sql.agents.resources import check_members
    from nl2sql.eval.settings import Settings

    check_model_abilities(model, config)
    Settings(config.eval)
    check_members(config)


def run_key(
    named: NamedController,
    config: Config,
    model: Mapping[str, Any],
    prints: Mapping[str, str],
    members: Mapping[str, str],
    history: str = "",
) -> str:
    """Content key of one controller under one config on one model over these questions and databases.

    members: all else that answers rest on, as ``agents.resources.members`` lists it. history: ``own`` where turns rest
    on answers of the run itself; golds in a history are part of its question.
    """
    settings = config.model_dump(exclude={"eval", "reward"})
    hashes = prompts.prompt_hashes(config.prompts)
    own = [history] if history == "own" else []
    return content_key(named.name, named.identity, settings, weights_of(model), hashes, prints, members, *own)


def weights_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a model's answers, of its description."""
    return {key: model.get(key) for key in ("name", "revision", "dtype")}


def fingerprints(benchmark: Benchmark, questions: Sequence[Question]) -> dict[str, str]:
    """Content hashes: of the questions, and of each database they ask; one that cannot be read says why."""
    prints = {"questions": content_key([question_key(question) for question in questions])}
    for db_id in sorted({question.db_id for question in questions}):
        try:
            prints[db_id] = benchmark.database(db_id).fingerprint
        except Nl2SqlError as error:
            prints[db_id] = f"{UNREADABLE}{error}"
    return prints


# ---------------------------------------------------------------------------- the controls of a run
# A loop gets credit only for what it adds to the same model asked once. One greedy call gives two
# controls (with and without guardrails); with ``--equal-tokens`` there is a third, sampled at the
# loop's own token budget.


@dataclass(frozen=True)
class Control:
    """name: its key in ``report["control"]``. label: the heading of its column. item: its verdict in an item of the
    report. paired: the report's key of the run's paired tests against it. store: whose episodes, a key of ``FOLDERS``.
    text: the field of a prediction that is scored.
    """

    name: str
    label: str
    item: str
    paired: str
    store: str
    text: str = "sql"


CONTROLS = (
    Control("with_guardrails", "single_shot", "ex_single_shot", "paired", "single_shot"),
    Control(
        "without_guardrails",
        "single_shot, raw",
        "ex_single_shot_raw",
        "paired_without_guardrails",
        "single_shot",
        text="raw_sql",
    ),
    Control("equal_tokens", "single_shot, equal tokens", "ex_equal_tokens", "paired_equal_tokens", "equal_tokens"),
)


def control_stores(plan: Plan, controller: NamedController) -> tuple[str, ...]:
    """The controls that a run of ``plan`` asks beside its controller, in their order: keys of ``FOLDERS``."""
    from nl2sql.agents.controllers import get_controller

    if not plan.control or controller.identity == get_controller("single_shot").identity:
        return ()
    return ("single_shot", "equal_tokens") if plan.equal_tokens else ("single_shot",)


def systems_of(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The run and its controls, by the names that tables give them; a controller may have the name of a control."""
    present = {c.label: report["control"][c.name] for c in CONTROLS if c.name in report["control"]}
    name = report["controller"]
    return {f"{name} (the run)" if name in present else name: report, **present}
