"""Exact search among stored fixes, by groups of the same error.

A fix's vector has two halves of length 1/sqrt(2): its masked error, and the words of its failed statement. Errors are
few, so the fixes are kept by error: the groups are looked at from the closest error on, and the search ends where no
fix of the remaining groups could still be among the best, whatever its statement. The result is that of comparing all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
MOST_OF_A_HALF = 0.5  # the largest product of two halves
ROUNDING = 0.002  # of halves that were stored as 16-bit numbers


class SearchIndex(Protocol):
    """Where the vectors of fixes are searched. ``add`` and ``search`` from one thread at a time."""

    def add(self, fixes: Iterable[tuple[str, str, bytes]]) -> None:
        """``(id, source, vector)`` of further fixes; the vector as two halves of 16-bit numbers."""
        ...

    def search(
        self, error: Array, words: Array | None, *, limit: int, threshold: float, exclude: str = ""
    ) -> list[tuple[str, float]]:
        """``(id, cosine)`` of the ``limit`` closest fixes of at least ``threshold``, closest first; equal ones in the
        order in which they were stored. ``words`` None: the cosine of the errors alone. ``exclude``: a source that is
        left out."""
        ...


IndexFactory: TypeAlias = Callable[[str, int], SearchIndex]  # (name of the content, size of a half)


@dataclass
class Group:
    """The fixes of one error, in the order in which they were stored."""

    error: Array  # its half, (size,)
    rows: list[int] = field(default_factory=list)
    words: list[bytes | Array] = field(default_factory=list)  # pieces of the other halves, joined at the first search

    def joined(self, size: int) -> Array:
        """The halves of the statements, (fixes, size)."""
        if len(self.words) != 1 or isinstance(self.words[0], bytes):
            pieces = [
                np.frombuffer(piece, np.float16).reshape(-1, size).astype(np.float32)
                if isinstance(piece, bytes)
                else piece
                for piece in self.words
            ]
            self.words = [np.concatenate(pieces)]
        whole = self.words[0]
        assert not isinstance(whole, bytes)
        return whole


class FixIndex:
    """Vectors of fixes in memory: the default ``SearchIndex``."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ids: list[str] = []
        self._by_source: dict[str, list[int]] = {}
        self._groups: dict[bytes, Group] = {}
        self._errors: Array = np.zeros((0, size), np.float32)

    def add(self, fixes: Iterable[tuple[str, str, bytes]]) -> None:
        half = 2 * self.size
        fresh: dict[bytes, list[bytes]] = {}
        for id, source, vector in fixes:
            group = self._groups.get(vector[:half])
            if group is None:
                error = np.frombuffer(vector[:half], np.float16).astype(np.float32)
                group = self._groups[vector[:half]] = Group(error)
            fresh.setdefault(vector[:half], []).append(vector[half:])
            group.rows.append(len(self.ids))
            if source:
                self._by_source.setdefault(source, []).append(len(self.ids))
            self.ids.append(id)
        for key, pieces in fresh.items():
            self._groups[key].words.append(b"".join(pieces))
        if len(self._errors) != len(self._groups):
            self._errors = np.stack([group.error for group in self._groups.values()])

    def search(
        self, error: Array, words: Array | None, *, limit: int, threshold: float, exclude: str = ""
    ) -> list[tuple[str, float]]:
        if not self.ids or limit < 1:
            return []
        excluded = set(self._by_source.get(exclude, ())) if exclude else set()
        near = self._errors @ error
        groups, best = list(self._groups.values()), list[tuple[float, int]]()
        for at in np.argsort(-near, kind="stable"):
            bound = float(2 * near[at] if words is None else near[at] + MOST_OF_A_HALF)
            enough = max(threshold, -best[-1][0]) if len(best) == limit else threshold
            if bound + ROUNDING < enough:
                break
            group = groups[at]
            scores = np.full(len(group.rows), bound, np.float32) if words is None else group.joined(self.size) @ words
            scores = scores if words is None else scores + near[at]
            wanted = min(limit + len(excluded), len(scores))
            edge = max(float(np.partition(scores, -wanted)[-wanted]), threshold)
            found = np.flatnonzero(scores >= edge)
            found = found[np.argsort(-scores[found], kind="stable")]
            best += [(-float(scores[n]), group.rows[n]) for n in found if group.rows[n] not in excluded][:limit]
            best = sorted(best)[:limit]
        return [(self.ids[row], -negative) for negative, row in best]


def in_memory(content: str, size: int) -> SearchIndex:
    """The default ``IndexFactory``."""
    return FixIndex(size)
