"""Few-shot examples for ``generate_sql``'s prompt: solved questions of a pool, chosen for the question asked.

>>> masked("How many customers live in Oslo?", ["customers"])
'how many <table> live in oslo'

No question is shown itself or a twin of it: an example with the same words, with the same query, or over the same
database (by name, or by content under another name; ``few_shot.same_database`` allows that one). The asked question's
own gold serves this exclusion and nothing else. Similarity is the cosine of hashed n-grams of the questions, with the
names of tables masked, so that what is asked counts more than what it is asked of [43].

Not covered: a twin in other words and with another query over a database that is the same in all but its rows.
"""

from __future__ import annotations

import functools
import random
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nl2sql.agents.context.linking import STOP_WORDS
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import Config, FewShotConfig
from nl2sql.errors import Nl2SqlError, UsageError, one_line
from nl2sql.interfaces import Benchmark, Database, Question, content_key
from nl2sql.machine import file_version, from_json
from nl2sql.repair.store import HashedNgrams, Vectors
from nl2sql.sql.same import normalise_sql
from nl2sql.sql.text import stem, words

EMBEDDER = HashedNgrams(512)
MASK = "<table>"
# Only for masking: a name that this misses, or finds in a string, changes a similarity and nothing else.
_TABLE = re.compile(r"\b(?:from|join)\s+[\"`\[]?(\w+)", re.IGNORECASE)


@dataclass
class Pool:
    """Solved questions, and where they are from a benchmark, their databases. Thread-safe."""

    items: Sequence[Question]
    benchmark: Benchmark | None = None
    _contents: dict[str, str] = field(default_factory=dict, repr=False)
    _vectors: Vectors | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def fingerprint(self) -> str:
        """Of questions and queries, in their order."""
        return content_key([(item.text, item.gold, item.db_id) for item in self.items])

    def vectors(self) -> Vectors:
        """Of the masked questions, shape ``(items, EMBEDDER.size)``; computed once."""
        with self._lock:
            if self._vectors is None:
                texts = [masked(item.text, _TABLE.findall(item.gold[0])) for item in self.items]
                self._vectors = EMBEDDER(texts)
            return self._vectors

    def content(self, db_id: str) -> str:
        """The fingerprint of a database of the pool; "" where there is none to read."""
        with self._lock:
            if db_id not in self._contents:
                try:
                    fingerprint = self.benchmark.database(db_id).fingerprint if self.benchmark is not None else ""
                except Nl2SqlError:
                    fingerprint = ""
                self._contents[db_id] = fingerprint
            return self._contents[db_id]

    def order(self, question: Question, tables: Iterable[str], select: str, seed: int) -> Iterable[int]:
        """Positions of all items, best first: by similarity, in an order of the question's own, or as they are."""
        if select == "fixed":
            return range(len(self.items))
        if select == "random":
            positions = list(range(len(self.items)))
            random.Random(f"{seed}:{question.db_id}:{question.text}").shuffle(positions)
            return positions
        import numpy as np

        asked = EMBEDDER([masked(question.text, tables)])[0]
        ranked: list[int] = np.argsort(-(self.vectors() @ asked), kind="stable").tolist()
        return ranked


def choose(
    question: Question,
    database: Database,
    pool: Pool,
    config: Config,
    fits: Callable[[str], bool],
    shown: Callable[[Question], tuple[str, str] | None],
) -> list[Question]:
    """The examples for a question, the likest last, next to the question; fixed ones as they stand in the pool.

    fits: whether a text of examples may go into the prompt; those past that are left out, the least like first.
    shown: an example as the prompt shows it; None: it cannot be shown.
    """
    settings = config.few_shot
    tables = [table.name for table in database.schema().tables]
    examples: list[Question] = []
    texts: list[str] = []
    queries: set[str] = set()
    twin = _twins(question, database, pool, settings.same_database)
    for at in pool.order(question, tables, settings.select, config.seed):
        item = pool.items[at]
        query = normalise_sql(item.gold[0])
        pair = shown(item)
        if pair is None or query in queries or twin(item):  # another wording of one that is there shows nothing new
            continue
        if not fits("\n\n".join([*texts, "\n".join(pair)])):
            break
        texts.append("\n".join(pair))
        examples.append(item)
        queries.add(query)
        if len(examples) == settings.k:
            break
    return examples if settings.select == "fixed" else examples[::-1]


