"""A simulated user: a benchmark's ambiguous question, and the action ``ask_user`` to clear it up.

>>> told = [["big spender", "a customer whose orders come to more than 100"]]
>>> meaning("What do you mean by big spenders?", told)
"By 'big spender' I mean: a customer whose orders come to more than 100"
>>> meaning("Which city?", told)
'I cannot say.'

With ``user.simulated`` a question that has an ambiguous form (``meta["user"]``: ``question``,
``evidence``, ``says``, pairs of a term and what it means, and ``points``, how many of these have to
be cleared up) is asked in that form, and a loop is offered ``ask_user``. An answer goes below the
question, so that every prompt after it shows it. A controller without tools answers the ambiguous
question as it is.

The user is scripted and answers with the benchmark's own record, SQL included, which is more than
BIRD-Interact's user, a model, may say. Not covered: that model, bird-coins, a second question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nl2sql.agents.task import State
from nl2sql.config import Config
from nl2sql.interfaces import Question, Resources
from nl2sql.sql.words import stem, words

KEY = "user"  # of a question's meta
ASKED = "asked_user"  # the episode's flag: how many questions it put to the user
CANNOT_SAY = "I cannot say."
MOST_CHARS = 400  # of a question or an answer: BIRD-Interact's bound


def before_user(question: Question, resources: Resources, config: Config) -> tuple[Question, Resources]:
    """The question as a simulated user asks it, and the resources with ``ask_user``; else both as
    they are."""
    told = question.meta.get(KEY)
    if not (told and config.user.simulated):
        return question, resources
    asked = replace(question, text=told["question"], evidence=told["evidence"])
    return asked, replace(resources, tools={**resources.tools, "ask_user": ask_user})


def ask_user(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the user what one term of the question means, before generate_sql."""
    task = state.task
    told, question = task.question.meta[KEY], str(args.get("question") or "")[:MOST_CHARS]
    left = told["points"] + task.config.user.patience - task.flags.get(ASKED, 0)
    if left <= 0:
        return {"error": "the user answers no further question"}
    task.count(ASKED)
    answer = meaning(question, told["says"])[:MOST_CHARS]
    if answer != CANNOT_SAY:
        task.nlq += f"\n{answer}"
    return {"answer": answer, "questions_left": left - 1}


ask_user.parameters = {  # type: ignore[attr-defined]
    "type": "object",
    "properties": {"question": {"type": "string"}},
    "required": ["question"],
}


def meaning(question: str, says: Sequence[Sequence[str]]) -> str:
    """What the term means of which ``question`` has most words, at least half; or CANNOT_SAY.

    says: pairs of a term and what it means. Of equal shares the longer term counts.
    """
    asked = {stem(word) for word in words(question)}
    best, answer = (0.5, 0), CANNOT_SAY
    for term, meant in says:
        named = {stem(word) for word in words(term)}
        share = len(named & asked) / max(1, len(named))
        if (share, len(named)) > best:
            best, answer = (share, len(named)), f"By {term!r} I mean: {meant}"
    return answer
