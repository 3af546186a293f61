"""Signs that a question leans on an earlier one, found without asking a model.

>>> from nl2sql.databases.schema import Column, Schema, Table
>>> schema = Schema((Table("customers", (Column("city"), Column("country"))),))
>>> [sign.kind for sign in signs_of("What about Norway?", schema)]
['cue']
>>> signs_of("What about the number of customers in Norway?", schema)
[]

A question is a follow-up where there is evidence, and only there: a cue word is none inside a sentence that is whole
by itself ("countries that ..."). Rules find signs, and a linear model (``wording``) weighs them beside the words of
the sentence: it decides, and finds follow-ups in forms that no rule knows. Five kinds: ``cue`` (words that reach back,
or that open a sentence which is not whole), ``ellipsis`` (no verb that asks and no table of its own, or "how many are
..." without saying what), ``pronoun`` (nothing in the sentence that it may stand for), ``wording`` (the words that
speak most for a follow-up, where no rule knows the form), ``value`` (a cell value of the previous query's tables, where
the sentence names no table and no column itself).

Not covered: languages other than English; a sentence that is whole and whose meaning depends on an earlier one all
the same ("Which of the draws took longest?").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import takewhile
from typing import Any

from nl2sql.agents.context.grounding import ground
from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.databases.schema import Schema
from nl2sql.errors import DatabaseError
from nl2sql.interfaces import Database, Turn
from nl2sql.sessions import wording
from nl2sql.sql.words import words

LONGEST = 2_000  # characters that are read: a longer question is none that leans on another
_DEMONSTRATIVES = frozenset(["that", "this", "those", "these"])
_WH = frozenset(["which", "what", "who", "whose", "whom", "how", "where"])
_MISSPELLED = {"wich": "which", "whitch": "which", "wat": "what", "waht": "what", "hwo": "how", "agian": "again"}
_TIMES = frozenset(["day", "date", "week", "month", "quarter", "year", "time", "period"])
SHORT = 6  # words of a demand that names no table and may be whole all the same
_DETERMINERS = frozenset(["the", "all", "each", "every", "their", "its", "them", "how", "me"])
_ENDS = frozenset(",;:.?!-–—")


@dataclass(frozen=True)
class Evidence:
    """One sign: its ``kind`` (cue, ellipsis, pronoun, wording, value) and the words of the question that are it."""

    kind: str
    text: str

    def to_dict(self) -> dict[str, str]:
        return {"kind": self.kind, "text": self.text}


@cache
def cue_words() -> dict[str, list[str]]:
    """The packaged lists of words, read once."""
    import yaml

    text = files("nl2sql.sessions").joinpath("cues.yaml").read_text(encoding="utf-8")
    data: dict[str, list[str]] = yaml.safe_load(text)
    return data


def evidence_of(question: str, history: Sequence[Turn], database: Database) -> list[Evidence]:
    """The evidence that ``question`` leans on a turn of ``history``; empty without a history, and where it has none."""
    if not history or len(question) > LONGEST:
        return []
    try:
        schema = database.schema()
    except DatabaseError:
        return []
    return leanings_of(question, schema) or _value_of_before(question, history, database, schema)


def leanings_of(question: str, schema: Schema) -> list[Evidence]:
    """The signs that stand in the sentence itself, where its wording as a whole is that of a follow-up.

    Where it is and no rule has found a sign, the words that speak most for it are the evidence (kind ``wording``).
    """
    sentence, model = Sentence(question, schema), wording.packaged()
    signs = sentence.signs()
    if sentence.leaves_out_what():
        return signs or [Evidence("ellipsis", sentence.text)]
    features = model.features(question, sentence.tables, sentence.columns, [sign.kind for sign in signs])
    if model.log_odds(features) <= 0:
        return []
    return signs or [Evidence("wording", model.strongest(question, sentence.tables, sentence.columns))]


def signs_of(question: str, schema: Schema) -> list[Evidence]:
    """The signs that the rules find: cues, ellipsis and pronouns."""
    return Sentence(question, schema).signs()


@lru_cache(maxsize=64)
def schema_stems(schema: Schema) -> tuple[frozenset[str], frozenset[str]]:
    """Stems of the words in the names of tables, and of columns."""
    tables = {stem(word) for table in schema.tables for word in words(table.name)}
    columns = {stem(w) for table in schema.tables for column in table.columns for w in words(column.name)}
    return frozenset(tables), frozenset(columns)


class Sentence:
    """A question as its lower-case words, quoted values taken out, beside the words of a schema."""

    def __init__(self, question: str, schema: Schema) -> None:
        read = map(wording.plain, wording.tokens_of(question))
        self.words = [_MISSPELLED.get(word, word) for word in read]
        self.text = " ".join(self.words)
        self.tables, self.columns = schema_stems(schema)
        self.rest = self._without_opening()
        self.opening = " ".join(self.words[: len(self.words) - len(self.rest)])

    def leaves_out_what(self) -> bool:
        """ "Group by line", "average price", "How many are there in each?": whatever else is said."""
        if wording.HOW_MANY_EACH.match(self.text) or wording.HAS_THE_MOST.match(self.text):
            return True
        if wording.BARE_FIGURE.match(self.text) and not any(map(self._names_table, self.words)):
            return True
        bare = self.words[1:2] == ["by"] and self.words[0] in cue_words()["edit_verbs"]
        return bare or (self.opening.endswith(("what about", "how about")) and not self._is_whole(self.rest))

    def signs(self) -> list[Evidence]:
        found = [*self._reaching_back(), *self._pronouns()]
        short = len(self.words) <= 4 and self.words[-1:] and self.words[-1].strip(".?!") in ("only", "separately")
        whole = self._is_whole(self.rest) and not short
        if not whole and self.opening:
            found.append(Evidence("cue", self.opening))
        elif not whole:
            found.append(Evidence("ellipsis", self.text))
        elif missing := self._what_is_missing():
            found.append(Evidence("ellipsis", missing))
        return found

    # ------------------------------------------------------------------------------------------------- wholeness

    def _without_opening(self) -> list[str]:
        """The words behind the cues that the sentence begins with."""
        rest, openings = self.words, _phrases("openings")
        while rest:
            fits = [phrase for phrase in openings if rest[: len(phrase)] == phrase]
            if not fits or rest[:2] == ["on", "average"]:
                break
            rest = rest[max(map(len, fits)) :]
            while rest and rest[0] in ",;:.":
                rest = rest[1:]
        return rest

    def _is_whole(self, rest: Sequence[str]) -> bool:
        """Does it ask by itself: with a verb or a question word, or as a telegram that begins with what it is about?"""
        content = [word for word in rest if word[0].isalnum() or word == "@"]
        if not content:
            return False
        if content[0] in cue_words()["changing_verbs"]:
            return False
        if content[0] in cue_words()["edit_verbs"]:
            changed = takewhile(lambda word: word not in ("by", "per", "into", "for"), content[1:])
            return any(map(self._names_table, changed))
        if self.opening.endswith("show me"):
            return content[0] not in cue_words()["prepositions"] and any(self._names(word) for word in content)
        if self._is_fragment(rest):
            return False
        if self._is_restriction(rest):
            return False
        if self._asks(rest):
            return True
        if len(content) == 3 and content[0] == content[2]:
            return False  # line by line
        last = self.opening.split()[-1:]
        if last and last[0] in cue_words()["prepositions"] and last[0] != "about":
            return False
        if len(content) == 2 and content[0] not in cue_words()["keyword_openings"]:
            return all(map(self._names, content)) and content[1].endswith("s")  # "singer names"; not "flag S"
        if content[0] == "each" or wording.CONDITION.match(" ".join(content)):
            return False  # "each line by its label", "rating over 1900"
        if self.opening and content[0] not in cue_words()["keyword_openings"]:
            following = content[1] if content[0] in ("the", "a", "all") and len(content) > 1 else ""
            if following not in cue_words()["keyword_openings"]:
                return False
        named = next((word for word in content if word not in STOP_WORDS or word in ("all", "most")), "")
        if self._names(content[0]) and not _WH.isdisjoint(content):
            return True  # "Advisor 1121 has how many students?"
        telegram = named in cue_words()["keyword_openings"] or self._names_table(named)
        return telegram and len(content) > 1 and any(self._names_table(word) for word in content)

    def _is_fragment(self, rest: Sequence[str]) -> bool:
        """ "By whom?", "for which titles?": a question word behind a preposition, and no verb."""
        clause = [*self.opening.split(), *(rest[: rest.index("?")] if "?" in rest else rest)]
        behind = not _WH.isdisjoint(clause[1:3]) and clause[0] in cue_words()["prepositions"]
        bare = clause[0] in ("which", "what", "whose") and len(clause) <= 3 and clause == self.words[: len(clause)]
        ends = len(clause) <= 4 and not set(clause) & set(cue_words()["auxiliaries"])
        return ends and (behind or (bare and self.words[len(clause) :] == ["?"]))

    def _is_restriction(self, rest: Sequence[str]) -> bool:
        """ "Only where there are more than 12", "but only what was published": a clause that asks nothing."""
        led = self.opening.split()[-1:] == ["only"] or self.opening in ("but", "except", "without")
        return led and rest[0] in ("where", "what", "when", "who") and "?" not in self.words

    def _asks(self, rest: Sequence[str]) -> bool:
        """A head at the beginning of a clause, or a question word behind its preposition ("in which city ...")."""
        heads, prepositions = cue_words()["heads"], cue_words()["prepositions"]
        clause_start = True
        for before, word, after in zip(["", *rest], rest, [*rest[1:], ""], strict=False):
            noun = word in cue_words()["noun_heads"] and bool(before) and after not in _DETERMINERS
            head = word in heads and not noun
            if clause_start and (head or (word in _WH and before in prepositions)):
                return True
            clause_start = word in _ENDS or (clause_start and word in prepositions)
        return False

    def _what_is_missing(self) -> str:
        """ "how many are ...", "which is the highest": asked of things that the sentence does not name."""
        rest = [word for word in self.rest if word not in _ENDS]
        verbs = [*cue_words()["auxiliaries"], "of", "in", "at", "on", "from", "per", "by", "each"]
        for at in range(len(rest) - 2):
            asked = rest[at : at + 2] in (["how", "many"], ["how", "much"]) and rest[at + 2] in verbs
            said = list(takewhile(lambda word: word not in ("per", "by", "each", "every"), rest[at + 2 :]))
            named = any(map(self._names, rest[:at])) or (bool(said) and self._subject_behind(said))
            if asked and not named:
                return " ".join(rest[at : at + 3])
        asking = {*cue_words()["asking"], *cue_words()["superlatives"]}
        if asking.issuperset(rest):
            return " ".join(rest)
        for form in wording.OPEN_ENDS if self._is_simple() else ():
            if match := form.search(self.text):
                return match[0].strip(" ?.!")
        for form in wording.ANYWHERE:
            if match := form.search(self.text):
                return match[0].strip(" ?")
        counted = wording.DEFINITE.search(self.text)  # "the seven titles"
        if counted and self._names(counted["what"]) and not wording.SUPERLATIVE.search(counted["rest"]):
            return counted[0].removesuffix(counted["rest"])
        part = re.search(r"\b(?:which|how many|any|some) of the (?P<what>[a-z]+)\b(?! of\b)", self.text)
        if part and not self._names(part["what"]):
            return part[0]
        known = any(map(self._names_table, self.words)) or "@" in self.words or any(map(str.isdigit, rest))
        led = bool(self.opening) and self.opening not in cue_words()["prepositions"]
        if led and len(rest) <= SHORT and not known:
            return self.text
        nothing = not known and not any(stem(word) in self.columns for word in self.words)
        return self.text if nothing and len(rest) <= 3 else ""  # "who had white?"

    def _is_simple(self) -> bool:
        """One clause about one thing, which cannot say itself what "each" or "there" is."""
        nouns = {stem(word) for word in self.words if self._is_noun(word)}
        return not {",", "and", "for"} & set(self.words) and len(nouns) <= 2

    def _subject_behind(self, rest: Sequence[str]) -> bool:
        """ "how much does the Day Rover cost", "how many are there in stations": the subject comes behind the verb."""
        own = rest[0] in ("does", "did", "do", "is", "was") and len(rest) > 2
        empty = {"there", *cue_words()["pronouns"], *cue_words()["prepositions"]}
        return any(map(self._names_table, rest)) or (own and rest[1] not in empty)

    # -------------------------------------------------------------------------------------------------- pronouns

    def _pronouns(self) -> list[Evidence]:
        """The pronouns that nothing before them in the sentence can be meant by."""
        around = zip(["", *self.words], self.words, [*self.words[1:], ""], strict=False)
        loose = [self._loose(at, *three) for at, three in enumerate(around)]
        return [Evidence("pronoun", text) for text in dict.fromkeys(filter(None, loose))]

    def _loose(self, at: int, before: str, word: str, after: str) -> str:
        nouns = [earlier for earlier in self.words[:at] if self._is_noun(earlier)]
        if word in ("them", "it") and at == 3 and self.words[0] in ("which", "what") and len(nouns) == 2:
            nouns = nouns[:1]  # "which customers placed them?", where a column is placed_on
        if word in _DEMONSTRATIVES:
            return f"{word} {after}".rstrip(" ?.,:;") if self._points(at, before, after, bool(nouns)) else ""
        if word == "there" and (after in _ENDS or not after) and before not in cue_words()["auxiliaries"]:
            return word if self._is_simple() and self._asks(self.rest) else ""
        if word in ("ones", "one"):
            return f"{before} {word}".strip() if self._stands_for_nothing(at, before, bool(nouns)) else ""
        if word not in cue_words()["pronouns"]:
            return ""
        if before in cue_words()["auxiliaries"] and word in ("they", "he", "she", "it") and self._asks_of_object(at):
            return f"{before} {word}"
        last = (after in _ENDS or not after) and 2 <= at <= 4
        if word in ("them", "it") and last and len(nouns) == 1 and self.words[0] in ("which", "what", "who"):
            return word  # "which patrons made them?"
        if (
            word in ("them", "it")
            and self.words[at - 2 : at - 1] in (["i"], ["we"], ["you"], ["one"])
            and len(nouns) == 1
        ):
            return word  # "in which branches can i find them?"
        many = self.words[0] == "how" and len(nouns) == 1 and self.words[2:3] == nouns
        if many and word in ("his", "her", "him", "he", "she"):
            return word  # "how many copies of his books": nobody was named
        if word == "it" and at:
            nouns = [noun for noun in nouns if not noun.endswith("s")]
        return "" if nouns else word

    def _points(self, at: int, before: str, after: str, seen_noun: bool) -> bool:
        """Does "that X" or "those" at ``at`` point out of the sentence? Relative clauses and "those X who" do not."""
        word, relatives = self.words[at], cue_words()["relatives"]
        if after in relatives or after in ("in", "from"):
            return word in ("those", "these") and not seen_noun
        if not set(self.words[at + 2 : at + 4]).isdisjoint(relatives):
            return False
        noun = after[:1].isalpha() and after not in STOP_WORDS
        if after in _TIMES and any(any(map(str.isdigit, earlier)) for earlier in self.words[:at]):
            return False  # "on 2023-07-01, which stations ... on that day"
        if (
            noun
            and word in ("that", "this")
            and self._names_table(after)
            and _ENDS.issuperset(self.words[at + 2 : at + 3])
        ):
            return not self._mentioned(after, at)  # "who bought that product?": nothing comes behind it
        place = ["", *_ENDS, "and", "or", "show", "list", *cue_words()["prepositions"], *cue_words()["auxiliaries"]]
        if before not in place or (after[:1].isalpha() and not noun and word in ("that", "this")):
            return False
        if (
            at >= 2
            and before in ("is", "was", "are", "were")
            and len(self.words) <= 7
            and self.words[at + 1 :] in ([], ["?"])
        ):
            return True  # "which day was that?"
        if word == "that" and at and before not in (*cue_words()["prepositions"], "do", "does", "did", "is", "was"):
            return False
        return not (self._mentioned(after, at) if noun else seen_noun)

    def _mentioned(self, noun: str, at: int) -> bool:
        return any(stem(word) == stem(noun) for word in self.words[:at])

    def _asks_of_object(self, at: int) -> bool:
        """ "what classes do they belong to": the only noun before is what is asked for, so "they" is something else."""
        before = self.words[: at - 1]
        starts = [n for n, word in enumerate(before) if word in ("what", "which", "whose", "many")]
        return (
            bool(starts) and len(before) - starts[-1] <= 4 and not any(self._is_noun(w) for w in before[: starts[-1]])
        )

    def _stands_for_nothing(self, at: int, before: str, seen_noun: bool) -> bool:
        if self.words[at] == "ones":
            return not seen_noun or not any(self._names_table(word) for word in self.words[:at])
        later = self.words[at + 1] if at + 1 < len(self.words) else ""
        return (
            before in ("which", "that", "this", "each", "what", "the") and not seen_noun and later not in ("of", "or")
        )

    def _is_noun(self, word: str) -> bool:
        known = word in STOP_WORDS or [word] in _phrases("openings")
        known = known or word in cue_words()["heads"] or word in cue_words()["superlatives"]
        return word == "@" or (len(word) > 2 and not known and self._names(word))

    def _names(self, word: str) -> bool:
        return self._names_table(word) or stem(word) in self.columns

    def _names_table(self, word: str) -> bool:
        return stem(word) in self.tables

    # ---------------------------------------------------------------------------------------------- reaching back

    def _reaching_back(self) -> list[Evidence]:
        text = f" {self.text} "
        found = [Evidence("cue", phrase) for phrase in cue_words()["reaching_back"] if f" {phrase} " in text]
        if taken_up := wording.TAKEN_UP.search(self.text):  # "and the warnings, for which hazards were they?"
            found.append(Evidence("cue", taken_up[0].partition(" ,")[0]))
        if any(sign.text.split()[0] in ("of", "among", "out", "in", "one", "each", "all") for sign in found):
            found = [sign for sign in found if not self._named_before(sign.text)]
        for ending in cue_words()["endings"]:
            last = re.search(rf" {ending} (?:[?.!,:;–—-]|$)", f" {self.text} ")
            if last and self.words[0] == ending and self._is_whole(self.rest):
                continue  # "instead, tell me ..."
            alone = ending in ("again", "instead", "earlier") or not any(map(self._names_table, self.words))
            if last and (alone or not self._is_whole(self.rest)):
                found.append(Evidence("cue", ending))
        return found

    def _named_before(self, phrase: str) -> bool:
        """ "the students, and how many of them": the sentence says itself what is meant."""
        at = f" {self.text} ".index(f" {phrase} ")
        if self.text[:at].split()[-1:] in (["are"], ["is"], ["were"], ["was"]):
            return False  # "which titles are among them?": the titles are asked for
        behind = self.text[at + len(phrase) :].split()[:1]
        entity = self._is_noun if behind and behind[0] in cue_words()["relatives"] else self._names_table
        return any(entity(word) for word in self.text[:at].split())


@cache
def _phrases(name: str) -> list[list[str]]:
    return [phrase.split() for phrase in cue_words()[name]]


def _value_of_before(question: str, history: Sequence[Turn], database: Database, schema: Schema) -> list[Evidence]:
    """A value in a table of the previous query, in a sentence that names no table and no column."""
    sentence = Sentence(question, schema)
    if any(sentence._names(word) for word in sentence.words):
        return []
    before = " ".join(turn.sql.lower() for turn in history[-1:])
    try:
        matches: list[Any] = ground(question, database, 4)
    except DatabaseError:
        return []
    return [Evidence("value", match.value) for match in matches if match.table.lower() in before][:1]


def names_nothing(question: str, schema: Schema) -> bool:
    """Is there no word of a table or a column in ``question``?"""
    sentence = Sentence(question, schema)
    return not any(sentence._names(word) for word in sentence.words)
