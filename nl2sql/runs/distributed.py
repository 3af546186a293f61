"""Episodes and scoring on the workers of a Ray cluster: shards by database, a lost worker's shard done again.

``Ray`` is an executor: ``evaluate``, ``resume``, ``ablate``, ``replay`` and ``score`` take it as ``executor``. The
process that made it keeps the run folder: workers hand back episodes and verdicts and write nothing. What comes out is
what the same call gives without it. Needs the extra ``ray``; importing this package does not import Ray.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tqdm.auto import tqdm

from nl2sql.agents.controllers import NamedController, get_controller
from nl2sql.agents.record import Episode
from nl2sql.agents.resources import part_fingerprints
from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.benchmarks.load import OnEngine
from nl2sql.config import Config
from nl2sql.databases.sqlite.files import sqlite_file
from nl2sql.errors import Nl2SqlError, UsageError, one_line
from nl2sql.eval.scores import Judged
from nl2sql.eval.scoring import judge
from nl2sql.eval.settings import Settings
from nl2sql.interfaces import Benchmark, Gate, Model, Question, Tool
from nl2sql.machine import cores, install_command
from nl2sql.models.response_cache import code_hash
from nl2sql.runs.job import LOCAL, Job
from nl2sql.runs.plan import MODEL_OPTIONS, RunSpec, check_config, open_model, weights_of

if TYPE_CHECKING:
    from nl2sql.databases.sqlite.database import QueryPool

# -------------------------------------------------------------------------------------- the cluster
# Ray does a task again whose worker or node died. An error that a task raised is the user's to see,
# and is not tried again. Every task first compares its own code with the caller's: results of two
# versions never mix.

T = TypeVar("T")

INSTALL = f"the ray executor needs Ray: {install_command('ray')} (or --executor local)"
RETRIES = 5  # of a shard whose worker or node died
STORE_BYTES = 100 * 2**20  # object store of a cluster started here; what travels is small
REACH_S = 5.0  # for an address to answer


def _check_reachable(address: str) -> None:
    """Ray itself waits a minute before it says that nobody is there."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise UsageError(f"--address {address!r}; expected HOST:PORT of a Ray cluster, e.g. 10.0.0.1:6379, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, error) from None


