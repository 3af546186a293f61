"""Numbers in a question, however they are written.

>>> as_digits("the top twenty-five of 1,000")
'the top 25 of 1000'
>>> sorted(numbers_of("two hundred and five of the three largest"))
[2, 3, 5, 100, 200, 205]
"""

from __future__ import annotations

import re

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


def numbers_of(text: str) -> frozenset[int]:
    """All that the text may mean by its digits and number words: of "two hundred", 2, 100 and 200."""
    known = WORDS | OTHERS
    found: set[int] = set()
    whole = part = 0  # "five thousand two hundred": 5000 and 200
    scaled = False  # the word before was hundred or thousand
    for word in re.findall(r"[^\W_]+", as_digits(text.lower())):
        value = known.get(word, int(word) if word.isdecimal() and len(word) < 10 else None)
        if word in SCALES:
            part = (part or 1) * SCALES[word]
            found |= {SCALES[word], whole + part}
            if word == "thousand":
                whole, part = whole + part, 0
        elif value is not None:
            if not scaled:
                whole = part = 0
            part += value
            found |= {value, whole + part}
        elif word != "and":
            whole = part = 0
        scaled = word in SCALES or (word == "and" and scaled)
    return frozenset(found)
