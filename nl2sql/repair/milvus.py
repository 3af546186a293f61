"""The vectors of a corpus in Milvus, on a server or in a Milvus Lite file: the same answers as the index in memory.

The corpus file stays the one place where fixes are kept; Milvus holds a copy of their vectors, one collection for each
dialect, made anew after deletions. Where Milvus is gone, nothing is lost. Milvus Lite lets one process in
at a time. Needs the extra ``milvus`` (pymilvus, milvus-lite).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from nl2sql.errors import DatabaseError, one_line
from nl2sql.machine import install_command
from nl2sql.repair.index import Array, IndexFactory, SearchIndex, joined

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
