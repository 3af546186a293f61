"""Search among stored fixes: exact in memory, one matrix product, or in Milvus, a server's or a Milvus Lite file's.

A fix's vector has two halves of length 1/sqrt(2): its masked error, and the words of its failed statement.

>>> index = FixIndex(size=1)
>>> index.add([("fix-1", "", np.array([0.5, 0.5], np.float16).tobytes())])
>>> index.search(np.array([1.0]), np.array([1.0]), limit=1, threshold=0.5)
[('fix-1', 1.0)]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nl2sql.errors import DatabaseError, one_line
from nl2sql.machine import install_command

# -------------------------------------------------------------------------------------------- exact

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


# ---------------------------------------------------------------------------------------- in Milvus
# The corpus file stays the one place where fixes are kept; Milvus holds a copy of their vectors,
# one collection for each dialect, made anew after deletions. Where Milvus is gone, nothing is lost.
# Milvus Lite lets one process in at a time. Needs the extra ``milvus`` (pymilvus, milvus-lite).

BATCH = 1000  # fixes sent at once
SPARE = 16  # further hits that are fetched, so that equal ones can be put in order
MOST = 16_384  # hits that Milvus gives at most
WAIT_S = 10.0
ID, SOURCE, PLACE, VECTOR = "id", "source", "place", "vector"
MAX_SOURCE = 4096  # characters; Milvus wants a bound for every text


def milvus(uri: str) -> IndexFactory:
    """Indexes on the server (``http://HOST:19530``) or in the file (``FILE.db``) of ``uri``.

    Raises DatabaseError where pymilvus is not installed or ``uri`` cannot be opened.
    """
    try:
        from pymilvus import MilvusClient
    except ImportError:
        raise DatabaseError(f"Milvus needs a package; install it: {install_command('milvus')}") from None
    with milvus_errors(uri):
        client = MilvusClient(uri, timeout=WAIT_S)

    def made(content: str, size: int) -> SearchIndex:
        return MilvusIndex(client, uri, content, size)

    return made


@contextmanager
def milvus_errors(uri: str) -> Iterator[None]:
    """Errors of pymilvus raised as DatabaseError: one line with what to do next."""
    from grpc import RpcError
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except (MilvusException, RpcError, OSError) as error:
        said = one_line(getattr(error, "message", "") or error, 200)
        hint = "the corpus file holds everything: start Milvus again, or search without it"
        raise DatabaseError(f"Milvus at {uri}: {said}; {hint}") from None


class MilvusIndex:
    """A ``SearchIndex`` in one collection. A collection that is there already, and full, is used as it is."""

    def __init__(self, client: Any, uri: str, collection: str, size: int) -> None:
        self.client, self.uri, self.collection, self.size = client, uri, collection, size
        self._count = 0

    def add(self, fixes: Iterable[tuple[str, str, bytes]]) -> None:
        rows = [
            {
                ID: id,
                SOURCE: source[:MAX_SOURCE],
                PLACE: self._count + number,
                VECTOR: np.frombuffer(vector, np.float16).astype(np.float32).tolist(),
            }
            for number, (id, source, vector) in enumerate(fixes)
        ]
        with milvus_errors(self.uri):
            there = self._opened() if not self._count else self._count
            self._count += len(rows)
            if there == self._count:  # filled by an earlier process
                return
            for start in range(0, len(rows), BATCH):
                self.client.upsert(self.collection, rows[start : start + BATCH])

    def search(
        self, error: Array, words: Array | None, *, limit: int, threshold: float, exclude: str = ""
    ) -> list[tuple[str, float]]:
        if not self._count or limit < 1:
            return []
        query = joined(error, words)
        wanted = limit + SPARE
        while True:
            hits = self._hits(query, min(wanted, MOST), exclude)
            tied = len(hits) == wanted and hits[-1][0] == hits[limit - 1][0]
            if not tied or wanted >= MOST:
                break
            wanted *= 2  # more fixes are as close as the last one shown: the order stored decides among them
        best = sorted((-score, place, id) for score, place, id in hits if score >= threshold)
        return [(id, -negative) for negative, _, id in best[:limit]]

    def _hits(self, query: Array, limit: int, exclude: str) -> list[tuple[float, int, str]]:
        """``(cosine, place, id)``, closest first."""
        with milvus_errors(self.uri):
            hits = self.client.search(
                self.collection,
                data=[query.astype(np.float32).tolist()],
                anns_field=VECTOR,
                limit=limit,
                filter=f"{SOURCE} != {json.dumps(exclude)}" if exclude else "",
                output_fields=[PLACE],
                search_params={"metric_type": "IP"},
                consistency_level="Strong",
            )
        return [(round(float(hit["distance"]), 6), int(hit["entity"][PLACE]), str(hit[ID])) for hit in hits[0]]

    def _opened(self) -> int:
        """The number of vectors in the collection, which is made where it is not there; those of earlier states go."""
        from pymilvus import DataType

        earlier = self.collection.rpartition("_")[0]
        for name in self.client.list_collections():
            if name.startswith(f"{earlier}_") and name != self.collection:
                self.client.drop_collection(name)
        if not self.client.has_collection(self.collection):
            schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field(ID, DataType.VARCHAR, is_primary=True, max_length=64)
            schema.add_field(SOURCE, DataType.VARCHAR, max_length=MAX_SOURCE)
            schema.add_field(PLACE, DataType.INT64)
            schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=2 * self.size)
            index = self.client.prepare_index_params()
            index.add_index(VECTOR, index_type="FLAT", metric_type="IP")
            self.client.create_collection(self.collection, schema=schema, index_params=index)
        self.client.load_collection(self.collection)
        counted = self.client.query(self.collection, filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(counted[0]["count(*)"])
