"""Examples as token rows: several behind one copy of what they share.

Examples of a group begin with the same tokens (system prompt and schema). A pack holds these once, and then each
example's own tokens; every token sees the shared ones and the earlier ones of its own example, at the positions it
would have alone. The loss is that of the examples one by one, at a fraction of the tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nl2sql.errors import UsageError
from training.examples import Example

Tokenize = Callable[[str], list[int]]
Prompt = Callable[[Sequence[dict[str, str]], str], list[int]]  # messages and the open turn -> ids

IGNORED = -100


@dataclass(frozen=True)
class Row:
    """One example's tokens; ``labels`` holds the token itself where it is learned, else IGNORED."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def learned_from(self) -> int:
        """The place of the first token that is learned; behind the last one where none is."""
        return next((i for i, label in enumerate(self.labels) if label != IGNORED), len(self.ids))


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


def packs(groups: Iterable[Sequence[Row]], max_tokens: int) -> list[Pack]:
    """Packs of at most ``max_tokens`` tokens; rows of different groups never meet; longer rows are left out.

    A pack takes rows in their order as long as they fit behind what all of them begin with, short of the first
    learned token of any. That takes one look at each token: a slice is compared, and read only where it differs.
    """
    found: list[Pack] = []
    for group in groups:
        taken: list[Row] = []
        shared = tokens = 0  # of the rows taken: what they begin with, and what they hold one by one
        for r in group:
            if len(r.ids) > max_tokens:
                continue
            alike = _alike(taken[0].ids, r.ids, min(shared, r.learned_from)) if taken else r.learned_from
            if taken and tokens + len(r.ids) - len(taken) * alike > max_tokens:
                found.append(_pack(taken, shared))
                taken, tokens, alike = [], 0, r.learned_from
            taken.append(r)
            shared, tokens = alike, tokens + len(r.ids)
        if taken:
            found.append(_pack(taken, shared))
    return found


def _alike(first: Sequence[int], other: Sequence[int], most: int) -> int:
    """How many tokens both begin with, of the first ``most``, which both have."""
    if first[:most] == other[:most]:
        return most
    return next(i for i in range(most) if first[i] != other[i])


def _pack(rows: Sequence[Row], shared: int) -> Pack:
    shared = shared if len(rows) > 1 else 0
    pack = Pack(shared, list(rows[0].ids[:shared]), [IGNORED] * shared, list(range(shared)))
    for r in rows:
        start = len(pack.ids)
        pack.ids += r.ids[shared:]
        pack.labels += r.labels[shared:]
        pack.positions += range(shared, len(r.ids))
        pack.spans.append((start, len(pack.ids)))
    return pack


def read_groups(folder: Path) -> tuple[list[list[list[Example]]], list[list[Example]]]:
    """(groups of every round, held-out groups) of what ``build_training_data.py`` wrote. Raises UsageError."""
    path = folder / "groups.jsonl"
    if not path.is_file():
        raise UsageError(f"{path} does not exist; make it with scripts/build_training_data.py --out {folder}")
    rounds: dict[int, list[list[Example]]] = {}
    held_out: list[list[Example]] = []
    with path.open(encoding="utf-8") as file:  # str.splitlines would also break at U+0085 and U+2028
        for line in file:
            group = json.loads(line)
            examples = [Example.from_dict(data) for data in group["examples"]]
            (held_out if group["part"] == "held_out" else rounds.setdefault(group["round"], [])).append(examples)
    return [rounds[number] for number in sorted(rounds)], held_out
