"""EM for many pairs: ``exact_match``, with a look at keywords and literals first, so that few pairs are parsed."""

from __future__ import annotations

import re
from functools import lru_cache

from nl2sql.sql.same import exact_match

TOKEN = re.compile(  # what every writing of a query shares; DESC only where it can be nothing but a direction
    r"(?P<text>'(?:[^']|'')*')|(?P<name>\"[^\"]*\"|`[^`]*`|\[[^\]]*\])"
    r"|(?<![\w.])(?P<number>\d+(?:\.\d+)?)(?![\w.])"
    r"|\b(?:(?P<word>select|where|group|having|union|intersect|except|limit|distinct|between|like|exists|order"
    r"|and|or|(?:count|sum|avg|min|max)(?=\s?\()"
    r"|(?<=[\w)]\s)(?<!\bby\s)(?<!select\s)(?<!distinct\s)desc(?=\s*(?:[,;)]|$|limit\b)))\b"
    r"|(?<!distinct )(?:from|join) [\"`\[]?(?P<table>\w+))",
    re.IGNORECASE,
)


TEXT = re.compile(r"'(?:[^']|'')*'")
QUOTED = re.compile(r'"[^"]*"')
PIECE = re.compile(r"\w+|[^\w\s]")
VARYING = ("as", "inner", "outer", "asc", "isnull", "notnull", "offset", "true", "false")
ENDS = (")", '"', "'", "`", "]")  # what an alias may follow
NO_ALIAS_AFTER = frozenset(
    "select distinct all from join where and or not on by having in like between union except intersect".split()  # noqa: SIM905
)


def same_text(gold: str, predicted: str) -> bool:
    """``exact_match(gold, predicted)``."""
    if gold == predicted:
        return True
    if any(mark in sql for sql in (gold, predicted) for mark in ("--", "/*")):
        return exact_match(gold, predicted)
    words, texts = _written(gold)
    other_words, other_texts = _written(predicted)
    if words != other_words or (texts is not None and other_texts is not None and texts != other_texts):
        return False
    (names, aliases), (other_names, other_aliases) = _names(gold), _names(predicted)
    if names - other_names - aliases or other_names - names - other_aliases:
        return False
    return exact_match(gold, predicted)


@lru_cache(maxsize=8192)
def _names(sql: str) -> tuple[frozenset[str], frozenset[str]]:
    """(all words outside strings, those that may be an alias or otherwise have another writing)."""
    sql = TEXT.sub("''", sql.lower())
    quoted = {word for text in QUOTED.findall(sql) for word in re.findall(r"\w+", text)}  # a name, or a string
    names, may_vary = set(quoted), quoted.union(VARYING)
    previous = ""
    for piece in PIECE.findall(sql):
        if piece == "(":
            may_vary.add(previous)  # functions have synonyms
        elif piece[0] == "_" or piece[0].isalpha():
            names.add(piece)
            if previous in ENDS or (previous.isidentifier() and previous not in NO_ALIAS_AFTER):
                may_vary.add(piece)
        previous = piece
    return frozenset(names), frozenset(may_vary)


@lru_cache(maxsize=8192)
def _written(sql: str) -> tuple[list[str], list[str] | None]:
    """(keywords, numbers and tables, strings); None where double quotes may stand for a name or a string."""
    words: list[str] = []
    texts: list[str] = []
    unclear = False
    for text, name, number, word, table in TOKEN.findall(" ".join(sql.split())):
        unclear = unclear or name.startswith('"')
        if text:
            texts.append(text)
        elif not name:
            words.append(number or (word or f"table {table}").lower())
    return sorted(words), None if unclear else sorted(texts)
