"""Examples as token rows: several behind one copy of what they share.

Examples of a group begin with the same tokens (system prompt and schema). A pack holds these once, and then each
example's own tokens; every token sees the shared ones and the earlier ones of its own example, at the positions it
would have alone. The loss is that of the examples one by one, at a fraction of the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from training.examples import Example

Tokenize = Callable[[str], list[int]]
Prompt = Callable[[Sequence[dict[str, str]], str], list[int]]  # messages and the open turn -> ids

IGNORED = -100


@dataclass(frozen=True)
class Row:
    """One example's tokens; ``labels`` holds the token itself where it is learned, else IGNORED."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]


@dataclass
class Pack:
    """``ids``, ``labels``, ``positions``: one entry per token. ``spans``: (start, end) of each example's own part.

    The first ``shared`` tokens are seen by all.
    """

    shared: int
    ids: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)

    @property
    def learned(self) -> int:
        return sum(label != IGNORED for label in self.labels)


def row(example: Example, prompt: Prompt, tokenize: Tokenize, end_of_turn: int) -> Row:
    """Tokens of one example. The pieces before the first learned one are tokenised with the conversation, as in use."""
    opening = ""
    pieces = list(example.pieces)
    while pieces and not pieces[0][1]:
        opening += pieces.pop(0)[0]
    ids = prompt(example.messages, opening)
    labels = [IGNORED] * len(ids)
    for text, learned in pieces:
        new = tokenize(text)
        ids = ids + new
        labels += new if learned else [IGNORED] * len(new)
    if example.closed:
        ids, labels = [*ids, end_of_turn], [*labels, end_of_turn]
    return Row(tuple(ids), tuple(labels))


def common_prefix(rows: Sequence[Row]) -> int:
    """How many tokens all rows begin with, short of the first learned one of any."""
    limit = min(next((i for i, label in enumerate(r.labels) if label != IGNORED), len(r.ids)) for r in rows)
    first = rows[0].ids
    shared = 0
    while shared < limit and all(r.ids[shared] == first[shared] for r in rows):
        shared += 1
    return shared


def packs(groups: Iterable[Sequence[Row]], max_tokens: int) -> list[Pack]:
    """Packs of at most ``max_tokens`` tokens; rows of different groups never meet; longer rows are left out."""
    found: list[Pack] = []
    for group in groups:
        rows = [r for r in group if len(r.ids) <= max_tokens]
        while rows:
            taken = _fitting(rows, max_tokens)
            found.append(_pack(rows[:taken]))
            rows = rows[taken:]
    return found


def _fitting(rows: Sequence[Row], max_tokens: int) -> int:
    count = len(rows)
    while count > 1:
        shared = common_prefix(rows[:count])
        if shared + sum(len(r.ids) - shared for r in rows[:count]) <= max_tokens:
            break
        count -= 1
    return max(count, 1)


def _pack(rows: Sequence[Row]) -> Pack:
    shared = common_prefix(rows) if len(rows) > 1 else 0
    pack = Pack(shared, list(rows[0].ids[:shared]), [IGNORED] * shared, list(range(shared)))
    for r in rows:
        start = len(pack.ids)
        pack.ids += r.ids[shared:]
        pack.labels += r.labels[shared:]
        pack.positions += range(shared, len(r.ids))
        pack.spans.append((start, len(pack.ids)))
    return pack