def _unreachable(address: str, error: Exception) -> UsageError:
    return UsageError(
        f"no Ray cluster answers at --address {address} ({one_line(error, 200)}); start one with: ray start --head "
        "--port 6379, and on each other machine: ray start --address HOST:6379"
    )


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is not None:
            ray.init(address=address, **quiet)
        else:
            size = {"num_cpus": workers or cores(), "object_store_memory": STORE_BYTES}
            ray.init(address="local", include_dashboard=False, **size, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        if address is not None:
            raise _unreachable(address, error) from None
        raise Nl2SqlError(f"Ray cannot be started here: {one_line(error, 300)}; use --executor local") from None


def _in_worker(code: str, function: Callable[..., T], piece: tuple[Any, ...]) -> T:
    if code_of_package() != code:
        raise UsageError(
            f"the worker on {platform.node()} runs other code of nl2sql than this process; install the same version "
            "on all nodes and start Ray there anew"
        )
    return function(*piece)


@cache
def code_of_package() -> str:
    """Hash of the package's code and data files."""
    return code_hash(Path(__file__).resolve().parents[1], (".py", ".yaml", ".lark"))[:16]


# ------------------------------------------------------------------------------- shards by database

SIZE = 48  # questions at most: what is lost with a worker, against replicas and models that each shard opens


@dataclass(frozen=True)
class Shard:
    """Questions of one database of a benchmark. ``file`` is None where the benchmark has no such file."""

    benchmark: str
    source: str
    questions: tuple[Question, ...]
    file: Path | None
    length: int = 0  # of the file, in bytes
    url: str = ""  # of a benchmark on another engine

    def open(self) -> Benchmark:
        """The benchmark, as far as the shard goes. Raises UsageError where this machine does not have the file."""
        if self.url:
            return OnEngine(self.benchmark, self.questions, {}, self.url)
        files = {}
        if self.file is not None:
            if not self.file.exists() or self.file.stat().st_size != self.length:
                raise UsageError(
                    f"the worker on {platform.node()} has no such {self.file}; databases have to lie in a folder "
                    "that all nodes share, under the same path"
                )
            files[self.questions[0].db_id] = self.file
        return FolderBenchmark(self.benchmark, self.questions, {}, files, source=self.source)


def cut(benchmark: Benchmark, questions: Sequence[Question], size: int = SIZE) -> list[Shard]:
    """The questions by database; those of a database that has more than ``size`` in parts of nearly the same size.

    The cut depends on the questions alone, not on the cluster. The largest shards come first.
    """
    by_database: dict[str, list[Question]] = {}
    for question in questions:
        by_database.setdefault(question.db_id, []).append(question)
    shards, url = [], benchmark.url if isinstance(benchmark, OnEngine) else ""
    for db_id, asked in by_database.items():
        file = _file_of(benchmark, db_id) if not url else None
        length = file.stat().st_size if file is not None else 0
        parts = -(-len(asked) // size)
        for part in range(parts):
            chosen = asked[part * len(asked) // parts : (part + 1) * len(asked) // parts]
            shards.append(Shard(benchmark.name, getattr(benchmark, "source", ""), tuple(chosen), file, length, url))
    return sorted(shards, key=lambda shard: -len(shard.questions))


def _file_of(benchmark: Benchmark, db_id: str) -> Path | None:
    """The SQLite file of a database, without opening it where the benchmark says where it lies."""
    files = getattr(benchmark, "files", None)
    if isinstance(files, Mapping):
        path = files.get(db_id)
        return path.absolute() if path is not None and path.exists() else None
    try:
        database = benchmark.database(db_id)
    except Nl2SqlError:
        return None
    if (path := sqlite_file(database)) is None:
        raise UsageError(
            f"{db_id} is a {database.dialect} database of an object of this process, and workers open databases by "
            "name; give the benchmark's name with engine_url=, or use --executor local"
        )
    return path.absolute() if path.exists() else None


# ------------------------------------------------------------------ what a worker does with a shard


@dataclass(frozen=True)
class Assignment:
    """What is the same for all shards of a phase: a controller under a config on a model."""

    plan: RunSpec  # the model's options; all else as it comes
    controller: str | NamedController  # a name or FILE.py:function, or the function with its name
    config: Config
    fingerprints: Mapping[str, Any]  # ``fingerprints_of`` in the driver
    tools: Mapping[str, Tool]
    gates: Mapping[str, Gate]


def fingerprints_of(job: Job) -> dict[str, Any]:
    """What answers rest on beside the databases -> its content, as this process finds it."""
    config = job.config
    places = {  # where the user finds what another worker has otherwise
        "few_shot_pool": f"few-shot pool {config.few_shot.pool}",
        "corpus": f"corpus {config.repair.corpus}",
        "knowledge": f"knowledge {config.knowledge.file}",
        "verified_queries": f"verified queries {config.knowledge.verified}",
        "vizql_source": f"data source {config.vizql.source}",
    }
    return {
        f"controller {job.controller.name}": job.controller.identity,
        f"model {job.plan.model}": weights_of(job.model.describe()),
        **{
            places.get(name, name): content for name, content in part_fingerprints(config, job.tools, job.gates).items()
        },
    }


def run_shard(order: Assignment, shard: Shard) -> list[Episode]:
    """The episodes of a shard, as many at once as the model batches.

    Raises UsageError where a file or a model that answers rest on is another one here than in the driver.
    """
    named = order.controller if isinstance(order.controller, NamedController) else get_controller(order.controller)
    model = _model_of(order.plan)
    episodes: list[Episode] = []
    asked = (order.plan, named, order.config, shard.questions, shard.open(), model, order.tools, order.gates)
    job = Job(*asked, keep=episodes.append)
    ours = fingerprints_of(job)
    for what, wanted in order.fingerprints.items():
        if ours.get(what) != wanted:
            raise UsageError(
                f"the worker on {platform.node()} has another {what} than this process; copy it to that node, or keep "
                "it in a folder that all nodes share, under the same path"
            )
    check_config(model, order.config)
    LOCAL.episodes(job)
    return episodes


def judge_shard(shard: Shard, predictions: Mapping[str, Mapping[str, str]], settings: Settings) -> Judged:
    """The verdicts on a shard, with one query process: a worker has one core."""
    return judge(shard.open(), shard.questions, predictions, replace(settings, pool=_pool()))


@cache
def _pool() -> QueryPool:
    """One query process per worker, kept from shard to shard; it ends with the worker."""
    from nl2sql.databases.sqlite.database import QueryPool

    return QueryPool(workers=1)


_KEPT: dict[RunSpec, Model] = {}  # the model of a worker; workers are processes that Ray keeps from task to task


def _model_of(plan: RunSpec) -> Model:
    """The model of ``plan``, in place of another one. Raises what opening it raises."""
    if plan not in _KEPT:
        for other in _KEPT.values():
            other.close()
        _KEPT.clear()
        _KEPT[plan] = open_model(plan)
    return _KEPT[plan]


# ------------------------------------------------------------------------------------- the executor


class Ray:
    """A running cluster, joined as a driver; or one of this machine alone, started here. Closed as a block, by
    ``close``, or with the process.

    address: ``HOST:PORT`` of a cluster that this machine is a node of, or ``auto`` to find it; None starts one here.
    workers: tasks at once of a cluster started here (default: the cores this process may use); a task takes one CPU. A
    process that is connected already keeps its connection. Raises UsageError without Ray, or where no cluster answers.
    """

    def __init__(self, address: str | None = None, *, workers: int | None = None) -> None:
        if address is not None and address != "auto":
            _check_reachable(address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read on import: Ray reports usage over the network
        try:
            import ray
        except ImportError:
            raise UsageError(INSTALL) from None
        self._ray: Any = ray
        self._mine = not ray.is_initialized()
        if self._mine:
            _connect(ray, address, workers)

    def __enter__(self) -> Ray:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster, and end one that was started here. Idempotent."""
        if self._mine:
            self._ray.shutdown()
            self._mine = False

    def map(self, function: Callable[..., T], work: Sequence[tuple[Any, ...]]) -> Generator[tuple[int, T], None, None]:
        """(number, ``function(*work[number])``) of each piece as it is done; in no order, each exactly once.

        Raises what a piece raised where that is an Nl2SqlError, and an Nl2SqlError for what else went wrong. Closing
        the iterator, Ctrl-C too, cancels what is not done.
        """
        task = self._ray.remote(num_cpus=1, max_retries=RETRIES)(_in_worker)
        waiting: dict[Any, int] = {}
        try:
            for number, piece in enumerate(work):
                waiting[task.remote(code_of_package(), function, piece)] = number
            while waiting:
                done, _ = self._ray.wait(list(waiting), num_returns=1)
                for reference in done:
                    number = waiting.pop(reference)
                    yield number, self._result(reference)
        finally:
            # Python may drop an iterator that nobody closed after the connection is gone: its tasks ended then.
            for reference in waiting if self._ray.is_initialized() else ():
                self._ray.cancel(reference, force=True)

    def _result(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Nl2SqlError):
                raise error.cause from None
            raise Nl2SqlError(f"a Ray worker failed: {one_line(repr(error.cause), 300)}") from error
        except self._ray.exceptions.RayError as error:
            raise Nl2SqlError(
                f"a shard's worker died {RETRIES + 1} times: {one_line(error, 300)}; what is finished is kept"
            ) from error

    def check(self, plan: RunSpec, config: Config) -> None:
        """Raises UsageError for what workers cannot do: a model object, a corpus that grows, turns in their order."""
        if "model" in plan.objects:
            raise UsageError(
                f"model {plan.model!r} is an object of this process, and workers open models by name; pass a name "
                "(smollm2-135m, http://HOST/v1#NAME, scripted:FILE), or leave out executor="
            )
        if plan.history == "own":
            raise UsageError(
                "--history own asks the turns of a dialogue one after the other, and workers are handed questions that "
                "need no other's answer; use --executor local, or --history gold"
            )
        if files := [spec for spec in (*plan.tools, *plan.gates) if ".py:" in spec]:
            raise UsageError(f"{files[0]} is a file of this machine; name an installed module, package.module:function")
        if config.repair.learn:
            raise UsageError("repair.learn writes to a file on this machine; use --executor local, or learn afterwards")

    def episodes(self, job: Job) -> None:
        """Run each shard on a worker; the episodes of a shard are kept when all of them are done."""
        shards = cut(job.benchmark, job.questions)
        model = RunSpec(**{key: value for key, value in vars(job.plan).items() if key in MODEL_OPTIONS})
        named = job.controller.spec or job.controller
        order = Assignment(model, named, job.config, fingerprints_of(job), job.tools, job.gates)
        work = [(order, shard) for shard in shards]
        bar = tqdm(total=len(job.questions), desc=job.controller.name, unit="question", disable=not job.progress)
        with bar, closing(self.map(run_shard, work)) as done:
            for number, episodes in done:
                for episode in episodes:
                    job.keep(episode)
                for advance in (bar.update, job.advance):
                    advance(len(shards[number].questions))

    def verdicts(
        self,
        benchmark: Benchmark,
        questions: Sequence[Question],
        predictions: Mapping[str, Mapping[str, str]],
        settings: Settings,
    ) -> Judged:
        """Judge each shard on a worker. Warnings that count questions (of suites) count those of a shard."""
        shards = cut(benchmark, questions)
        plain = replace(settings, executor=None, pool=None, progress=False, metrics=None)  # those are of this process
        work = []
        for shard in shards:
            ids = [question.id for question in shard.questions]
            files = {name: {id_: texts[id_] for id_ in ids if id_ in texts} for name, texts in predictions.items()}
            work.append((shard, files, plain))
        judged: dict[int, Judged] = {}
        bar = tqdm(total=len(questions), desc="scoring", unit="item", disable=not settings.progress)
        with bar, closing(self.map(judge_shard, work)) as done:
            for number, verdicts in done:
                judged[number] = verdicts
                bar.update(len(shards[number].questions))
        parts = [judged[number] for number in range(len(shards))]
        return Judged(
            items={id_: scores for part in parts for id_, scores in part.items.items()},
            warnings=list(dict.fromkeys(warning for part in parts for warning in part.warnings)),
            most=max((part.most for part in parts), default=0),
            executed=sum(part.executed for part in parts),
        )
