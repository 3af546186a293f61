"""The mixture that an adapter learns: rounds of groups of examples, from the questions of training databases only."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import Any

from nl2sql.benchmarks import scorable
from nl2sql.config import PRESETS, SchemaConfig, build_config
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.interfaces import Benchmark, Database, Question
from nl2sql.repair.analyzer import engine_refusal
from training import examples
from training.act import act_example
from training.examples import Example
from training.leaks import asked_keys
from training.swaps import corrupted, error_of, swapped
from training.variants import varied

logger = logging.getLogger(__name__)

VALUES = 4  # cell values shown with a question
OTHERS = 0.4  # of the earlier queries that are shown
LONGEST = 600  # characters of a model's failed query


@dataclass(frozen=True)
class Shares:
    """rounds: passes over the questions, each grouped and worded anew. write: share of the questions that are to be
    answered, question: share whose answers are to be read back as the question. repair: repair examples per question
    and round. draft: share that is also asked with an earlier query beside it, the right one or another's.

    act: transcripts of the loop in all; wrong: share of these that begin with a wrong query, plus: share of these under
    ``react_plus``. held_out: share of the
    databases that only tell when to stop. paraphrase: chance of the other wording where a question has one. swap:
    chance that a question is asked about another column or value.
    vary: share of the groups whose schema is written in another way (``variants``); these have no repair examples.
    """

    rounds: int = 2
    write: float = 1.0
    question: float = 0.0
    repair: float = 0.2
    act: int = 150
    wrong: float = 0.4
    plus: float = 0.0
    held_out: float = 0.05
    paraphrase: float = 0.4
    values: float = 0.75
    guided: float = 0.0
    swap: float = 0.0
    draft: float = 0.0
    vary: float = 0.0

    def __post_init__(self) -> None:
        """Raises UsageError for a share that cannot be."""
        for name, value in asdict(self).items():
            most = math.inf if name in ("rounds", "repair", "act") else 1.0
            if not 0 <= value <= most:
                raise UsageError(f"{name} {value}: give {'a share from 0 to 1' if most == 1 else '0 or more'}")


@dataclass(frozen=True)
class Group:
    """``part``: train or held_out. Examples of a group share their schema text."""

    part: str
    round: int
    examples: tuple[Example, ...]


def mixture(
    benchmark: Benchmark,
    questions: Sequence[Question],
    shares: Shares,
    seed: int = 0,
    progress: bool = False,
    failures: Mapping[str, str] | None = None,
    forbidden: Set[tuple[str, str]] = frozenset(),
) -> Iterator[Group]:
    """The groups, round by round; the same for the same arguments. Items that are not scorable are left out.

    failures: question id -> what a model wrote; where a gate refuses it, it is repaired in place of a made-up mistake,
    whatever ``shares.repair`` says. forbidden: ``asked_keys`` that no made-up question may have.
    """
    from tqdm.auto import tqdm

    sound = [question for question in questions if scorable(question) and question.gold]
    unread = _unread(benchmark, {question.db_id for question in sound})
    sound = [question for question in sound if question.db_id not in unread]
    names = sorted({question.db_id for question in sound})
    random.Random(seed).shuffle(names)
    held_out = set(names[: max(1, round(len(names) * shares.held_out))]) if shares.held_out else set()
    members: dict[str, list[Question]] = {name: [q for q in sound if q.db_id == name] for name in sorted(names)}
    for number in range(shares.rounds):
        for name in tqdm(members, desc=f"round {number + 1}", unit="database", disable=not progress):
            part = "held_out" if name in held_out else "train"
            if part == "held_out" and number:
                continue
            key = f"{seed}:{number}:{name}"
            yield from _groups(benchmark, name, members[name], part, number, shares, key, failures or {}, forbidden)
    trained = [question for question in sound if question.db_id not in held_out]
    yield from _acts(benchmark, trained, shares, random.Random(f"{seed}:act"), progress)


def _unread(benchmark: Benchmark, names: Set[str]) -> set[str]:
    """The databases that cannot be opened; each is named in a warning."""
    found = set()
    for name in sorted(names):
        try:
            benchmark.database(name).schema()
        except DatabaseError as error:
            logger.warning("nothing is learned from database %s: %s", name, error)
            found.add(name)
    return found


def _groups(
    benchmark: Benchmark,
    name: str,
    questions: Sequence[Question],
    part: str,
    number: int,
    shares: Shares,
    key: str,
    failures: Mapping[str, str],
    forbidden: Set[tuple[str, str]],
) -> Iterator[Group]:
    rng = random.Random(key)
    database: Any = benchmark.database(name)
    originals = {question.id: question.gold for question in questions}
    items = []
    for question in questions:
        values = VALUES if rng.random() < shares.values else 0
        asked = _variant(question, database, shares, rng)
        if asked.gold != originals[asked.id] and asked_keys(asked) & forbidden:
            continue
        if (item := examples.asked(asked, database, values)) is not None:
            items.append(item)
    for shown, group in examples.groups(items, rng):
        renamed = part == "train" and _drawn(shares.vary, rng)
        if renamed:
            shown, group = varied(shown, group, rng)
        text = examples.schema_text(shown)
        made = [examples.write_example(item, text) for item in group if _drawn(shares.write, rng)]
        for item in group:
            if _drawn(shares.draft, rng):
                made.append(examples.draft_example(item, text, _draft(item, group, rng)))
            if renamed:  # the database still has its own names
                continue
            own = failures.get(item.question.id, "") if originals.get(item.question.id) == item.question.gold else ""
            wrong = _own_failure(item, own, database)
            if rng.random() < shares.repair and wrong is None:
                wrong = corrupted(item.sql, item.text, shown, database, rng)
            if wrong is not None:
                made.append(_repair(item, text, *wrong, database, shares, rng))
        read_back = [examples.question_example(item) for item in group if _drawn(shares.question, rng)]
        yield from (Group(part, number, tuple(some)) for some in (made, read_back) if some)


def _drawn(share: float, rng: random.Random) -> bool:
    """True for this share of the calls; all and none cost no draw, so that other draws stay what they were."""
    return share >= 1 or (share > 0 and rng.random() < share)


def _draft(item: examples.Asked, group: Sequence[examples.Asked], rng: random.Random) -> str:
    """The query that is shown as an earlier one: mostly the answer, as where it was edited; else a neighbour's."""
    others = [other.sql for other in group if other.sql != item.sql and other.tables & item.tables]
    return rng.choice(others) if others and rng.random() < OTHERS else item.sql


