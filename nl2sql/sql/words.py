"""The words in a name, a sentence or a statement.

>>> words("customer_name"), statement_words("SELECT 'a b' FROM t", "sqlite")
(['customer', 'name'], ['SELECT', 'FROM', 't'])
"""

from __future__ import annotations

import re

from nl2sql.sql.bounds import past_limits

QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|(?<!\w)'[^']*'(?!\w)|(?<!\w)‘[^’]*’(?!\w)")  # in a question
_PIECE = re.compile(r"[^\W_]+")
_PLURALS = (("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("s", ""))
_SUFFIXES = ("ations", "ation", "ings", "ing", "ments", "ment", "ers", "er", "ors", "or", "ed", "e")
_JOINT = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=\D)(?=\d)|(?<=\d)(?=\D)")


def words(text: str) -> list[str]:
    """Lower-case words of an identifier or sentence; snake_case and camelCase are taken apart."""
    return [word.lower() for piece in _PIECE.findall(text) for word in _JOINT.split(piece)]


def singular(word: str) -> str:
    """The form that one and many share; at least two letters stay. No dictionary: it need not be a word.

    >>> singular("cities"), singular("movies"), singular("movie"), singular("status")
    ('city', 'movy', 'movy', 'status')
    """
    if len(word) > 4 and word.endswith("ie"):
        return word[:-2] + "y"
    for ending, instead in _PLURALS:
        if word.endswith(ending) and len(word) - len(ending) >= 2 and not word.endswith(("ss", "us", "is")):
            return word[: len(word) - len(ending)] + instead
    return word


def is_plural(word: str) -> bool:
    return word.endswith("s") and singular(word) != word


def stem(word: str) -> str:
    """The singular without one common suffix; at least three letters stay."""
    word = singular(word)
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word[: -len(suffix)]
            break
    return word.replace("z", "s")  # organization, organisation


def letter_words(name: str) -> list[str]:
    """``words`` without the numbers."""
    return [word for word in words(name) if word.isalpha()]


def statement_words(sql: str, dialect: str) -> list[str]:
    """Words and signs of a statement without texts and comments; what does not lex is split at its words.

    A text past the limits (``sql.bounds``) is one word.
    """
    if past_limits(sql):
        return [sql]
    import sqlglot
    from sqlglot.errors import SqlglotError
    from sqlglot.tokens import TokenType

    try:
        return [t.text for t in sqlglot.tokenize(sql, dialect=dialect) if t.token_type is not TokenType.STRING]
    except (SqlglotError, ValueError):
        return re.findall(r"\w+|[^\s\w]", sql)
