"""The wording of follow-ups: forms of sentences that leave something out, and a linear model fitted on turns.

The rules of ``detection`` know the forms that somebody thought of; what they find is a part of what is weighed here,
beside the words and pairs of words of the sentence. A word that is not in the model's vocabulary stands for its sort:
``T`` and ``C`` (a word in the name of a table, of a column), ``N`` (a name), ``#`` (a number), ``@`` (a quoted value),
``x`` (any other). So the model is not about one subject. No model is called, and the earlier questions are not read.

``scripts/fit_wording.py`` fits it and says how well it does on conversations of an author that it has not seen.

>>> any(form.search("which teams met ? home and away") for form in ANYWHERE)
True
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise

from nl2sql.agents.context.linking import stem
from nl2sql.sql.words import QUOTED, UNITS

# ------------------------------------------------------------------------------- forms of sentences

TO_TEN = "|".join(UNITS[2:11])  # two, three ... ten
_COUNT = rf"(?:\d{{1,2}}|{TO_TEN})"
_NUMBER = rf"(?:\d+|{TO_TEN})(?: or (?:more|fewer|less))?"
_ASKED = r"(?:and |please |also )*(?:(?:can|could|would|will) (?:you|i|we) (?:also |please |kindly )*)?"
_SHOW = r"(?:give|show|list|name|tell|display|get|have|see)(?: me| us)?"

OPEN_ENDS = (  # "who has the most?", "how many does each have?", "what does each of those cost?"
    re.compile(rf"^{_ASKED}{_SHOW} the [a-z]+\s*(?:too|also|as well|please)?\s*[?.!]?$"),
    re.compile(rf"^{_ASKED}{_SHOW} the (?:[a-z]+ly|[a-z]+ing|overall) [a-z]+\s*[?.!]?$"),
    re.compile(r"^(?:and )?what (?:is|was) the (?:average|total|sum|mean|count|maximum|minimum)\s*[?.!]?$"),
    re.compile(
        r"(?:^|[,;] |\b(?:and|please|you|to|then|now) )(?:split|break|group|sort|order|divide|separate)"
        r" (?:this|that|it|them|these|those)\b"
    ),
    re.compile(r"\b(?:has|have|had|of|does) the [a-z]+est\s*[?.!]?$"),
    re.compile(r"\bthe most of (?:them|these|those)\s*[?.!]?$"),
    re.compile(r"^which (?:are|is|were|was|have|had) [a-z]+\s*[?.!]?$"),
    re.compile(r"\b(?:has|have|had|got) (?:the )?(?:most|fewest|least|highest|lowest)\s*[?.!]?$"),
    re.compile(r"\b(?:of|in|for|at|from) each\s*[?.!]?$|^how (?:many|much) [a-z]+ each\s*[?.!]?$"),
    re.compile(r"\b(?:has|have|does|do|did) each(?= (?:have|has|get|cost|make|take|[a-z]+ed)\b|\s*[?.!]?$)"),
    re.compile(rf"\b(?:with|having|have|has) (?:at least |at most |(?:more|fewer|less) than )?{_NUMBER}\s*[?.!]?$"),
)
ANYWHERE = (  # whatever else the sentence says
    re.compile(r"^(?:which|what) [a-z]+ (?!are |is |were |was )[a-z]+ \?"),  # "which teams met? home and away"
    re.compile(rf"\b(?:of|list|show|were|are|was|which|name) the {_COUNT} (?:in|from|of|on|at)\b"),  # "the two in May"
    re.compile(r"\bthe (?:[\w-]+ )?figures?\b"),  # "the payments behind the 2023 figure"
    re.compile(r"^(?:please )?(?:break|compare|split|sort|order|group|filter|narrow)(?: down)? the results?\b"),
    re.compile(r"^(?:and )?how (?:many|much) (?:are|is|were|was) (?:in|at|on|from|per|for) "),
)
DEFINITE = re.compile(rf"\b(?:of|list|show|give me|name|are|were) the {_COUNT} (?P<what>[a-z]+)\b(?P<rest>.*)")
SUPERLATIVE = re.compile(r"\b(?:[a-z]{2,}est|most|least|fewest|top|best|worst|first|last|that|who|which|whose)\b")
CONDITION = re.compile(r"^[a-z]+ (?:over|under|above|below|after|before|since|until|from|at least|at most) [\d.,/-]+$")
TAKEN_UP = re.compile(r"^(?:and|but|so) (?:the|those) (?:[a-z]+ ){1,2}, .*\b(?:they|them|it|that|those)\b")
HOW_MANY_EACH = re.compile(r"(?:and )?how many (?:are (?:there|they) )?(?:(?:in|for|on|at) )?(?:per|by|each|every)\b")
HAS_THE_MOST = re.compile(
    r"(?:and )?(?:which|what) [a-z]+(?: [a-z]+)? (?:has|have|had) (?:the )?(?:most|fewest|least|highest|lowest)"
    r"(?: of (?:them|these|those))? ?[?.!]*$"
)
BARE_FIGURE = re.compile(
    r"(?:and )?(?:the )?(?:average|mean|total|maximum|minimum|max|min) [a-z]+(?: [a-z]+)?"
    r"(?: (?:by|per) [a-z]+(?: [a-z]+)?)? ?[?.!]*$"
)


# ---------------------------------------------------------------------------------------- the model

_TOKEN = re.compile(r"[^\W_]+(?:[-'’:/.][^\W_]+)*|[@,;:?!.()]|(?<=\s)[-–—](?=\s)")
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17)  # words: a feature for each that a question is longer than
_ANY_NUMBER = re.compile(r"[\d.,:/-]*\d[\d.,:/%-]*(?:th|st|nd|rd|s)?")


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

    def features(
        self, question: str, tables: frozenset[str], columns: frozenset[str], kinds: Iterable[str]
    ) -> dict[str, float]:
        """What is weighed. ``tables``, ``columns``: stems of the words in their names; ``kinds``: of the signs."""
        tokens = tokens_of(question)
        sorts = ["^", *self._sorts(tokens, tables, columns), "$"]
        stems = [stem(plain(token)) for token in tokens]
        found = dict.fromkeys([*sorts[1:-1], *map(" ".join, pairwise(sorts))], 1.0)
        length = sum(token[0].isalnum() or token == "@" for token in tokens)
        found |= {f"longer than {edge}": 1.0 for edge in LENGTHS if length > edge}
        named = [sum(word in names for word in stems) for names in (tables, columns)]
        found |= {"tables": min(2.0, named[0]), "columns": min(3.0, named[1])}
        found |= {"no table": float(not named[0]), "names nothing": float(not any(named))}
        found["lower case"] = float(question[:1].islower())
        signs = list(dict.fromkeys(kinds))
        found |= {f"sign {kind}": 1.0 for kind in signs} | {"a sign": float(bool(signs))}
        return {name: value for name, value in found.items() if value}


def tokens_of(question: str) -> list[str]:
    """Words and marks as they are written; ``@`` for a quoted value."""
    return _TOKEN.findall(QUOTED.sub(" @ ", question.replace("’", "'").replace("@", " ")))


def plain(token: str) -> str:
    return token.lower().removesuffix("'s")


@cache
def packaged() -> Wording:
    """The packaged model, read once."""
    data = json.loads(files("nl2sql.sessions").joinpath("wording.json").read_text(encoding="utf-8"))
    return Wording(frozenset(data["vocabulary"]), data["weights"], data["constant"])
