"""An edited query as a question: the previous question with the new value in it, or what the question adapter says.

>>> with_new_values("How many are in Bern?", "SELECT 1 WHERE c = 'Bern'", "SELECT 1 WHERE c = 'Oslo'")
'How many are in Oslo?'

Where an edit does nothing but replace values, and the previous question holds the old ones, it is that question again
with the new ones in their places: nothing that the user said is lost, and no model is needed. Anything else is said by
the adapter that was trained to say queries (``agents.question_model``).
"""

from __future__ import annotations

import re
from functools import partial

from nl2sql.agents.question_model import question_model
from nl2sql.config import Config
from nl2sql.errors import ModelError
from nl2sql.interfaces import Completion, Resources
from nl2sql.sql.same import normalise_sql
from nl2sql.sql.text import tokens


def with_new_values(question: str, before: str, after: str) -> str:
    """``question`` with the values of ``after`` for those of ``before``; "" where the two queries differ otherwise, or
    where ``question`` does not hold an old value exactly once."""
    old, new = (tokens(normalise_sql(sql)) or [] for sql in (before, after))
    if len(old) != len(new) or [t.token_type for t in old] != [t.token_type for t in new]:
        return ""
    changed = [(a.text, b.text) for a, b in zip(old, new, strict=True) if a.text != b.text]
    values = {t.text for t in old if t.token_type.name in ("STRING", "NUMBER")}
    for was, now in dict.fromkeys(changed):
        place = re.compile(rf"(?<!\w){re.escape(was)}(?!\w)", re.IGNORECASE)
        if was not in values or len(place.findall(question)) != 1:
            return ""
        question = place.sub(lambda _, text=now: text, question)  # type: ignore[misc]
    return question if changed else ""


def said_by_adapter(sql: str, resources: Resources, config: Config) -> Completion:
    """``sql`` in words; charged to the episode's meter. Raises ModelError, and UsageError for settings without one."""
    opened = resources.question_model or partial(question_model, config.candidates, resources.model)
    completion: Completion = opened().say(sql, config.session.max_tokens, config.prompts)
    if charge := getattr(resources.model, "charge", None):
        charge(completion.usage)
    if not completion.text:
        raise ModelError("the question model said nothing")
    return completion
