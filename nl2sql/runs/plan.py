"""What decides a run: its plan, and what the plan names, opened. A run folder's manifest is the plan's record.

Opening a benchmark needs no model; ``open_model`` is the only function that loads a model library. The loop, the config
and the scoring (sqlglot, pydantic) are imported by the functions that need them.

    plan, config = read_plan(folder)
    check_named(folder, plan, config, Trust(), READ)   # UsageError: runs/theirs names engine_url postgresql://...
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from nl2sql.agents import prompts
from nl2sql.benchmarks import draw_sample, excluded_counts, load_benchmark, scorable
from nl2sql.benchmarks.core import behind_excluded, draw_dialogues, has_dialogues
from nl2sql.benchmarks.load import check_databases, from_anywhere, is_at_hand
from nl2sql.benchmarks.packaged import PACKAGED_DIALOGUES, VIZQL
from nl2sql.errors import Nl2SqlError, UsageError, one_line, typed
from nl2sql.interfaces import DEFAULT_MODEL, Benchmark, Model, Question, content_key, question_key
from nl2sql.machine import as_path
from nl2sql.runs.folder import read_manifest
from nl2sql.safe_files import MEGABYTE, read_bytes

if TYPE_CHECKING:
    from nl2sql.agents.controllers import NamedController
    from nl2sql.config import Config

MODEL_OPTIONS = ("model", "adapter", "device", "dtype", "batch_size", "engine", "server", "cache")  # of a plan
UNREADABLE = "unreadable: "  # in place of a database's fingerprint, before the reason


@dataclass(frozen=True)
class RunSpec:
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


def plan_record(plan: RunSpec) -> dict[str, Any]:
    """The plan as a manifest keeps it; it says nothing of what came later and was not asked for."""
    later = ("history", "turns", "tools", "gates", "corrections")
    return {key: value for key, value in asdict(plan).items() if key not in later or value}


def flat(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Every setting of a config, given as data, by its dotted key."""
    settings: dict[str, Any] = {}
    for key, value in config.items():
        below = isinstance(value, Mapping) and value
        settings |= flat(value, f"{before}{key}.") if below else {before + key: value}
    return settings


def absolute(plan: RunSpec) -> RunSpec:
    """The plan with its paths made absolute, so that the run resumes from any folder; names stay as they are."""
    form, colon, path = plan.engine_url.rpartition(":")
    if path and form in ("", "duckdb", "clickhouse"):  # other URLs name no file
        path = str(Path(path).expanduser().absolute())
    return replace(
        plan,
        benchmark=plan.benchmark if "benchmark" in plan.objects else from_anywhere(plan.benchmark),
        engine_url=f"{form}{colon}{path}",
        controller=_absolute_code(plan.controller),
        model=plan.model if "model" in plan.objects else _absolute(plan.model),
        adapter=_absolute(plan.adapter),
        corrections=_absolute(plan.corrections) if plan.corrections else "",
        tools=tuple(map(_absolute_code, plan.tools)),
        gates=tuple(map(_absolute_code, plan.gates)),
    )


def _absolute_code(spec: str) -> str:
    return _absolute(spec) if ".py:" in spec else spec


def _absolute(spec: str) -> str:
    if spec.startswith("scripted:"):
        return f"scripted:{Path(spec.removeprefix('scripted:')).expanduser().absolute()}"
    file = as_path(spec.partition(".py:")[0] + ".py" if ".py:" in spec else spec)
    return str(Path(spec).expanduser().absolute()) if file and file.exists() else spec


def default_split(benchmark: str, split: str | None) -> str | None:
    """What is packaged is not taken whole unless that is asked for: its test questions are for measuring."""
    return split or {"packaged": "quick", PACKAGED_DIALOGUES: "dev", VIZQL: "dev"}.get(benchmark)


@cache
def kinds_of_plan() -> dict[str, tuple[Any, Any]]:
    """Each field of a plan: its type, and pydantic's adapter of that."""
    from pydantic import TypeAdapter

    return {name: (kind, TypeAdapter(kind)) for name, kind in get_type_hints(RunSpec).items()}


def read_plan(folder: Path) -> tuple[RunSpec, Config]:
    """The plan and the resolved config of a run folder. Raises UsageError where it holds none, or another version's."""
    from nl2sql.config import build_config

    manifest = read_manifest(folder)
    try:
        kept: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in manifest["plan"].items()}
        plan = RunSpec(**kept)
        for name, (_, adapter) in kinds_of_plan().items():
            adapter.validate_python(getattr(plan, name), strict=True)
        return plan, build_config(manifest["config"])
    except (TypeError, KeyError, AttributeError, ValueError, RuntimeError, UsageError):
        raise UsageError(
            f"{folder / 'manifest.json'} is not a manifest of this version; start a new run with another --out"
        ) from None


