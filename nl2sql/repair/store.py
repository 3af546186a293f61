"""The corpus file with the specification's two tables, the signatures that tell its rows apart, and texts as vectors:
searched exactly in memory, or in Milvus, a server's or a Milvus Lite file's.

>>> sorted(CORPUS.tables)
['corpus_state', 'error_fix_history', 'successful_queries']

>>> mask_error("no such column: T1.nam")
'no such column: <name>'
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from nl2sql.databases.sqlite.disk import OwnFile
from nl2sql.errors import DatabaseError, UsageError, one_line
from nl2sql.machine import install_command
from nl2sql.sql.same import tree_key
from nl2sql.sql.text import KEYWORDS, statement_words

if TYPE_CHECKING:  # numpy is no required package: whoever embeds nothing does not need it
    import numpy as np
    from numpy.typing import NDArray

# --------------------------------------------------------------------------------------- signatures

MAX_CHARS = 4000  # of an error, or of a statement; the rest is not looked at
QUOTED = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`")
NUMBER = re.compile(r"(?<![\w<])\d+(?:\.\d+)?")
WORD = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
AFTER_COLON = re.compile(r"^(no such (?:column|table|view|window)|ambiguous column name|circular reference|"
                         r"unknown_column|unknown_table|ambiguous_column): ?.+$")  # fmt: skip


def mask_error(error: str, failed_sql: str = "", dialect: str = "sqlite") -> str:
    """The error with its names and numbers masked, lower case, on one line: a type of error.

    Names are what the failed statement calls something (tables, columns, aliases, texts); its functions stay, for a
    missing YEAR is repaired otherwise than a missing CONCAT.
    """
    text = " ".join(error[:MAX_CHARS].split())
    names, functions = _names(failed_sql, dialect)
    text = AFTER_COLON.sub(r"\1: <name>", text)

    def quoted(match: re.Match[str]) -> str:
        return match[0] if match[0][1:-1].lower() in functions else "<name>"

    def word(match: re.Match[str]) -> str:
        parts = match[0].lower().split(".")
        return "<name>" if len(parts) > 1 or parts[0] in names else match[0]

    text = WORD.sub(word, QUOTED.sub(quoted, text))
    return NUMBER.sub("<n>", text).lower().replace("<<name>>", "<name>")


def error_signature(error: str, failed_sql: str = "", dialect: str = "sqlite") -> str:
    """16 hex digits that are the same for errors of one type."""
    return hashlib.sha256(mask_error(error, failed_sql, dialect).encode()).hexdigest()[:16]


def _names(sql: str, dialect: str) -> tuple[set[str], set[str]]:
    """(names that are no keywords, names of functions) of a statement, lower case."""
    words = [word.lower() for word in statement_words(sql, dialect)]
    functions = {word for word, behind in zip(words, [*words[1:], ""], strict=False) if behind == "("}
    return {word for word in words if word[:1].isalpha() or word[:1] == "_"} - KEYWORDS - functions, functions


def query_identity(sql: str, dialect: str) -> str:
    """The identity of a stored query: equal for two queries that are the same."""
    return _digest(dialect, tree_key(sql, dialect))


def fix_identity(signature: str, failed_sql: str, successful_sql: str, dialect: str) -> str:
    """The identity of a stored fix: its type of error and both trees."""
    return _digest(dialect, signature, *(tree_key(sql, dialect) for sql in (failed_sql, successful_sql)))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def skeleton(sql: str, dialect: str = "sqlite") -> str:
    """The statement's words without texts and numbers: what its vector is made of."""
    return NUMBER.sub("<n>", " ".join(statement_words(sql[:MAX_CHARS], dialect)).lower())


# ---------------------------------------------------------- texts as vectors, without a model

Vectors: TypeAlias = "NDArray[np.float32]"


class HashedNgrams:
    """Counts of character n-grams (3 to 5, with word boundaries), hashed into ``size`` signed buckets, damped, scaled
    to length 1. The same text gives the same vector on every machine.

    >>> HashedNgrams(64)(["no such column"]).shape
    (1, 64)
    """

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


# ----------------------------------------------------------------------------------------- the file

