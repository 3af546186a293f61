"""EM for many pairs: ``exact_match``, with a look at keywords and literals first, so that few pairs are parsed."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

from nl2sql.eval.exact import exact_match

TOKEN = re.compile(  # what every writing of a query shares; DESC only where it can be nothing but a direction
    r"(?P<text>'(?:[^']|'')*')|(?P<name>\"[^\"]*\"|`[^`]*`|\[[^\]]*\])"
    r"|(?<![\w.])(?P<number>\d+(?:\.\d+)?)(?![\w.])"
    r"|\b(?:(?P<word>select|where|group|having|union|intersect|except|limit|distinct|between|like|exists|order"
    r"|and|or|(?:count|sum|avg|min|max)(?=\s?\()"
    r"|(?<=[\w)]\s)(?<!\bby\s)(?<!select\s)(?<!distinct\s)desc(?=\s*(?:[,;)]|$|limit\b)))\b"
    r"|(?<!distinct )(?:from|join) [\"`\[]?(?P<table>\w+))",
    re.IGNORECASE,
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
    return exact_match(gold, predicted)


@lru_cache(maxsize=8192)
def _written(sql: str) -> tuple[Counter[str], Counter[str] | None]:
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
    return Counter(words), None if unclear else Counter(texts)