def open_benchmark(plan: RunSpec, objects: Mapping[str, Any]) -> Benchmark:
    """The benchmark of a plan, by name or as the object that was given. Raises UsageError, BenchmarkError."""
    if "benchmark" not in plan.objects:
        benchmark = load_benchmark(plan.benchmark, split=plan.split, engine_url=plan.engine_url)
        if not plan.corrections:
            return benchmark
        from nl2sql.benchmarks.check import with_corrections

        return with_corrections(benchmark, plan.corrections)
    given: Benchmark | None = objects.get("benchmark")
    if given is None:
        raise UsageError(f"the run was given the benchmark {plan.benchmark} as an object, and only Python can give it")
    if plan.split is not None or plan.engine_url or plan.corrections:
        raise UsageError("split=, engine_url= and corrections= go with a benchmark's name, not with an object")
    return given


def pick(benchmark: Benchmark, plan: RunSpec) -> list[Question]:
    """The questions of a plan: without the items that scores leave out, then the seeded sample; of dialogues, whole.

    With the history ``own`` a dialogue ends before a turn that is left out: nobody answers it for the turns behind it.
    """
    behind = behind_excluded(benchmark.questions) if plan.history == "own" else ()
    usable = [question for question in benchmark.questions if scorable(question) and question.id not in behind]
    if not usable:
        check_databases(benchmark)
        raise UsageError(f"benchmark {benchmark.name!r} has no scorable questions in split {plan.split or 'all'!r}")
    draw = draw_dialogues if has_dialogues(usable) else draw_sample
    return draw(usable, plan.limit, plan.sample_seed)


def excluded_of(benchmark: Benchmark, history: str) -> dict[str, int]:
    """Reason -> number of questions that a run with that history leaves out."""
    behind = len(behind_excluded(benchmark.questions)) if history == "own" else 0
    return excluded_counts(benchmark.questions) | ({"behind_left_out": behind} if behind else {})


def open_model(plan: RunSpec) -> Model:
    from nl2sql.models import load_model

    if plan.batch_size < 1:
        raise UsageError(f"--batch-size {plan.batch_size}: expected 1 or more")
    return load_model(plan.model, **{name: getattr(plan, name) for name in MODEL_OPTIONS[1:]})


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
    fingerprints: Mapping[str, str],
    parts: Mapping[str, str],
    history: str = "",
) -> str:
    """Content key of one controller under one config on one model over these questions and databases.

    parts: all else that answers rest on, as ``agents.resources.parts`` lists it. history: ``own`` where turns rest
    on answers of the run itself; golds in a history are part of its question.
    """
    settings = config.model_dump(exclude={"eval", "reward"})
    hashes = prompts.prompt_hashes(config.prompts)
    own = [history] if history == "own" else []
    return content_key(named.name, named.identity, settings, weights_of(model), hashes, fingerprints, parts, *own)


def weights_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a model's answers, of its description."""
    return {key: model.get(key) for key in ("name", "revision", "dtype")}


def fingerprints(benchmark: Benchmark, questions: Sequence[Question]) -> dict[str, str]:
    """Content hashes: of the questions, and of each database they ask; one that cannot be read says why."""
    hashes = {"questions": content_key([question_key(question) for question in questions])}
    for db_id in sorted({question.db_id for question in questions}):
        try:
            hashes[db_id] = benchmark.database(db_id).fingerprint
        except Nl2SqlError as error:
            hashes[db_id] = f"{UNREADABLE}{error}"
    return hashes


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


_RAW = ("without_guardrails", "single_shot, raw", "ex_single_shot_raw", "paired_without_guardrails")
CONTROLS = (
    Control("with_guardrails", "single_shot", "ex_single_shot", "paired", "single_shot"),
    Control(*_RAW, "single_shot", text="raw_sql"),
    Control("equal_tokens", "single_shot, equal tokens", "ex_equal_tokens", "paired_equal_tokens", "equal_tokens"),
)


def control_stores(plan: RunSpec, controller: NamedController) -> tuple[str, ...]:
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


# --------------------------------------------------- what the manifest of a folder may name
# A folder may be a stranger's. By itself its manifest opens what is packaged, and benchmarks in
# ``NL2SQL_BENCHMARKS``; code, addresses and other paths are opened where whoever asks trusts the
# folder (``--trust``), or types the same now. A variable in the password of a server's address is
# read only where the address is typed. All of that is decided here, before anything is imported or
# opened.

MOST_SECONDS = 120.0  # of each statement that is scored
MOST_REPLICAS = 100


@dataclass(frozen=True)
class Trust:
    """What whoever asks has said of a folder. whole: ``--trust``. typed: settings as they were typed now, by name."""

    whole: bool = False
    typed: Mapping[str, Any] = field(default_factory=dict)


