"""The numbers, times and dates of a follow-up, each with the operator that stands before or behind it.

>>> [(c.operator, c.text) for c in comparisons_of("no older than 30, above 80 and below 1,000", [])]
[('<=', '30'), ('>', '80'), ('<', '1000')]
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from dataclasses import dataclass

from nl2sql.sessions.forms import TO_TEN
from nl2sql.sessions.naming import edit_words
from nl2sql.sessions.periods import MONTHS

_NUMBER = re.compile(r"(?<![\w.:/-])(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?!(?!k\b)[\w:/]|[-.]\d)")
_WORD_NUMBER = re.compile(  # "at least one order" is about orders
    r"\b(?:more than|less than|fewer than|over|under|exactly|at most|at least (?!one\b)) ?"
    rf"(?P<number>one|{TO_TEN}|eleven|twelve)\b(?! (?:of|hundred|thousand|million))"
)
_TIME = re.compile(r"(?<![\w:])(?P<time>\d{1,2}:\d{2})(?![\w:])")
_DAY = re.compile(r"(?<![\w-])(?P<day>\d{4}-\d{2}-\d{2})(?![\w-])")
_DAY_BEFORE = r"(?:\b(?P<first>\d{1,2})(?:st|nd|rd|th)?(?: of)? )?"
_DAY_BEHIND = r"(?: (?P<last>\d{1,2})(?:st|nd|rd|th)?(?![\d:]))?"
_BEHIND_COLUMN = re.compile(  # "above floor 1"
    r"(.*\b(?:over|under|above|below|beyond|exceeding|more than|less than|fewer than) )[a-z_]+$"
)
_OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}
_OF_DAYS = {"older than": "<", "younger than": ">"}  # what is older has the lower year


@dataclass(frozen=True)
class Comparison:
    """A number, a time or a date of the sentence: its operator ("" for none written), its place, and its parts."""

    operator: str
    text: str
    start: int
    end: int
    kind: str  # number | year | month | day | time
    month: int = 0
    high: str = ""  # of "between A and B"


def comparisons_of(text: str, taken: Sequence[tuple[int, int]]) -> list[Comparison]:
    """Numbers, times, days, years and months of a text in lower case; what lies within ``taken`` is none of them."""
    found: list[Comparison] = []

    def free(start: int, end: int) -> bool:
        spans = [*taken, *((c.start, c.end) for c in found)]
        return all(end <= other[0] or other[1] <= start for other in spans)

    between = re.search(r"\b(?:between|from) (?P<low>\d[\d:,.-]*) (?:and|to) (?P<high>\d[\d:,.-]*\d|\d)", text)
    if between:
        low, high = (between[name].replace(",", "").rstrip(".") for name in ("low", "high"))
        found.append(Comparison("between", low, *between.span(), _kind_of(low), high=high))
    months = "|".join(MONTHS)
    for match in re.finditer(
        rf"\b(?:between|from) (?P<a>{months})(?: (?P<year>\d{{4}}))? (?:and|to|until|till|through) "
        rf"(?P<b>{months}) (?P<end>\d{{4}})\b",
        text,
    ):
        low, high = (MONTHS.index(match[name]) + 1 for name in ("a", "b"))
        first, end = int(match["year"] or match["end"]), int(match["end"])
        last = f"{end}-{high:02}-{calendar.monthrange(end, high)[1]}"
        found.append(Comparison("between", f"{first}-{low:02}-01", *match.span(), "day", high=last))
    for match in re.finditer(rf"{_DAY_BEFORE}\b(?P<month>{months}){_DAY_BEHIND}(?:,? (?P<year>\d{{4}}))?\b", text):
        if not free(*match.span()):
            continue
        if (
            match["month"] == "may"
            and not (match["year"] or match["first"] or match["last"])
            and not re.search(
                r"\b(?:in|of|during|for|about|and|to|since|before|after|until|till|between)(?: about)? may\b", text
            )
        ):
            continue
        number = MONTHS.index(match["month"]) + 1
        if day := match["first"] or match["last"]:
            iso = f"{match['year']}-{number:02}-{int(day):02}" if match["year"] else ""
            found.append(Comparison(_operator(text, *match.span()), iso, *match.span(), "day", number))
            continue
        found.append(Comparison(_operator(text, *match.span()), match["year"] or "", *match.span(), "month", number))
    for pattern in (_DAY, _TIME, _NUMBER):
        for match in pattern.finditer(text):
            if free(*match.span()):
                number_text = match[0].replace(",", "")
                kind = {_DAY: "day", _TIME: "time"}.get(pattern, _kind_of(number_text))
                found.append(Comparison(_operator(text, *match.span()), number_text, *match.span(), kind))
    for match in _WORD_NUMBER.finditer(text):
        at = match.span("number")
        if free(*at):
            value = str(edit_words()["numbers"].index(match["number"]))
            found.append(Comparison(_operator(text, *at), value, *at, "number"))
    return sorted(found, key=lambda comparison: comparison.start)


def _kind_of(text: str) -> str:
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        return "day"
    if ":" in text:
        return "time"
    return "year" if re.fullmatch(r"(?:1[5-9]|20)\d\d", text) else "number"


def _operator(text: str, start: int, end: int) -> str:
    """The longest comparison that stands before the number or behind it; "" for none."""
    before = " ".join(re.findall(r"[\w']+", text[:start])[-6:])
    before = re.sub(r" (?:the year|year|the)$", "", before)
    after = " ".join(re.findall(r"\w+", text[end:])[:4])
    listed = edit_words()
    behind = [(len(w), sign) for sign, those in listed["behind"].items() for w in those if _starts(after, w)]
    if behind:
        return str(max(behind)[1])
    fits = [
        (len(word), str(sign), word)
        for sign, those in listed["comparisons"].items()
        for word in those
        if f" {before}".endswith(f" {word}")
    ]
    if not fits and (head := _BEHIND_COLUMN.search(before)):
        return _operator(head[1] + text[start:end], len(head[1]), len(head[1]) + end - start)
    if not fits:
        return ""
    _, sign, word = max(fits)
    if _kind_of(text[start:end]) in ("year", "day"):
        sign = _OF_DAYS.get(word, sign)
    denied = re.search(rf"(?:\b(?:no|not|never)|n't) {re.escape(word)}$", before)  # "no older than", "not after"
    return _OPPOSITE.get(sign, sign) if denied else sign


def _starts(after: str, cue: str) -> bool:
    """ "or more", also behind a unit: "20 points or more"."""
    tails = after, " ".join(after.split()[1:])
    said = next((tail[len(cue) :] for tail in tails if tail.startswith(cue)), None)
    return said is not None and not re.match(r" (?:than\b|\d)", said)  # "above 80 and below 100"
