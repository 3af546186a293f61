"""The words in a name, a sentence or a statement, and numbers in a question, however they are written.

>>> words("customer_name"), statement_words("SELECT 'a b' FROM t", "sqlite")
(['customer', 'name'], ['SELECT', 'FROM', 't'])

>>> as_digits("the top twenty-five of 1,000")
'the top 25 of 1000'
"""

from __future__ import annotations

import re

from nl2sql.sql.parse import past_limits

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


# ------------------------------------------------------------------------------------------ numbers

UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
WORDS = {word: value for value, word in enumerate(UNITS)} | {word: 10 * n for n, word in enumerate(TENS, 2)}
SCALES = {"hundred": 100, "thousand": 1000}
OTHERS = {"once": 1, "twice": 2}

_GROUPED = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_UNIT = rf"(?:[ -]({'|'.join(UNITS[1:10])}))"
_TEN = re.compile(rf"\b(?:(twenty){_UNIT}|({'|'.join(TENS[1:])}){_UNIT}?)\b", re.IGNORECASE)


def as_digits(text: str) -> str:
    """The text with ``1,000``, and words for 21 to 99, as plain digits; words up to twenty stay as they are."""
    text = _GROUPED.sub(lambda found: found.group().replace(",", ""), text)
    return _TEN.sub(lambda found: str(sum(WORDS[word.lower()] for word in found.groups() if word)), text)
