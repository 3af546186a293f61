"""Texts as vectors, so that similar ones can be found: hashed character n-grams, without a model.

>>> HashedNgrams(64)(["no such column"]).shape
(1, 64)
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # numpy is no required package: whoever embeds nothing does not need it
    import numpy as np
    from numpy.typing import NDArray

Vectors: TypeAlias = "NDArray[np.float32]"
MAX_CHARS = 4000  # of a text; the rest is not looked at


class HashedNgrams:
    """Counts of character n-grams (3 to 5, with word boundaries), hashed into ``size`` signed buckets, damped, scaled
    to length 1. The same text gives the same vector on every machine."""

    def __init__(self, size: int = 128) -> None:
        self.size = size
        self.name = f"hashed-ngrams-3-5-{size}"

    def __call__(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        vectors = np.zeros((len(texts), self.size), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for gram, count in ngrams(text[:MAX_CHARS]).items():
                code = zlib.crc32(gram.encode())
                row[code % self.size] += (1.0 if code & 0x80000000 else -1.0) * (1.0 + np.log(count))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        scaled: Vectors = np.divide(vectors, lengths, out=vectors, where=lengths > 0)
        return scaled


def ngrams(text: str, shortest: int = 3, longest: int = 5) -> Counter[str]:
    """Counts of the character n-grams in the text's words, each word with a blank before and after it."""
    counts: Counter[str] = Counter()
    padded = f" {' '.join(text.lower().split())} "
    if padded.strip():
        for n in range(shortest, longest + 1):
            counts.update(padded[at : at + n] for at in range(len(padded) - n + 1))
    return counts
