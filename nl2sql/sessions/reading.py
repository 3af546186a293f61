"""What a follow-up asks to change, read from its words alone: groupings, order, comparisons, what to show.

>>> read_followup("and by country, highest first").groupings
(('country',),)
>>> [(c.operator, c.text) for c in read_followup("only those above 1,000").comparisons]
[('>', '1000')]

The words are read without the database; which columns they mean is decided by ``naming``, what becomes of the
statement by ``edits``. Not covered: arithmetic, conditions on groups, either-or.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from nl2sql.sessions.amounts import Comparison, comparisons_of
from nl2sql.sessions.naming import edit_words
from nl2sql.sessions.wording import TO_TEN
from nl2sql.sql.words import words

Phrase = tuple[str, ...]

_QUOTES = re.compile(r"[\"“”‘’]|(?<!\w)'|'(?!\w)")
_CLAUSE = re.compile(r"[?!;:]|\.(?=\s|$)|\s[-–—]\s")
_GROUP = re.compile(
    r"\b(?:(?:broken down|split|divided|grouped|separated?|group|summed)"
    r"(?: (?:it|them|that|this|those|these|up))? by|(?:spread|split|divided) (?:up )?(?:over|among|across|between)"
    r"|se[pe][ae]r[ae]te(?:ly)?(?: \w+)? for(?: each| every| evry| all)?|for (?:each|every|evry)"
    r"|(?:in|on|at|of|from|with) (?:each|every)|each|every|per|by|across|for all)"
    r"(?: of)?(?: the| its| their)? (?P<what>[^,.;:?!()]+)"
)
_TWICE = re.compile(r"\b(?P<what>[a-z]+) (?:by|after|against) (?P=what)\b")
_APART = re.compile(r"^(?:and |now )*(?P<what>[a-z]+(?: [a-z]+)?) (?:separate(?:ly)?|seperately|apart|individually)\b")
_SORT = re.compile(
    r"\b(?:sort|sorted|order|ordered|rank|ranked|arranged?|listed|list(?= (?:them|those|these) by))"
    r"(?: (?:it|them|that|this|those|these))?"
    r"(?: (?:by|on|from|according to))(?: the| their| its)? (?P<what>[^,.;:?!()]+)"
)
_FIRST = re.compile(r"\b(?P<what>(?:most |least )?[a-z]+(?: [a-z]+)?) (?:first|last|on top|at the top)\b")
SO_MANY = rf"(?:\d{{1,3}}|{TO_TEN})"
_TOP = re.compile(
    r"\b(?:top|first|bottom|last|best|only the|just the|the|limit(?: \w+)? to|no more than|just|only) "
    rf"(?P<count>{SO_MANY})\b(?! (?:percent|%))"
)
_WORST = ("bottom", "worst", "lowest", "last")
_RANKED = re.compile(r"\b(?P<end>top|bottom|best|worst|highest|lowest|first|last)(?: \w+)? by (?P<what>[^,.;:?!()]+)")
_WHICH_N = re.compile(rf"\bwhich (?P<count>{SO_MANY})\b")
_SO_MANY = re.compile(rf"\b(?:[a-z]{{3,}}est|most [a-z]+) (?P<count>{SO_MANY})\b")
_ORDINALS = ("second", "third", "fourth", "fifth")
_ORDINAL = re.compile(rf"\b(?P<ordinal>{'|'.join(_ORDINALS)}) (?:most|least|fewest|best|worst|[a-z]{{3,}}est)\b")
_ONCE = re.compile(
    r"\b(?:each (?:\w+ ){0,2}(?:only )?(?:once|one time)|every (?:\w+ ){1,2}(?:once|one time)|one time each"
    r"|no duplicates|without duplicates|distinct|unique|different)\b"
)
_COUNT = re.compile(
    r"\bhow many\b|(?<!by )(?<!by the )\b(?:number|count) of\b|^(?:and |just |now )*count\b"
    r"|\bjust the (?:number|count)\b|\bcount (?:them|those|these|it)\b"
)
_NO_GROUP = re.compile(
    r"\b(?:equal|same|ties?|tied|then)\b[^,.;?!]*? by [^,.;?!]+|\bby the way\b|\bby far\b|\bby any chance\b"
)
_ADD = re.compile(
    r"^(?:and |also |please |now |then )*(?:add|include|also show|show also|with|plus|together with|along with"
    r"|also give|also list)\b(?P<what>[^.;?!]*)"
)
_TOO = re.compile(
    r"^(?:and |please )*(?:(?:show|give|list|tell)(?: me| us)?)?(?P<what>[a-z_, ]+?),? (?:too|as well)\s*[.?!]?\s*$"
)
_NEGATED = re.compile(
    r"(?:\b(?:not?|never|neither|nor|(?:do|does|did)(?: not|n['’]t) [a-z]+|except"
    r"|exclud(?:e|ing)|drop(?:ping)?|remov(?:e|ing)|skip(?:ping)?|hid(?:e|ing)|discard(?:ing)?"
    r"|without|but not|anything but|all but|everything but"
    r"|other than|apart from|outside|no longer|not counting|minus|omit|omitting|ignor(?:e|ing)|leave out|leaving out"
    r"|less (?:all|everything|those|the ones)|without counting)|n['’]t|\bnon-)"
    r"(?: (?:for|in|at|from|to|on|of|by|with"
    r"|an?|any|the|those|these|ones|who|that|which|have|has|had|are|is|was|were|been"
    r"|[a-z]{2,}ed|paid|made))*\s*$"
)
_TURN = re.compile(r"\b(?:but|only|just|instead|rather)\b|[.;:?!]")  # what is said before it no longer holds
_LEAVE = re.compile(r"\b(?:leav(?:e|ing)|tak(?:e|ing)|filter(?:ing)?)(?: the| those| all)*\s*$")
_OUT = re.compile(r"\s*(?:\w+ )?(?:out|away|aside)\b")


@dataclass(frozen=True)
class Reading:
    """The parts of one follow-up. Phrases are content words in lower case."""

    text: str  # lower case, of the same length as the question
    clauses: tuple[tuple[int, int], ...]
    comparisons: tuple[Comparison, ...] = ()
    groupings: tuple[Phrase, ...] = ()
    orders: tuple[tuple[Phrase, str], ...] = ()  # (what, "asc" | "desc" | "")
    limit: int | None = None
    skipped: int = 0  # "the second highest": 1
    distinct: bool = False
    count: bool = False
    added: tuple[Phrase, ...] = ()  # columns beside those there are
    adjective: tuple[str, str, str] | None = None  # "youngest": (word, direction, words of columns)
    aggregate: str = ""  # AVG | SUM | MAX | MIN


def read_followup(question: str, rates: Sequence[tuple[str, str]] = ()) -> Reading:
    """The parts of a follow-up, each empty where it has none.

    rates: of each column called "price per night" ("price", "per night"), which is no grouping.
    """
    text = _QUOTES.sub(" ", question.lower())
    clauses = _clauses(text)
    orders = tuple(_orders(text))
    groupings = (
        ()
        if orders and (_SORT.search(text) or _RANKED.search(text))
        else tuple(_groupings(_NO_GROUP.sub(" ", _without_rates(text, rates))))
    )
    adjective = _adjective(text)
    added = _ADD.search(text) or _TOO.search(text)
    aggregate = _aggregate(text)
    return Reading(
        text=text,
        clauses=clauses,
        comparisons=tuple(comparisons_of(text, _limits(text))),
        groupings=groupings,
        orders=orders,
        limit=_limit(text),
        skipped=_skipped(text),
        distinct=bool(_ONCE.search(text)),
        count=bool(_COUNT.search(text)) and aggregate != "AVG",
        added=tuple(_listed(added["what"])) if added else (),
        adjective=adjective,
        aggregate=aggregate,
    )


def _without_rates(text: str, rates: Sequence[tuple[str, str]]) -> str:
    for head, tail in rates:
        if set(head.split()) & set(words(text)) or re.search(rf"\d\S*(?: [a-z]+)? {tail}\b", text):
            text = re.sub(rf"\b{tail}\b", " ", text)
    return text


def _clauses(text: str) -> tuple[tuple[int, int], ...]:
    ends = [match.start() for match in _CLAUSE.finditer(text)] + [len(text)]
    starts = [0] + [end + 1 for end in ends[:-1]]
    return tuple((start, end) for start, end in zip(starts, ends, strict=True) if words(text[start:end]))


# ------------------------------------------------------------------------------------------- groups, order, limit


def _groupings(text: str) -> Iterator[Phrase]:
    if twice := _TWICE.search(text) or _APART.search(text):
        yield (twice["what"],)
        return
    for match in _GROUP.finditer(_ONCE.sub(" ", text)):
        for part in re.split(r" and (?:by |per )?", match["what"]):
            phrase = [word for word in words(part) if word not in ("please", "instead", "now", "then", "only", "too")]
            for at, word in enumerate(phrase):
                if word in (
                    "how",
                    "which",
                    "what",
                    "does",
                    "do",
                    "is",
                    "are",
                    "that",
                    "with",
                    "in",
                    "one",
                    "who",
                    "whom",
                ):
                    phrase = phrase[:at]
                    break
            if phrase and not any(word.isdigit() for word in phrase):
                yield tuple(phrase)


def _orders(text: str) -> Iterator[tuple[Phrase, str]]:
    """What to sort by; a bare adjective ("dearest first") is a phrase of its own."""
    direction = ""
    for name in ("descending", "ascending"):
        if any(re.search(rf"\b{re.escape(word)}\b", text) for word in edit_words()[name]):
            direction = name.removesuffix("ending")
    first = _FIRST.search(text)
    way = ""
    if first and (known := _adjective(first["what"])):
        way = known[1] if " first" in first[0] or "top" in first[0] else _other(known[1])
    sorted_by = _SORT.search(text)
    ranked = _RANKED.search(text)
    if ranked and not sorted_by:
        yield tuple(words(ranked["what"])), "asc" if ranked["end"] in _WORST else "desc"
    elif sorted_by:
        yield tuple(words(sorted_by["what"])), direction or way
    elif not first and direction and re.search(r"\balphabetical|\bdescending\b|\bascending\b|\breverse", text):
        yield (), direction
    elif first and way:
        yield tuple(words(first["what"])), way


def _other(direction: str) -> str:
    return "asc" if direction == "desc" else "desc"


def _limit(text: str) -> int | None:
    match = _WHICH_N.search(text) or _TOP.search(text) or _SO_MANY.search(text)
    return _as_number(match["count"]) if match else None


def _skipped(text: str) -> int:
    match = _ORDINAL.search(text)
    return _ORDINALS.index(match["ordinal"]) + 1 if match else 0


def _as_number(text: str) -> int:
    return int(text) if text.isdigit() else int(edit_words()["numbers"].index(text))


@cache
def adjectives() -> Mapping[str, tuple[str, str]]:
    """Adjective -> direction and words of columns ("any": of any)."""
    listed = edit_words()["adjectives"]
    found: dict[str, tuple[str, str]] = {}
    for direction, by_column in listed.items():
        for columns, those in by_column.items():
            for adjective in those:
                known = found.get(adjective)
                if known is None or (known[0] == direction and known[1] != "any"):
                    found[adjective] = (direction, f"{known[1]} {columns}" if known else columns)
    return found


def _adjective(text: str) -> tuple[str, str, str] | None:
    """The first superlative of a text, the longest that fits."""
    for adjective in sorted(adjectives(), key=len, reverse=True):
        ends = adjective.endswith("est") or " " in adjective  # "top 5" is a limit, "the newest 5" an order too
        if adjective not in ("first", "last") and re.search(rf"\b{adjective}\b{'' if ends else '(?! [0-9])'}", text):
            if adjective in ("most", "least") and re.search(rf"\bat {adjective}\b", text):
                continue
            return (adjective, *adjectives()[adjective])
    if re.search(r"\b(?:is|are|was|were) last\b", text):
        return "last", "asc", "any"
    if re.search(r"\b(?:is|are|was|were) first\b", text):
        return "first", "desc", "any"
    return None


def _aggregate(text: str) -> str:
    for name, listed in edit_words()["aggregates"].items():
        for word in listed:
            before = [text[: match.start()].split()[-1:] for match in re.finditer(rf"\b{word}\b", text)]
            if name in ("AVG", "SUM") and any(not each or each[0] not in adjectives() for each in before):
                return str(name)  # "the one with the highest total" names a column, or the figure that is shown
    if figure := re.match(r"(?:and |now |just )*(?P<kind>max|min)(?:imum)?\b", text):
        return str(figure["kind"].upper())
    if re.search(r"\b(?:what|whats|and)\b.*\b(?:is|was|are|s|the)\b", text) or text.startswith("the "):
        for name in ("MAX", "MIN"):
            for word in edit_words()["aggregates"][name]:
                row = r"\bwhich\b|\bwho\b|\bones?\b|\bmost [a-z]+ed\b"
                if re.search(rf"\b(?:the|their|its|what) {word}\b", text) and not re.search(row, text):
                    return name
    return ""


# -------------------------------------------------------------------------------------------------- conditions


def _limits(text: str) -> list[tuple[int, int]]:
    """The places of the numbers that say how many rows."""
    matches = (*_TOP.finditer(text), *_WHICH_N.finditer(text), *_SO_MANY.finditer(text))
    return [match.span("count") for match in matches if _is_limit(match, text) or match.re is _SO_MANY]


def _is_limit(match: re.Match[str], text: str) -> bool:
    """ "the 15 credits" is a limit only where something is first, top or the like; "the 5 in Japan" are 5 rows."""
    rows = re.match(r"\s+(?:in|from|of|with|that|which|who|where|without)\b", text[match.end() :])
    return bool(rows or re.match(r"(?:top|first|bottom|last|best|which|limit|only the|just the)", match[0]))


def is_negated(text: str, start: int) -> bool:
    """Does "not", "except" or the like stand right before this place?"""
    return bool(_NEGATED.search(text[:start].lower()))


def is_left_out(text: str, start: int, end: int) -> bool:
    """Is what stands there negated, or left out: "leave 2021 out", "not counting those that were cancelled"?"""
    return is_negated(text, start) or bool(_LEAVE.search(text[:start].lower()) and _OUT.match(text[end:].lower()))


def are_left_out(text: str, places: Sequence[tuple[int, int]]) -> list[bool]:
    """Whether each of several places, in the order of the text, is left out: "not in A or B" leaves both out.

    >>> are_left_out("not A or B, but C", [(4, 5), (9, 10), (16, 17)])
    [True, True, False]
    """
    groups: list[list[tuple[int, int]]] = []
    for start, end in places:
        between = text[groups[-1][-1][1] : start].lower() if groups else ""
        if not groups or _TURN.search(between) or is_negated(between, len(between)):
            groups.append([])
        groups[-1].append((start, end))
    return [is_left_out(text, group[0][0], group[-1][1]) for group in groups for _ in group]


def _listed(text: str) -> Iterator[Phrase]:
    """The phrases of "title, price and the year"."""
    for part in re.split(r",| and | plus |/|&", text):
        phrase = words(part)
        if phrase:
            yield tuple(phrase)


def listed_phrases(text: str) -> list[Phrase]:
    """A list of things to show, one phrase each."""
    return list(_listed(text))
