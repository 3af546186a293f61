"""Exact search among stored fixes: one matrix product.

A fix's vector has two halves of length 1/sqrt(2): its masked error, and the words of its failed statement.

>>> index = FixIndex(size=1)
>>> index.add([("fix-1", "", np.array([0.5, 0.5], np.float16).tobytes())])
>>> index.search(np.array([1.0]), np.array([1.0]), limit=1, threshold=0.5)
[('fix-1', 1.0)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
DIGITS = 6  # of a cosine; what differs less is equal


class SearchIndex(Protocol):
    """A place where the vectors of fixes are searched. ``add`` and ``search`` from one thread at a time."""

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


class FixIndex:
    """Vectors of fixes in memory: the default ``SearchIndex``."""

    def __init__(self, size: int) -> None:
        self.ids: list[str] = []
        self._by_source: dict[str, list[int]] = {}
        self._vectors: Array = np.zeros((0, 2 * size), np.float32)

    def add(self, fixes: Iterable[tuple[str, str, bytes]]) -> None:
        pieces: list[bytes] = []
        for id, source, vector in fixes:
            if source:
                self._by_source.setdefault(source, []).append(len(self.ids))
            self.ids.append(id)
            pieces.append(vector)
        fresh = np.frombuffer(b"".join(pieces), np.float16).reshape(-1, self._vectors.shape[1])
        self._vectors = np.concatenate([self._vectors, fresh], dtype=np.float32)

    def search(
        self, error: Array, words: Array | None, *, limit: int, threshold: float, exclude: str = ""
    ) -> list[tuple[str, float]]:
        if not self.ids or limit < 1:
            return []
        cosines = np.round(self._vectors @ joined(error, words), DIGITS)
        if exclude:
            cosines[self._by_source.get(exclude, [])] = -np.inf
        edge = threshold
        if limit < len(cosines):
            edge = max(threshold, float(np.partition(cosines, -limit)[-limit]))
        near = np.flatnonzero(cosines >= edge)
        best = near[np.argsort(-cosines[near], kind="stable")][:limit]
        return [(self.ids[row], float(cosines[row])) for row in best]


def joined(error: Array, words: Array | None) -> Array:
    """The vector whose products with those of fixes are their cosines. An error alone is compared with the first
    halves, whose products are doubled."""
    return np.concatenate([2 * error, np.zeros_like(error)] if words is None else [error, words])


def in_memory(content: str, size: int) -> SearchIndex:
    """The default ``IndexFactory``."""
    return FixIndex(size)
