"""Controllers by short name. Any callable ``(Question, Resources, Config) -> Episode`` works as well.

>>> get_controller("react_plus").name, sorted(get_controller("react_plus").preset)
('react_plus', ['candidates', 'react', 'repair', 'schema_text'])

A controller's identity is the hash of its source, so that a loop edited in a notebook cell is told apart from the
packaged one in caches and resumed runs.
"""

from __future__ import annotations

import hashlib
import importlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nl2sql.agents.record import Episode, EpisodeError, cut_rows, in_shape, run_bounded
from nl2sql.agents.resources import code_identity, fitted
from nl2sql.agents.setup import reusing, verified_answer
from nl2sql.agents.task import State
from nl2sql.config import PRESETS, Config, build_config, merge
from nl2sql.config.plugins import FORMS, own_function
from nl2sql.errors import Cancelled, DatabaseError, ModelError, Nl2SqlError, UsageError, one_line
from nl2sql.interfaces import (
    USER,
    Completion,
    Controller,
    Database,
    EventSink,
    Gate,
    Message,
    Model,
    Question,
    Resources,
    RunResult,
    Tool,
    Usage,
    adapter_at,
    no_sink,
)
from nl2sql.sql.text import stem, words

_HOMES = {
    "single_shot": "nl2sql.agents.single_shot:single_shot",
    "react": "nl2sql.agents.react:react",
    "react_plus": "nl2sql.agents.react:react",
    "reflect": "nl2sql.agents.reflection:reflect",
    "candidates": "nl2sql.agents.candidates:candidates",
    "best": "nl2sql.agents.candidates:candidates",
    "vizql": "nl2sql.agents.vizql:vizql",
}
PACKAGED = tuple(_HOMES)
LOOPS = ("react", "react_plus")  # take tools and gates
SAMPLERS = ("single_shot", "candidates", "best")  # draw samples whatever react.do_sample says


@dataclass(frozen=True)
class NamedController:
    """A controller, what it is called, the hash of its source, and the config its preset starts from."""

    name: str
    identity: str
    run: Controller
    preset: dict[str, Any]
    spec: str = ""  # opens it anew in another process; empty for a function that was given as an object


def get_controller(spec: str | Callable[..., Any]) -> NamedController:
    """A controller by short name, as one's own in one of ``config.plugins.FORMS``, or a callable itself.

    Raises UsageError for an unknown name, a missing file or function, and a controller whose extra is not installed.
    """
    if callable(spec):
        return NamedController(getattr(spec, "__name__", "controller"), code_identity(spec), spec, {})
    if spec in _HOMES:
        module, _, function = _HOMES[spec].partition(":")
        home = importlib.import_module(module)
        if hasattr(home, "check_installed"):  # a controller of an optional extra
            home.check_installed()
        controller = getattr(home, function)
        return NamedController(spec, code_identity(controller), controller, PRESETS.get(spec, {}), spec)
    if own := own_function("controllers", spec):
        identity = code_identity(own.function)
        if own.file is not None and own.file.is_file():  # its helpers and constants count; imports do not
            identity += f"-{hashlib.sha256(own.file.read_bytes()).hexdigest()[:16]}"
        return NamedController(own.name, identity, own.function, {}, spec)
    raise UsageError(f"unknown controller {spec!r}; known: {', '.join(_HOMES)}, or your own as {FORMS}")


def timeless(preset: Mapping[str, Any]) -> dict[str, Any]:
    """A preset for runs over benchmarks: without a budget of seconds, which other episodes and the cache would use up.

    >>> timeless({"candidates": {"n": 24, "seconds": 5.0}})
    {'candidates': {'n': 24, 'seconds': 0.0}}
    """
    candidates = preset.get("candidates", {})
    return {**preset, "candidates": {**candidates, "seconds": 0.0}} if candidates.get("seconds") else dict(preset)


def with_preset(named: NamedController, config: Config | None, *, timed: bool = True) -> Config:
    """The controller's preset, and over it what was set in ``config``; not ``timed``: the preset is ``timeless``."""
    if config is not None and not isinstance(config, Config):
        raise UsageError(f"config is a {type(config).__name__}; pass nl2sql.Config(react=nl2sql.ReactConfig(...))")
    data: dict[str, Any] = {}
    merge(data, dict(named.preset) if timed else timeless(named.preset))
    merge(data, config.model_dump(exclude_unset=True) if config else {})
    return build_config(data)


def episode_model(model: Model, question: Question, controller: str) -> Model:
    """The model as one episode sees it: a scripted model gives each episode its own cursors."""
    fork = getattr(model, "for_episode", None)
    own: Model = fork(question.text, controller) if fork else model
    return own