def _own_failure(item: examples.Asked, sql: str, database: Database) -> tuple[str, str] | None:
    """(the query, why a gate refuses it); None where it passes them, or is longer than any right one."""
    if not sql or len(sql) > LONGEST:
        return None
    error = error_of(sql, item.text, item.schema, database)
    return (sql, error) if error is not None else None


def _repair(
    item: examples.Asked, text: str, bad: str, error: str, database: Database, shares: Shares, rng: random.Random
) -> Example:
    if not shares.guided or rng.random() >= shares.guided:
        return examples.repair_example(item, text, bad, error)
    return examples.repair_example(item, text, bad, engine_refusal(bad, database) or error, guided_by=database)


def _variant(question: Question, database: Database, shares: Shares, rng: random.Random) -> Question:
    """The question in one of its wordings, or about another column or value."""
    other = question.meta.get("question_syn")
    if other and rng.random() < shares.paraphrase:
        question = replace(question, text=str(other))
    if shares.swap and rng.random() < shares.swap:
        return swapped(question, database.schema(), database, rng) or question
    return question


def _acts(
    benchmark: Benchmark, questions: Sequence[Question], shares: Shares, rng: random.Random, progress: bool
) -> Iterator[Group]:
    from tqdm.auto import tqdm

    waiting = list(questions)
    rng.shuffle(waiting)
    with tqdm(total=shares.act, desc="loop", unit="episode", disable=not progress) as bar:
        made = 0
        while made < shares.act and waiting:
            question = waiting.pop()
            database = benchmark.database(question.db_id)
            item = examples.asked(question, database)
            if item is None:
                continue
            shown = SchemaConfig(values=VALUES if rng.random() < shares.values else 0)
            preset: dict[str, Any] = PRESETS["react_plus"] if _drawn(shares.plus, rng) else {}
            config = build_config(preset).model_copy(update={"schema_text": shown})
            wrong = None
            if rng.random() < shares.wrong:
                wrong = corrupted(item.sql, item.text, item.schema, database, rng)
            example = act_example(question, item.sql, database, wrong[0] if wrong else None, config)
            if example is not None:
                made += 1
                bar.update()
                yield Group("train", made % max(1, shares.rounds), (example,))
