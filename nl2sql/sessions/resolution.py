"""A follow-up question made whole, by the strategy that ``session.resolve`` names.

>>> from nl2sql.interfaces import Turn
>>> joined_questions("What about Norway?", [Turn("How many customers are there in Germany?")])
'How many customers are there in Germany? What about Norway?'

- ``beside``: any question goes to the controller as it is, beside the previous SQL, and the model decides whether it
  follows on.
- ``rules``: only what rules take for a follow-up does (``detection``), for a model that cannot decide.
- ``auto``: ``rules`` for such a model and for one with an adapter, ``beside`` for all others.
- ``rewrite``: the model writes the question whole, by the specification's prompt.
- ``concat``: behind the earlier questions. - ``none``: as asked.
- ``oracle``: the benchmark's own text (``meta["standalone"]``).

A follow-up that says another time and nothing else ("What about Q4?") is answered by the previous SQL in that time
(``periods``), without a call, by ``beside``, ``rules`` and ``rewrite``; one of a few words by the previous SQL edited
(``edits``), by ``beside`` and ``rules``.

A rewritten question keeps every number, quoted value, column and table word that the user wrote, and is not the
previous question again. Where none can be had the question is handed on as asked, with the previous SQL in
``Question.previous_sql``; ``Resolution.fallback`` then says why.

>>> from nl2sql.databases.schema import Column, Schema, Table
>>> schema = Schema((Table("customers", (Column("city"),)),))
>>> lost_words("and by city, above 50?", "How many customers are there above 50?", schema)
['city']
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.agents.record import call_record
from nl2sql.config import Config
from nl2sql.databases.schema import Schema
from nl2sql.databases.validation import validate_sql
from nl2sql.errors import ModelError
from nl2sql.interfaces import Model, Question, Resources, Turn
from nl2sql.machine import from_yaml
from nl2sql.models.embedded import embedded_models
from nl2sql.sessions.detection import Evidence, evidence_of, schema_stems
from nl2sql.sessions.edits import edited
from nl2sql.sessions.periods import in_period, period_of, said_again
from nl2sql.sql.text import QUOTED, words

# ---------------------------------------------------------- what a rewritten question must not lose
# Not covered: comparisons ("more than"), whose words have too many equals, and negations.

_NUMBER = re.compile(r"(?<![^\W_])[A-Za-z]{0,3}\d+(?:[.,:/-]\d+)*")


def lost_words(asked: str, resolved: str, schema: Schema) -> list[str]:
    """The numbers, quoted values and schema words of ``asked`` that ``resolved`` lacks, in their order.

    Words are compared by their stems; a number also counts where it is part of a longer one ("2023" in "2023-05-01").
    """
    kept_text, kept_stems = resolved.casefold(), {stem(word) for word in words(resolved)}
    named = frozenset().union(*schema_stems(schema))
    lost = [number for number in _NUMBER.findall(asked) if number.casefold() not in kept_text]
    quoted = [text[1:-1] for text in QUOTED.findall(asked)]
    lost += [value for value in quoted if value.casefold() not in kept_text]
    plain = [word for word in words(asked) if word not in STOP_WORDS and not word.isdigit()]
    lost += [word for word in plain if stem(word) in named - kept_stems]
    return list(dict.fromkeys(lost))


# ----------------------------------------------------------------------------------- the strategies

logger = logging.getLogger(__name__)

ASKED = "Q:"  # before a question in the quoted exchanges


@dataclass(frozen=True)
class Resolution:
    """What became of a question: ``question`` is handed on, ``calls`` are the model calls that it took.

    strategy: what was done, "none" for a question that is no follow-up. fallback: why the question was handed on as
    asked, with the previous SQL; empty where it was not. edited_sql: the query in another time, or edited.
    evidence: what rules went by; none where the model decided.
    """

    question: Question
    is_followup: bool = False
    evidence: tuple[Evidence, ...] = ()
    strategy: str = "none"
    fallback: str = ""
    edited_sql: str = ""
    calls: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    @property
    def resolved_query(self) -> str:
        return self.question.text

    def flags(self, asked: Question) -> dict[str, Any]:
        """``Episode.flags["session"]`` of the question as it was ``asked``."""
        meta = asked.meta
        return {
            "session_id": str(meta.get("session_id") or meta.get("interaction_id") or ""),
            "turn": int(meta.get("turn") or len(asked.history) + 1),
            "is_followup": self.is_followup,
            "resolved_query": self.resolved_query,
            "evidence": [evidence.to_dict() for evidence in self.evidence],
            "strategy": self.strategy,
            "fallback": self.fallback,
            **({"previous_sql": self.question.previous_sql} if self.question.previous_sql else {}),
            **({"edited_sql": self.edited_sql} if self.edited_sql else {}),
        }


def resolve(question: Question, resources: Resources, config: Config) -> Resolution:
    """What ``question`` means after its history. Never raises for a model that fails: that is a fallback.

    Raises Cancelled where ``resources.cancel`` is set meanwhile.
    """
    standalone = question.meta.get("standalone")
    if not question.history:
        return Resolution(question)
    if config.session.resolve == "oracle" and standalone:
        changed = standalone != question.text
        handed_on = replace(question, text=standalone) if changed else question
        return Resolution(handed_on, changed, strategy="oracle" if changed else "none")
    strategy = strategy_of(config.session.resolve, resources.model)
    if strategy in ("beside", "rules", "rewrite") and (in_time := _in_another_time(question, resources)):
        return in_time
    if strategy == "rewrite":
        return rewritten(question, resources, config)
    evidence = tuple(evidence_of(question.text, question.history, resources.database))
    if not evidence and strategy == "beside":
        return Resolution(replace(question, previous_sql=question.history[-1].sql))
    if not evidence:
        return Resolution(question)
    return BY_RULES[strategy](question, resources, config, evidence)


def strategy_of(setting: str, model: Model) -> str:
    """``setting``, or what ``auto`` is with ``model``: rules for an embedded one that does not see what follows on, or
    whose adapter knows questions that stand alone only."""
    if setting != "auto":
        return setting
    name, _, adapter = str(model.name).partition("+")
    entry = embedded_models().get(name)
    return "beside" if entry is None or (entry.follows_on and not adapter) else "rules"


def _in_another_time(question: Question, resources: Resources) -> Resolution | None:
    """The previous query in the time that ``question`` says; None where it says more, or the query has no time."""
    last, period = question.history[-1], period_of(question.text)
    sql = in_period(last.sql, period, resources.database) if period else ""
    if not period or not sql or not validate_sql(sql, resources.database.schema(), resources.database)["valid"]:
        return None
    whole = replace(question, text=said_again(last.resolved_query or last.user_query, period), previous_sql=sql)
    evidence = (Evidence("period", period.words),)
    return Resolution(whole, True, evidence, "period", edited_sql=sql)


def joined_questions(text: str, shown: Sequence[Turn]) -> str:
    """The earlier questions and ``text``, oldest first."""
    return " ".join([*(turn.user_query.strip() for turn in shown), text])


def as_asked(question: Question, resources: Resources, config: Config, evidence: tuple[Evidence, ...]) -> Resolution:
    """A follow-up that is recognised and left as it is."""
    return Resolution(question, True, evidence)


def concatenated(
    question: Question, resources: Resources, config: Config, evidence: tuple[Evidence, ...]
) -> Resolution:
    """Strategy concat: the last ``session.shown`` questions before it."""
    text = joined_questions(question.text, question.history[-config.session.shown :])
    return Resolution(replace(question, text=text), True, evidence, "concat")


def rewritten(question: Question, resources: Resources, config: Config) -> Resolution:
    """Strategy rewrite: the specification's prompt, the earlier exchanges quoted in one user message."""
    settings, began = config.session, time.perf_counter()
    fields = {
        "history": "\n".join(_exchange(turn, settings.shows) for turn in question.history[-settings.shown :]),
        "question": question.text,
    }
    messages = [
        {"role": "system", "content": prompts.prompt("resolve_system", config.prompts)},
        {"role": "user", "content": prompts.prompt("resolve_user", config.prompts, **fields)},
    ]
    try:
        [completion] = resources.model.generate(
            messages, stop=("\n",), max_new_tokens=settings.max_tokens, cancel=resources.cancel
        )
    except ModelError as error:
        return fallen_back(question, f"model: {error}")
    calls = (call_record("resolve", messages, completion, round(time.perf_counter() - began, 4)),)
    text = completion.text.strip().removeprefix(ASKED).strip()  # a small model repeats the label
    if _plain(text) == _plain(question.text):
        return Resolution(question, calls=calls)
    if why := _unfit(question, text, resources):
        return fallen_back(question, why, calls)
    return Resolution(replace(question, text=text), True, (), "rewrite", calls=calls)