READ = ("benchmark", "engine_url", "corrections")  # what a report, a check and an export open
SCORED = (*READ, "eval.rule", "eval.replicas", "eval.timeout_s")
ALL = (
    *(*SCORED, "controller", "tools", "gates", "model", "adapter", "few_shot.pool", "vizql.source"),
    *("knowledge.file", "knowledge.verified", "repair.corpus", "repair.milvus"),
)


def _is_packaged(setting: str, value: Any) -> bool:
    """Whether the folder's own word is enough for this value."""
    from nl2sql.agents.controllers import PACKAGED
    from nl2sql.eval.rules import RULES, TOLERANT
    from nl2sql.models.embedded import embedded_names
    from nl2sql.models.weight_files import packaged_adapters

    match setting:
        case "benchmark":
            return is_at_hand(value)
        case "eval.rule":
            return value in RULES or TOLERANT.fullmatch(value) is not None
        case "eval.replicas":
            return isinstance(value, int) and value <= MOST_REPLICAS
        case "eval.timeout_s":
            return bool(value <= MOST_SECONDS)
        case "controller":
            return value in PACKAGED
        case "model":
            return value in embedded_names()
        case "adapter":
            return value in ("auto", "none", *packaged_adapters())
        case "few_shot.pool":
            return not value.endswith(".jsonl") and is_at_hand(value.partition(":")[0])
    return False


def check_named(
    folder: Path, plan: RunSpec, config: Config, trust: Trust | bool = False, settings: tuple[str, ...] = ALL
) -> None:
    """Raises UsageError for the first of ``settings`` whose value the folder alone may not name. trust: True is
    ``Trust(whole=True)``."""
    trust = trust if isinstance(trust, Trust) else Trust(trust)
    for name in settings:
        if name in plan.objects:
            continue
        value = _value(plan, config, name)
        if name in trust.typed and trust.typed[name] == value:
            continue
        if name == "engine_url" and "://" in value and "$" in value:
            raise UsageError(
                f"{folder} names the engine {one_line(value, 200)!r}; a variable is read from your environment only "
                "where the address is typed: add --engine-url 'URL'"
            )
        if not trust.whole and value not in ("", ()) and not _is_packaged(name, value):
            raise UsageError(
                f"{folder} names {name}={one_line(value, 200)!r}, which is not opened on a folder's word alone; if it "
                "is yours, or whoever made it is trusted with your account and keys, add --trust"
            )


def said_again(plan: RunSpec, config: Config) -> str:
    """What has to be typed behind ``--resume FOLDER`` of one's own run: "", or options with a blank before them."""
    options = ""
    try:
        check_named(Path(), plan, config, Trust(typed={"engine_url": plan.engine_url}))
    except UsageError:
        options = " --trust"
    return options + (f" --engine-url {typed(plan.engine_url)}" if plan.engine_url else "")


def check_same(folder: Path, plan: RunSpec, trust: Trust | bool) -> None:
    """Raises UsageError where a setting that was typed beside ``--resume`` is not the run's own."""
    for name, value in trust.typed.items() if isinstance(trust, Trust) else ():
        if getattr(plan, name) != value:
            was = one_line(getattr(plan, name), 200)
            raise UsageError(f"{folder} was run with {name}={was!r}, not {value!r}; leave it out, or start a new run")


def benchmark_of(folder: Path, trust: Trust | bool = False) -> Benchmark:
    """The benchmark of a run folder, for its golds and databases. Raises UsageError, BenchmarkError."""
    plan, config = read_plan(folder)
    check_named(folder, plan, config, trust, READ)
    return open_benchmark(plan, {})


def _value(plan: RunSpec, config: Any, name: str) -> Any:
    section, dot, key = name.partition(".")
    return getattr(getattr(config, section), key) if dot else getattr(plan, name)


def code_files(plan: RunSpec) -> dict[str, str]:
    """The files of code that a plan names for its episodes -> the hash of each, which a resume compares before it
    imports any. Raises UsageError for one that cannot be read."""
    hashes = {}
    for file in (s.rpartition(":")[0] for s in (plan.controller, *plan.tools, *plan.gates) if ".py:" in s):
        try:
            hashes[file] = hashlib.sha256(read_bytes(Path(file).resolve(), 16 * MEGABYTE)).hexdigest()[:16]
        except OSError as error:
            raise UsageError(f"file {file} cannot be read: {error.strerror}") from None
    return hashes


def check_code(folder: Path, manifest: Mapping[str, Any], plan: RunSpec) -> None:
    """Raises UsageError where a file of code is not what it was when the run was started."""
    then = manifest.get("code", {})
    if changed := [file for file, now in code_files(plan).items() if then.get(file, now) != now]:
        raise UsageError(f"{changed[0]} changed since {folder} was started; start a new run with another --out")
