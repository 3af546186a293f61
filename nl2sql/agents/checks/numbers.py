"""Numbers in a question, however they are written.

>>> as_digits("the top twenty-five of 1,000")
'the top 25 of 1000'
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