def _unfit(question: Question, text: str, resources: Resources) -> str:
    """Why a rewritten ``text`` cannot be what was asked; "" where nothing speaks against it."""
    last = question.history[-1]
    if not text:
        return "an empty text"
    if _plain(text) in (_plain(last.user_query), _plain(last.resolved_query)):
        return "the previous question again"
    lost = lost_words(question.text, text, resources.database.schema())
    return f"lost: {', '.join(lost)}" if lost else ""


def _plain(text: str) -> str:
    return " ".join(words(text))


def _exchange(turn: Turn, shows: str) -> str:
    asked = turn.resolved_query if shows == "resolved_query" and turn.resolved_query else turn.user_query
    return f"{ASKED} {asked}\nSQL: {turn.sql}"


_TEXT = re.compile(r"'((?:[^']|'')*)'")
_READS_ON = re.compile(r"(?:and |now )?((?:by|per|for|in|on|at|from|with) .*)", re.IGNORECASE | re.DOTALL)


def said_whole(asked: str, followup: str, before: str, after: str) -> str:
    """An edited query as a question: ``asked`` with the new value for the old one, else with ``followup`` behind it.

    >>> said_whole("How many are in Bern?", "and Oslo?", "SELECT 1 WHERE c = 'Bern'", "SELECT 1 WHERE c = 'Oslo'")
    'How many are in Oslo?'
    >>> said_whole("How many are there?", "by city, please", "SELECT 1", "SELECT 2")
    'How many are there by city, please?'
    """
    old, new = set(_TEXT.findall(before)), set(_TEXT.findall(after))
    if len(old - new) == len(new - old) == 1:
        (was,), (now,) = old - new, new - old
        places = re.findall(rf"(?<!\w){re.escape(was)}(?!\w)", asked, re.IGNORECASE)
        if len(places) == 1:
            return asked.replace(places[0], now)
    if reads_on := _READS_ON.fullmatch(followup.strip(" ?.!")):
        body = asked.rstrip(" ?.!")
        return f"{body} {reads_on[1][0].lower()}{reads_on[1][1:]}{asked[len(body) :]}"
    return f"{asked} {followup}"