def prompt_pair(example: Question) -> tuple[str, str]:
    """Question and query as the prompt shows them."""
    return example.text.strip(), example.gold[0].strip().rstrip("; \n\t") + ";"


def _twins(question: Question, database: Database, pool: Pool, same_database: bool) -> Callable[[Question], bool]:
    """Whether an item of the pool is the question itself or a twin of it. The cheap comparisons come first."""
    texts, queries = wordings(question), {normalise_sql(gold) for gold in question.gold}
    names = {name.casefold() for name in (question.db_id, database.name) if name}

    def twin(item: Question) -> bool:
        if texts & wordings(item):
            return True
        if not same_database and item.db_id.casefold() in names:
            return True
        if queries & {normalise_sql(gold) for gold in item.gold}:
            return True
        return not same_database and pool.content(item.db_id) == database.fingerprint

    return twin


def wordings(question: Question) -> set[str]:
    """The words of a question, in each of its wordings."""
    return {" ".join(words(str(text))) for text in (question.text, question.meta.get("question_syn")) if text}


def masked(text: str, tables: Iterable[str]) -> str:
    """The words of a question with those that name a table replaced, a run of them by one mask."""
    names = {stem(word) for table in tables for word in words(table) if word not in STOP_WORDS}
    masked_words: list[str] = []
    for word in words(text):
        shown_word = MASK if stem(word) in names and word not in STOP_WORDS else word
        if shown_word != MASK or masked_words[-1:] != [MASK]:
            masked_words.append(shown_word)
    return " ".join(masked_words)


# ---------------------------------------------------------------------------------------------------- the pool


def check_few_shot(settings: FewShotConfig) -> None:
    """Raises UsageError or BenchmarkError before a run whose pool is not named, not there, or empty."""
    if settings.k:
        pool = pool_of(settings)
        if settings.select == "similar":
            pool.vectors()


def pool_of(settings: FewShotConfig) -> Pool:
    """The pool that ``settings`` names. Raises UsageError, BenchmarkError."""
    spec = settings.pool
    if not spec:
        raise UsageError(
            f"few_shot.k={settings.k} needs a pool: -c few_shot.pool=packaged:dev, another benchmark[:split], or a "
            'JSONL file of {"question", "sql", "db_id"}'
        )
    if not spec.endswith(".jsonl"):
        return _from_benchmark(spec)
    return _from_file(*file_version(spec, f"few_shot.pool={spec}: there is no such file"))


@functools.lru_cache(maxsize=4)
def _from_benchmark(spec: str) -> Pool:
    """All episodes of a process share a pool: its vectors and fingerprints are computed once."""
    name, sep, split = (spec, "", "") if spec.startswith("hf:") else spec.partition(":")
    benchmark = load_benchmark(name, split=split if sep else None)
    items = [item for item in benchmark.questions if item.gold and not item.meta.get("gold_error")]
    if not items:
        raise UsageError(f"few_shot.pool={spec} has no question with a query that can be shown")
    return Pool(items, benchmark)


@functools.lru_cache(maxsize=4)
def _from_file(path: Path, written: tuple[int, int]) -> Pool:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"few_shot.pool={path} cannot be read: {one_line(error, 200)}") from None
    items = [_item(line, f"{path} line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not items:
        raise UsageError(f"few_shot.pool={path} is empty; expected a line of {_EXPECTED} for each example")
    return Pool(items)


_EXPECTED = '{"question": TEXT, "sql": TEXT, "db_id": TEXT}'


def _item(line: str, where: str) -> Question:
    try:
        row = from_json(line)
        values = [row[key] for key in ("question", "sql", "db_id")]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"few-shot pool {where} is {line[:80]!r}; expected {_EXPECTED}") from None
    if not all(isinstance(value, str) for value in values) or not values[0].strip() or not values[1].strip():
        raise UsageError(f"few-shot pool {where} is {line[:80]!r}; expected {_EXPECTED}, question and sql not blank")
    text, sql, db_id = values
    return Question(text, db_id=db_id, id=str(row.get("id") or where.rpartition(" ")[2]), gold=(sql,))
