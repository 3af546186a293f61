"""Forms of sentences that leave out what an earlier question said, in lower case, words and marks apart.

>>> any(form.search("which teams met ? home and away") for form in ANYWHERE)
True
"""

from __future__ import annotations

import re

from nl2sql.agents.checks.numbers import UNITS

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