def beside_what_is_meant(
    question: Question, resources: Resources, config: Config, evidence: tuple[Evidence, ...]
) -> Resolution:
    """Strategies beside and rules: the SQL of the turn that is meant, edited, or as it is beside the question."""
    turn = turn_meant(question.text, question.history)
    if sql := edited(question.text, turn.sql, resources.database):
        text = said_whole(turn.resolved_query or turn.user_query, question.text, turn.sql, sql)
        whole = replace(question, text=text, previous_sql=sql)
        return Resolution(whole, True, evidence, "edit", edited_sql=sql)
    return Resolution(replace(question, previous_sql=turn.sql), True, evidence, "beside")


def fallen_back(question: Question, why: str, calls: tuple[dict[str, Any], ...] = ()) -> Resolution:
    """The question as it was asked, beside the SQL of the last turn."""
    logger.info("the question %r is handed on as asked: %s", question.text, why)
    beside = replace(question, previous_sql=question.history[-1].sql)
    return Resolution(beside, True, (), "rewrite", why, calls=calls)


Strategy = Callable[[Question, Resources, Config, "tuple[Evidence, ...]"], Resolution]
BY_RULES: dict[str, Strategy] = {
    "none": as_asked,
    "concat": concatenated,
    "beside": beside_what_is_meant,
    "rules": beside_what_is_meant,
    "oracle": as_asked,
}


def turn_meant(question: str, history: Sequence[Turn]) -> Turn:
    """The turn that a follow-up speaks of.

    That is the last turn, unless the question reaches back ("back to the stations", "those low stations again") and
    words of it name a table, column or value of an earlier turn's query that the last one's lacks.
    """
    sentence = f" {' '.join(words(question))} "
    back = any(f" {phrase} " in sentence for phrase in cue_words()["behind_the_last"])
    asked = _stems_of(question)
    scores = [2 * len(asked & _stems_of(turn.sql)) + len(asked & _stems_of(turn.user_query)) for turn in history]
    if not back or scores[-1] >= max(scores):
        return history[-1]
    return history[max(range(len(history)), key=lambda at: (scores[at], at))]


@cache
def cue_words() -> dict[str, list[str]]:
    """The packaged lists of words, read once."""
    text = files("nl2sql.sessions").joinpath("cues.yaml").read_text(encoding="utf-8")
    return {name: list(map(str, phrases)) for name, phrases in from_yaml(text).items()}


def _stems_of(text: str) -> set[str]:
    return {stem(word) for word in words(text) if word not in STOP_WORDS}