def check_model_abilities(model: Model, config: Config) -> None:
    """Raises ModelError before a run that needs what the model cannot do: grammars, native tool calls."""
    check = getattr(model, "check", None)
    grammar, tools = config.constrain not in ("none", "auto"), config.react.native_tools
    grammar = grammar or config.vizql.constrain == "schema"
    if check is not None and (grammar or tools):
        check(grammar=grammar, tools=tools)


class Meter:
    """A model as one episode sees it: counts what is asked of it, whether or not the controller does.

    charge: counts what the episode had this model, or another one, compute; by default into ``usage``.
    """

    def __init__(self, model: Model, charge: Callable[[Usage], None] | None = None) -> None:
        self._model, self._lock, self.usage = model, threading.Lock(), Usage()
        self.charge = charge or self._charge

    def generate(self, messages: Sequence[Message], **options: Any) -> list[Completion]:
        completions = self._model.generate(messages, **options)
        self.charge(sum((completion.usage for completion in completions), Usage()))
        return completions

    def _charge(self, usage: Usage) -> None:
        with self._lock:
            self.usage = self.usage + usage

    def adapter_at(self, scale: float) -> Meter:
        """The same with the model's LoRA adapter at ``scale``, counted by this one; itself, where it cannot change."""
        scaled = adapter_at(self._model, scale)
        return self if scaled is self._model else Meter(scaled, self.charge)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def answer(
    question: str | Question,
    database: Database,
    model: Model,
    controller: str | Callable[..., Episode] | NamedController = "react",
    config: Config | None = None,
    *,
    tools: Mapping[str, Tool] | None = None,
    gates: Mapping[str, Gate] | None = None,
    corpus: Any = None,
    sink: EventSink = no_sink,
    cancel: threading.Event | None = None,
) -> Episode:
    """One question answered by any controller, with its usage counted: what ``ask``, MCP and notebooks call.

    controller: a name, any callable ``(Question, Resources, Config) -> Episode``, or one that ``get_controller`` gave.
    config: what is set in it goes before the controller's preset. corpus: fixes, in place of ``config.repair.corpus``.
    What goes wrong on the way is recorded in ``Episode.error``, a user's own exception too; what was asked wrongly
    (an empty question, an unknown config) raises UsageError.
    """
    if not hasattr(database, "run"):
        raise UsageError(
            f"database is {one_line(repr(database), 100)}; pass nl2sql.SqliteDatabase(FILE) or another Database"
        )
    if not hasattr(model, "generate"):
        raise UsageError(f"model is {one_line(repr(model), 100)}; pass nl2sql.load_model(NAME) or another Model")
    named = controller if isinstance(controller, NamedController) else get_controller(controller)
    asked = question if isinstance(question, Question) else Question(question, db_id=database.name, split=USER)
    mine = episode_model(model, asked, named.name)
    resources = Resources(mine, database, tools or {}, gates or {}, corpus=corpus, sink=sink, cancel=cancel)
    named = replace(named, run=reusing(named.run))
    return run_episode(named, asked, lambda: resources, with_preset(named, config), raising=(UsageError,))


def answer_verified(
    question: str,
    database: Database,
    controller: NamedController,
    config: Config,
    *,
    sink: EventSink = no_sink,
) -> Episode | None:
    """The answer of a verified query, before any model is loaded; None where a controller has to be asked.

    config: as ``with_preset`` gives it. Raises UsageError for a broken file of verified queries.
    """
    started = time.perf_counter()
    asked = Question(question, db_id=database.name, split=USER)
    episode, _ = verified_answer(asked, database, config, sink)
    if episode is not None:
        episode.controller, episode.seconds = controller.name, time.perf_counter() - started
        suspect(episode, database, config)
    return episode


def run_episode(
    controller: NamedController,
    question: Question,
    resources: Callable[[], Resources],
    config: Config,
    *,
    raising: tuple[type[Nl2SqlError], ...] = (),
) -> Episode:
    """One episode; whatever goes wrong, in opening its resources too, becomes an Episode with an attributed error.

    raising: errors that are raised instead.
    """
    started = time.perf_counter()
    meter: Meter | None = None
    try:
        opened = resources()
        meter = Meter(opened.model)
        asked, given = before_user(question, replace(opened, model=meter), config)
        episode = controller.run(asked, given, fitted(config, opened))
        if not isinstance(episode, Episode):
            raise TypeError(f"a controller returns an Episode, not {type(episode).__name__}")
        in_shape(episode)
        episode.question, episode.controller = question, controller.name  # whatever a loop made of the question's text
        episode.usage = meter.usage
        episode.seconds = episode.seconds or time.perf_counter() - started
        episode.finish = episode.finish or ("answered" if episode.sql else "empty")
        execute(episode, opened.database, config)
        suspect(episode, opened.database, config)
        return episode
    except EpisodeError as broken:
        text = str(broken)
    except Nl2SqlError as error:
        if isinstance(error, raising):
            raise
        where = next((name for kind, name in _WHERE if isinstance(error, kind)), "benchmark")
        text = f"{where}: {error}"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - users' code: attribute and record, the run goes on
        text = f"controller: {type(error).__name__}: {error}"
    usage, seconds = meter.usage if meter else Usage(), time.perf_counter() - started
    return Episode(question, controller.name, error=text, finish="error", usage=usage, seconds=seconds)


