"""The interfaces every room leans on: small Protocols and frozen records; nothing inherits.

A controller turns a ``Question`` into an ``Episode`` and touches the world only through its ``Resources``
(model, database, tools, event sink), so that any controller can be replayed from a scripted model.
Models are blocking and thread-safe: many episodes call ``generate`` at once, and the back end batches them.

This module imports neither a model library nor a database driver.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from nl2sql.agents.record import Episode
    from nl2sql.config import Config
    from nl2sql.databases.schema import Schema

# {"role": "system" | "user" | "assistant", "content": text}; with tools also "tool_calls" and role "tool", as OpenAI's
Message: TypeAlias = Mapping[str, Any]
ToolDefinition: TypeAlias = Mapping[str, Any]  # {"type": "function", "function": {name, description, parameters}}
Row: TypeAlias = tuple[Any, ...]

# --------------------------------------------------------------------------------------------------- models

DEFAULT_MODEL = "qwen2.5-coder-1.5b"  # where no other is named


@dataclass(frozen=True)
class Sampling:
    """The settings of sampling. ``None`` in place of a ``Sampling`` means greedy decoding."""

    temperature: float = 0.2
    top_p: float = 0.9


@dataclass(frozen=True)
class Grammar:
    """A constraint on the generated text, kept as text so that any back end can translate it."""

    kind: Literal["lark", "json_schema"]
    text: str


@dataclass(frozen=True)
class Usage:
    """The cost of model calls. Sums with ``+``.

    ``prompt_tokens`` counts every token the model conditioned on; ``prefill_tokens`` those that were really
    computed (the rest, ``reused_tokens``, came from a cache of keys and values). Each of ``n`` completions counts
    its own prompt. ``seconds`` is wall time waited for the model; where the back end knows them, ``queue_seconds``
    of it passed before the first token was computed, and ``compute_seconds`` is this call's share of the forward
    passes it was part of, by tokens. ``cached_calls`` were answered from the response cache, at no cost. ``cost`` is
    money, in the currency of the prices that the model was given (0 without prices).
    """

    prompt_tokens: int = 0
    prefill_tokens: int = 0
    completion_tokens: int = 0
    model_calls: int = 0
    seconds: float = 0.0
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0
    cached_calls: int = 0
    cost: float = 0.0

    @property
    def reused_tokens(self) -> int:
        return self.prompt_tokens - self.prefill_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def to_dict(self) -> dict[str, float | int]:
        fields = {name: round(value, 6) if isinstance(value, float) else value for name, value in vars(self).items()}
        return fields | {"reused_tokens": self.reused_tokens}


@dataclass(frozen=True)
class Completion:
    """One generated continuation. A stop string is never part of ``text``."""

    text: str
    finish_reason: Literal["stop", "length", "cancelled"]
    usage: Usage = Usage()
    logprob: float | None = None  # sum over the completion's tokens, where the back end knows it
    thinking: str = ""  # what the model thought before it, where the back end tells it apart; no part of ``text``

    @property
    def seconds(self) -> float:
        return self.usage.seconds


@runtime_checkable
class Model(Protocol):
    """A text generator. Thread-safe: many episodes call it at once and the back end batches them.

    Optional attributes are used where a model has them: ``batch_size`` (how many episodes run at once),
    ``for_episode(question_text, controller) -> Model`` (a view for one episode, as a scripted model needs),
    ``check(*, grammar, tools)``, which raises ModelError before a run that needs what the model cannot do,
    ``takes(kind) -> bool`` (a kind of grammar), ``adapter_at(scale) -> Model`` and ``charge(usage)``, which counts what
    another model computed for its episode.
    """

    name: str
    context_window: int  # tokens, prompt and completion together

    def generate(
        self,
        messages: Sequence[Message],
        *,
        prefill: str = "",
        stop: Sequence[str] = (),
        max_new_tokens: int,
        grammar: Grammar | None = None,
        sampling: Sampling | None = None,
        n: int = 1,
        seed: int | None = None,
        cancel: threading.Event | None = None,
        tools: Sequence[ToolDefinition] = (),
    ) -> list[Completion]:
        """Continue the open assistant turn ``prefill`` after ``messages``; ``n`` completions.

        ``tools`` are offered in the back end's native form; it is passed only when there are any. A call is part of
        the text: as the model wrote it, or ``<tool_call>JSON</tool_call>`` where a server gives it as a field.
        Raises ModelError when the back end fails and Cancelled when ``cancel`` is set meanwhile.
        """
        ...

    def count_tokens(self, messages: Sequence[Message], prefill: str = "", tools: Sequence[ToolDefinition] = ()) -> int:
        """Prompt tokens that ``generate`` would condition on; never fewer (a back end that cannot count estimates)."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a manifest records: name, revision (content hash), device, dtype, library versions."""
        ...

    def close(self) -> None: ...


# ------------------------------------------------------------------------------------------------ databases