TABLES = """
CREATE TABLE successful_queries (
    query_id TEXT PRIMARY KEY, sql TEXT NOT NULL, description TEXT, category TEXT, embedding BLOB,
    created_at REAL NOT NULL, dialect TEXT NOT NULL DEFAULT 'sqlite', source TEXT NOT NULL DEFAULT '',
    identity TEXT);
CREATE TABLE error_fix_history (
    id TEXT PRIMARY KEY, error_signature TEXT NOT NULL, error_msg TEXT NOT NULL, failed_sql TEXT NOT NULL,
    successful_sql TEXT NOT NULL, fix_description TEXT, embedding BLOB, created_at REAL NOT NULL,
    category TEXT, dialect TEXT NOT NULL DEFAULT 'sqlite', source TEXT NOT NULL DEFAULT '',
    identity TEXT);
CREATE INDEX idx_queries_category ON successful_queries (category);
CREATE INDEX idx_error_signature ON error_fix_history (error_signature);
CREATE UNIQUE INDEX idx_queries_identity ON successful_queries (identity);
CREATE UNIQUE INDEX idx_fixes_identity ON error_fix_history (identity);
CREATE TABLE corpus_state (name TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO corpus_state VALUES ('changes', '0'), ('rewrites', '0');
"""
CORPUS = OwnFile("corpus", "--corpus", 1, 0x6E6C3271, TABLES, ": 'nl2sql corpus add' makes it")


def open_corpus(path: Path, *, create: bool) -> sqlite3.Connection:
    """A connection to the corpus file. Raises UsageError for a missing file unless ``create``, and what
    ``OwnFile.open`` raises."""
    if not path.exists() and not create:
        raise UsageError(f"no corpus at {path}; 'nl2sql corpus add' makes one, or give --corpus FILE")
    return CORPUS.open(path)


# ------------------------------------------------------- search among stored fixes, exact in memory
# A fix's vector has two halves of length 1/sqrt(2): its masked error, and the words of its failed
# statement.

DIGITS = 6  # of a cosine; what differs less is equal


class SearchIndex(Protocol):
    """A place where the vectors of fixes are searched. ``add`` and ``search`` from one thread at a time."""

    def add(self, fixes: Iterable[tuple[str, str, bytes]]) -> None:
        """``(id, source, vector)`` of further fixes; the vector as two halves of 16-bit numbers."""
        ...

    def search(
        self, error: Vectors, words: Vectors | None, *, limit: int, threshold: float, exclude: str = ""
    ) -> list[tuple[str, float]]:
        """``(id, cosine)`` of the ``limit`` closest fixes of at least ``threshold``, closest first; equal ones in the
        order in which they were stored. ``words`` None: the cosine of the errors alone. ``exclude``: a source that is
        left out."""
        ...


IndexFactory: TypeAlias = Callable[[str, int], SearchIndex]  # (name of the content, size of a half)


class FixIndex:
    """Vectors of fixes in memory, searched by one matrix product: the default ``SearchIndex``.

    >>> import numpy as np
    >>> index = FixIndex(size=1)
    >>> index.add([("fix-1", "", np.array([0.5, 0.5], np.float16).tobytes())])
    >>> index.search(np.array([1.0]), np.array([1.0]), limit=1, threshold=0.5)
    [('fix-1', 1.0)]
    """

    def __init__(self, size: int) -> None:
        import numpy as np

        self.ids: list[str] = []
        self._by_source: dict[str, list[int]] = {}
        self._vectors: Vectors = np.zeros((0, 2 * size), np.float32)

    def add(self, fixes: Iterable[tuple[str, str, bytes]]) -> None:
        import numpy as np

        pieces: list[bytes] = []
        for id, source, vector in fixes:
            if source:
                self._by_source.setdefault(source, []).append(len(self.ids))
            self.ids.append(id)
            pieces.append(vector)
        fresh = np.frombuffer(b"".join(pieces), np.float16).reshape(-1, self._vectors.shape[1])
        self._vectors = np.concatenate([self._vectors, fresh], dtype=np.float32)

    def search(
        self, error: Vectors, words: Vectors | None, *, limit: int, threshold: float, exclude: str = ""
    ) -> list[tuple[str, float]]:
        import numpy as np

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


def joined(error: Vectors, words: Vectors | None) -> Vectors:
    """The vector whose products with those of fixes are their cosines. An error alone is compared with the first
    halves, whose products are doubled."""
    import numpy as np

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
        import numpy as np

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
        self, error: Vectors, words: Vectors | None, *, limit: int, threshold: float, exclude: str = ""
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

    def _hits(self, query: Vectors, limit: int, exclude: str) -> list[tuple[float, int, str]]:
        """``(cosine, place, id)``, closest first."""
        with milvus_errors(self.uri):
            hits = self.client.search(
                self.collection,
                data=[query.astype("float32").tolist()],
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
