"""Does a question lean on an earlier one? A linear model of its wording decides; no language model is asked.

>>> from nl2sql.databases.schema import Column, Schema, Table
>>> schema = Schema((Table("customers", (Column("city"), Column("country"))),))
>>> [sign.text for sign in leanings_of("What about Norway?", schema)]
['What about']
>>> leanings_of("What about the number of customers in Norway?", schema)
[]

The words and pairs of words of the sentence are weighed. A word that is not in the model's vocabulary
stands for its sort: ``T`` and ``C`` (a word in the name of a table, of a column), ``N`` (a name), ``#`` (a
number), ``@`` (a quoted value), ``x`` (any other). So the model is not about one subject. The earlier
questions are not read. ``scripts/fit_wording.py`` fits it, and says how well it does on conversations of
an author that it has not seen.

Not covered: languages other than English; a sentence that is whole and whose meaning depends on an
earlier one all the same ("Which of the draws took longest?").
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import pairwise

from nl2sql.agents.context.linking import stem
from nl2sql.databases.schema import Schema
from nl2sql.errors import DatabaseError
from nl2sql.interfaces import Database, Turn
from nl2sql.sql.text import QUOTED, words

LONGEST = 2_000  # characters that are read: a longer question is none that leans on another
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17)  # words: a feature for each that a question is longer than
_TOKEN = re.compile(r"[^\W_]+(?:[-'’:/.][^\W_]+)*|[@,;:?!.()]|(?<=\s)[-–—](?=\s)")
_ANY_NUMBER = re.compile(r"[\d.,:/-]*\d[\d.,:/%-]*(?:th|st|nd|rd|s)?")


@dataclass(frozen=True)
class Evidence:
    """A sign that a question leans on another: its ``kind`` (wording, period) and the words that are it."""

    kind: str
    text: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def evidence_of(question: str, history: Sequence[Turn], database: Database) -> list[Evidence]:
    """The evidence that ``question`` leans on a turn of ``history``; empty without a history, and where it has none."""
    if not history or len(question) > LONGEST:
        return []
    try:
        return leanings_of(question, database.schema())
    except DatabaseError:
        return []


def leanings_of(question: str, schema: Schema) -> list[Evidence]:
    """The words that speak most for a follow-up, where the sentence as a whole does."""
    model, named = packaged(), schema_stems(schema)
    leans = model.log_odds(model.features(question, *named)) > 0
    return [Evidence("wording", model.strongest(question, *named))] if leans else []


@lru_cache(maxsize=64)
def schema_stems(schema: Schema) -> tuple[frozenset[str], frozenset[str]]:
    """Stems of the words in the names of tables, and of columns."""
    tables = {stem(word) for table in schema.tables for word in words(table.name)}
    columns = {stem(w) for table in schema.tables for column in table.columns for w in words(column.name)}
    return frozenset(tables), frozenset(columns)


def names_nothing(question: str, schema: Schema) -> bool:
    """Is there no word of a table or a column in ``question``?"""
    return frozenset().union(*schema_stems(schema)).isdisjoint(_stems(tokens_of(question)))


@dataclass(frozen=True)
class Wording:
    """The fitted model: ``vocabulary`` (words that stand for themselves), ``weights`` of features, and ``constant``."""

    vocabulary: frozenset[str]
    weights: Mapping[str, float]
    constant: float

    def log_odds(self, features: Mapping[str, float]) -> float:
        """Log odds that the question leans on an earlier one; over zero: it does."""
        return self.constant + sum(self.weights.get(name, 0.0) * value for name, value in features.items())

    def strongest(self, question: str, tables: frozenset[str], columns: frozenset[str]) -> str:
        """The two words beside each other that speak most for a follow-up, with a weight of each and of both."""
        tokens = tokens_of(question)
        pairs = zip(pairwise(self._sorts(tokens, tables, columns)), pairwise(tokens), strict=True)
        words = [(pair, text) for pair, text in pairs if all(token[0].isalnum() for token in text)]
        if not words:
            return question.strip()
        _, best = max(words, key=lambda one: sum(self.weights.get(name, 0.0) for name in (" ".join(one[0]), *one[0])))
        return " ".join(best)

    def sort_of(self, token: str, first: bool, tables: Iterable[str] = (), columns: Iterable[str] = ()) -> str:
        """The word itself, where it is in the vocabulary, or the sort of word that it is."""
        word = plain(token)
        if word == "@" or word in self.vocabulary:
            return word
        if _ANY_NUMBER.fullmatch(word):
            return "#"
        if stem(word) in tables:
            return "T"
        if stem(word) in columns:
            return "C"
        return ("N0" if first else "N") if token[0].isupper() else "x"

    def _sorts(self, tokens: Sequence[str], tables: frozenset[str], columns: frozenset[str]) -> list[str]:
        return [self.sort_of(token, not at, tables, columns) for at, token in enumerate(tokens)]

    def features(self, question: str, tables: frozenset[str], columns: frozenset[str]) -> dict[str, float]:
        """What is weighed. ``tables``, ``columns``: stems of the words in their names."""
        tokens = tokens_of(question)
        sorts = ["^", *self._sorts(tokens, tables, columns), "$"]
        found = dict.fromkeys([*sorts[1:-1], *map(" ".join, pairwise(sorts))], 1.0)
        length = sum(token[0].isalnum() or token == "@" for token in tokens)
        found |= {f"longer than {edge}": 1.0 for edge in LENGTHS if length > edge}
        named = [sum(word in names for word in _stems(tokens)) for names in (tables, columns)]
        found |= {"tables": min(2.0, named[0]), "columns": min(3.0, named[1])}
        found |= {"no table": float(not named[0]), "names nothing": float(not any(named))}
        found["lower case"] = float(question[:1].islower())
        return {name: value for name, value in found.items() if value}


def tokens_of(question: str) -> list[str]:
    """Words and marks as they are written; ``@`` for a quoted value."""
    return _TOKEN.findall(QUOTED.sub(" @ ", question.replace("’", "'").replace("@", " ")))


def plain(token: str) -> str:
    return token.lower().removesuffix("'s")


def _stems(tokens: Iterable[str]) -> list[str]:
    return [stem(plain(token)) for token in tokens]


@cache
def packaged() -> Wording:
    """The packaged model, read once."""
    data = json.loads(files("nl2sql.sessions").joinpath("wording.json").read_text(encoding="utf-8"))
    return Wording(frozenset(data["vocabulary"]), data["weights"], data["constant"])
