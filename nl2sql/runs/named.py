"""What the manifest of a run folder names, and what of it is opened: the one place that decides.

A folder may be a stranger's. By itself its manifest opens what is packaged, and benchmarks in ``NL2SQL_BENCHMARKS``;
code, addresses and other paths are opened where whoever asks trusts the folder (``--trust``), or types the same now. A
variable in the password of a server's address is read only where the address is typed. All of that is decided before
anything is imported or opened.

    plan, config = read_plan(folder)
    check_named(folder, plan, config, Trust(), READ)   # UsageError: runs/theirs names engine_url postgresql://...
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.benchmarks.load import is_at_hand
from nl2sql.errors import UsageError, one_line, typed
from nl2sql.interfaces import Benchmark
from nl2sql.runs.plan import Plan, open_benchmark, read_plan
from nl2sql.safe_files import MEGABYTE, read_bytes

if TYPE_CHECKING:
    from nl2sql.config import Config

MOST_SECONDS = 120.0  # of each statement that is scored
MOST_REPLICAS = 100


@dataclass(frozen=True)
class Trust:
    """What whoever asks has said of a folder. whole: ``--trust``. typed: settings as they were typed now, by name."""

    whole: bool = False
    typed: Mapping[str, Any] = field(default_factory=dict)


def _adapter(name: str) -> bool:
    from nl2sql.models.adapters import packaged_adapters

    return name in ("auto", "none", *packaged_adapters())


def _model(name: str) -> bool:
    from nl2sql.models.embedded import embedded_names

    return name in embedded_names()


def _controller(name: str) -> bool:
    from nl2sql.agents.controllers import PACKAGED

    return name in PACKAGED


def _rule(name: str) -> bool:
    from nl2sql.eval.rules import RULES, TOLERANT

    return name in RULES or TOLERANT.fullmatch(name) is not None


def _replicas(value: int | str) -> bool:
    return isinstance(value, int) and value <= MOST_REPLICAS


def _pool(name: str) -> bool:
    return not name.endswith(".jsonl") and is_at_hand(name.partition(":")[0])


def _nothing(value: object) -> bool:
    return False


_ALLOWED: dict[str, Callable[[Any], bool]] = {  # setting -> whether the folder's own word is enough for this value
    "benchmark": is_at_hand,
    "engine_url": _nothing,
    "corrections": _nothing,
    "eval.rule": _rule,
    "eval.replicas": _replicas,
    "eval.timeout_s": lambda seconds: seconds <= MOST_SECONDS,
    "controller": _controller,
    "tools": _nothing,
    "gates": _nothing,
    "model": _model,
    "adapter": _adapter,
    "few_shot.pool": _pool,
    "knowledge.file": _nothing,
    "knowledge.verified": _nothing,
    "repair.corpus": _nothing,
    "repair.milvus": _nothing,
    "vizql.source": _nothing,
}
READ = ("benchmark", "engine_url", "corrections")  # what a report, a check and an export open
SCORED = (*READ, "eval.rule", "eval.replicas", "eval.timeout_s")
ALL = tuple(_ALLOWED)


def check_named(
    folder: Path, plan: Plan, config: Config, trust: Trust | bool = False, settings: tuple[str, ...] = ALL
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
        if not trust.whole and value not in ("", ()) and not _ALLOWED[name](value):
            raise UsageError(
                f"{folder} names {name}={one_line(value, 200)!r}, which is not opened on a folder's word alone; if it "
                "is yours, or whoever made it is trusted with your account and keys, add --trust"
            )


def said_again(plan: Plan, config: Config) -> str:
    """What has to be typed behind ``--resume FOLDER`` of one's own run: "", or options with a blank before them."""
    try:
        check_named(Path(), plan, config, Trust(typed={"engine_url": plan.engine_url}))
    except UsageError:
        options = " --trust"
    else:
        options = ""
    return options + (f" --engine-url {typed(plan.engine_url)}" if plan.engine_url else "")


def check_same(folder: Path, plan: Plan, trust: Trust | bool) -> None:
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


def _value(plan: Plan, config: Any, name: str) -> Any:
    section, dot, key = name.partition(".")
    return getattr(getattr(config, section), key) if dot else getattr(plan, name)


def code_files(plan: Plan) -> dict[str, str]:
    """The files of code that a plan names for its episodes -> the hash of each, which a resume compares before it
    imports any. Raises UsageError for one that cannot be read."""
    files = [spec.rpartition(":")[0] for spec in (plan.controller, *plan.tools, *plan.gates) if ".py:" in spec]
    prints = {}
    for file in files:
        try:
            prints[file] = hashlib.sha256(read_bytes(Path(file).resolve(), 16 * MEGABYTE)).hexdigest()[:16]
        except OSError as error:
            raise UsageError(f"file {file} cannot be read: {error.strerror}") from None
    return prints


def check_code(folder: Path, manifest: Mapping[str, Any], plan: Plan) -> None:
    """Raises UsageError where a file of code is not what it was when the run was started."""
    then = manifest.get("code", {})
    if changed := [file for file, now in code_files(plan).items() if then.get(file, now) != now]:
        raise UsageError(f"{changed[0]} changed since {folder} was started; start a new run with another --out")