@dataclass(frozen=True)
class RunResult:
    """The result of executing one statement. Failure is data: ``success`` is False and ``error`` says why.

    ``error_kind`` is one of: syntax, unknown_table, unknown_column, ambiguous_column, denied (the sandbox
    forbids it), multi_statement, empty, timeout, too_many_rows, memory, too_large, worker_died, other; of a data
    service, its own code (``vizql.service``).
    """

    success: bool
    columns: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    error: str | None = None
    error_kind: str | None = None
    truncated: bool = False  # True: more rows existed than max_rows and ``rows`` holds the first of them
    seconds: float = 0.0


@runtime_checkable
class Database(Protocol):
    """A database that questions are asked of. SQL is executed read-only, in bounded time and memory.

    One optional attribute is used where a database of dialect ``sqlite`` has it: ``path``, its file. Scoring then
    executes statements in batches, and can make replicas of it for TS (``databases.sqlite.files.sqlite_file``).
    """

    dialect: str  # a sqlglot dialect name
    name: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 of schema and rows (not of file bytes)."""
        ...

    def schema(self) -> Schema: ...

    def sample(self, table: str, n: int = 3) -> list[dict[str, Any]]:
        """The first ``n`` rows of a table as dicts. Raises UsageError for an unknown table."""
        ...

    def explain(self, sql: str, *, timeout_s: float = 5.0) -> RunResult: ...

    def run(self, sql: str, *, timeout_s: float = 30.0, max_rows: int = 10_000) -> RunResult: ...

    def close(self) -> None: ...


# ------------------------------------------------------------------------------------- questions and answers


USER = "user"  # the split of a question that somebody asked, and no benchmark holds


@dataclass(frozen=True)
class Turn:
    """One exchange of a conversation, as a session keeps it: the specification's five fields."""

    user_query: str
    resolved_query: str = ""  # the question that the controller got; empty: the user's own
    sql: str = ""
    results_summary: str = ""  # "10 rows, columns: a, b, c"; never a value of the database
    timestamp: str = ""  # ISO 8601, UTC


@dataclass(frozen=True)
class Question:
    """One question over one database. ``gold`` holds every accepted gold query (the first is the reference)."""

    text: str
    db_id: str = ""
    id: str = ""
    evidence: str = ""
    history: tuple[Turn, ...] = ()  # earlier turns of a dialogue, oldest first
    previous_sql: str = ""  # the query that a follow-up question speaks of, where it could not be made whole
    gold: tuple[str, ...] = ()
    difficulty: str | None = None  # easy | medium | hard | extra (Spider's hardness)
    split: str = ""  # of its benchmark; USER outside of any
    meta: Mapping[str, Any] = field(default_factory=dict)  # benchmark flags, e.g. {"gold_error": True}


class Benchmark(Protocol):
    """Questions with golds over databases."""

    name: str
    questions: Sequence[Question]
    splits: Mapping[str, Sequence[str]]  # split name -> question ids

    def database(self, db_id: str) -> Database: ...


# ----------------------------------------------------------------------------------- controllers and tools

Observation: TypeAlias = Any  # JSON-serialisable
Tool: TypeAlias = Callable[[Any, Mapping[str, Any]], Observation]  # (state, args) -> observation
Gate: TypeAlias = Callable[[Any, str, Mapping[str, Any]], "str | None"]  # (state, action, args) -> why it is blocked
EventSink: TypeAlias = Callable[[Mapping[str, Any]], None]


def no_sink(event: Mapping[str, Any]) -> None:
    """The default event sink: drops the event."""


@dataclass(frozen=True)
class Resources:
    """All that a controller may touch. ``tools`` and ``gates`` add to the loop's own, or replace them by name."""

    model: Model
    database: Database
    tools: Mapping[str, Tool] = field(default_factory=dict)
    gates: Mapping[str, Gate] = field(default_factory=dict)
    # What the config names is opened where nobody hands it in (agents/resources.py): a corpus of fixes, and a pool of
    # solved examples.
    corpus: Any = None
    examples: Any = None
    sink: EventSink = no_sink
    cancel: threading.Event | None = None

    def charge(self, usage: Usage) -> None:
        """Count to ``model`` what another model computed for the episode; nothing where ``model`` counts nothing."""
        if counted := getattr(self.model, "charge", None):
            counted(usage)


def adapter_at(model: Model, scale: float) -> Model:
    """``model`` with its LoRA adapter at ``scale`` of its strength; itself, where it has none or cannot change it."""
    change = getattr(model, "adapter_at", None)
    scaled: Model = change(scale) if change else model
    return scaled


Controller: TypeAlias = "Callable[[Question, Resources, Config], Episode]"
Questions: TypeAlias = Iterable[Question]


# ------------------------------------------------------------------------------------------------- identity


def content_key(*parts: Any) -> str:
    """SHA-256 of the parts' sorted JSON, 24 hex digits: what is the same has the same key."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def question_key(question: Question) -> str:
    """The key of all that a question says; golds and benchmark flags are left out."""
    earlier = [[turn.user_query, turn.resolved_query, turn.sql] for turn in question.history]
    previous = [question.previous_sql] if question.previous_sql else []
    return content_key(question.id, question.db_id, question.text, question.evidence, earlier, *previous)
