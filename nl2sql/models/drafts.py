"""Drafts: the next tokens guessed from what the row has already read and written (prompt lookup decoding [32]).

>>> Draft([5, 6, 7, 8, 5, 6]).propose(limit=2)
[7, 8]

What a loop writes repeats itself: names from the schema, the query again, the last thought again. The last two or
three tokens are looked up in the row's own tokens, and what followed them there is proposed. The engine computes a
proposal in one forward and keeps the part that the model would have chosen anyway, so the text does not change.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 8  # tokens proposed at most
_SMOOTH = 0.8  # weight of the past in the running share of accepted tokens
_GRAMS = (3, 2)  # looked up in this order


class Draft:
    """The lookup table of one row, and how many tokens it is worth proposing. prompt: the row's tokens so far."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens = list(prompt)
        self._after: dict[tuple[int, ...], int] = {}  # the last tokens -> where what follows them begins, at its latest
        self._indexed = 0
        self._accepted_share = 0.5
        self._index()

    def extend(self, new: Sequence[int]) -> None:
        """Tell it what was chosen."""
        self._index()  # of what lies before: a key at the very end has nothing behind it yet
        self._tokens.extend(new)

    def propose(self, limit: int) -> list[int]:
        """At most ``limit`` tokens that may follow; none where the last tokens never occurred before."""
        limit = min(limit, round(LONGEST * self._accepted_share) + 1)
        if limit <= 0:
            return []
        for size in _GRAMS:
            at = self._after.get(tuple(self._tokens[-size:]))
            if at is not None:
                return self._tokens[at : at + limit]
        return []

    def learn(self, proposed: int, accepted: int) -> None:
        """Tell it how many of the proposed tokens were right."""
        if proposed:
            self._accepted_share = _SMOOTH * self._accepted_share + (1 - _SMOOTH) * accepted / proposed

    def _index(self) -> None:
        tokens = self._tokens
        for end in range(max(self._indexed, 2), len(tokens)):
            for size in _GRAMS:
                if end >= size:
                    self._after[tuple(tokens[end - size : end])] = end
        self._indexed = len(tokens)