def execute(episode: Episode, database: Database, config: Config) -> None:
    """Execute the SQL of a controller that gave no result along, as a packaged one does with its answer."""
    if episode.error or not episode.sql or episode.columns:
        return
    result = run_bounded(database, episode.sql, config.execution)
    episode.columns, episode.rows = result.columns, result.rows
    episode.flags |= cut_rows(result)
    if not result.success:
        episode.error = f"database: {result.error}"


def suspect(episode: Episode, database: Database, config: Config) -> None:
    """Note what is suspicious about an answer that ran, as ``flags["suspicions"]``."""
    if episode.error or not episode.sql:
        return
    from nl2sql.agents.checks.suspicions import cut_result, low_confidence, suspicions

    result = RunResult(True, columns=episode.columns, rows=episode.rows)
    warnings = suspicions(episode.question.text, episode.sql, database, result, config.suspicions)
    warnings += low_confidence(episode.flags.get("confidence"), config.suspicions.low_confidence)
    if warnings := [*warnings, *cut_result(episode.flags.get("rows_cut"))]:
        episode.flags["suspicions"] = [suspicion._asdict() for suspicion in warnings]


_WHERE = ((Cancelled, "model"), (ModelError, "model"), (UsageError, "question"), (DatabaseError, "database"))


# ------------------------------------------------------------------------------ a user who is asked
# The user is scripted and answers with the benchmark's own record, SQL included, which is more than
# BIRD-Interact's user, a model, may say. Not covered: that model, bird-coins, a second question.

KEY = "user"  # of a question's meta
ASKED = "asked_user"  # the episode's flag: how many questions it put to the user
CANNOT_SAY = "I cannot say."
MOST_CHARS = 400  # of a question or an answer: BIRD-Interact's bound


def before_user(question: Question, resources: Resources, config: Config) -> tuple[Question, Resources]:
    """The question as a simulated user asks it, and the resources with ``ask_user``; else both as
    they are.

    With ``user.simulated`` a question that has an ambiguous form (``meta["user"]``: ``question``,
    ``evidence``, ``description``, pairs of a term and what it means, and ``points``, how many of these
    have to be cleared up) is asked in that form. An answer goes below the question, so that every
    prompt after it shows it. A controller without tools answers the ambiguous question as it is.
    """
    hidden = question.meta.get(KEY)
    if not (hidden and config.user.simulated):
        return question, resources
    asked = replace(question, text=hidden["question"], evidence=hidden["evidence"])
    return asked, replace(resources, tools={**resources.tools, "ask_user": ask_user})


def ask_user(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the user what one term of the question means, before generate_sql."""
    task = state.task
    hidden, question = task.question.meta[KEY], str(args.get("question") or "")[:MOST_CHARS]
    left = hidden["points"] + task.config.user.patience - task.flags.get(ASKED, 0)
    if left <= 0:
        return {"error": "the user answers no further question"}
    task.count(ASKED)
    answer = meaning(question, hidden["says"])[:MOST_CHARS]
    if answer != CANNOT_SAY:
        task.nlq += f"\n{answer}"
    return {"answer": answer, "questions_left": left - 1}


ask_user.parameters = {  # type: ignore[attr-defined]
    "type": "object",
    "properties": {"question": {"type": "string"}},
    "required": ["question"],
}


def meaning(question: str, definitions: Sequence[Sequence[str]]) -> str:
    """What the term means of which ``question`` has most words, at least half; or CANNOT_SAY.

    definitions: pairs of a term and what it means. Of equal shares the longer term counts.

    >>> told = [["big spender", "a customer whose orders come to more than 100"]]
    >>> meaning("What do you mean by big spenders?", told)
    "By 'big spender' I mean: a customer whose orders come to more than 100"
    >>> meaning("Which city?", told)
    'I cannot say.'
    """
    asked = {stem(word) for word in words(question)}
    best, answer = (0.5, 0), CANNOT_SAY
    for term, meant in definitions:
        named = {stem(word) for word in words(term)}
        share = len(named & asked) / max(1, len(named))
        if (share, len(named)) > best:
            best, answer = (share, len(named)), f"By {term!r} I mean: {meant}"
    return answer
