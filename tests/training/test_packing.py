"""Packs: rows behind one copy of what they share; and the data that they are made of."""

from __future__ import annotations

import json
import random
from pathlib import Path

import programs
import pytest
from training.packing import IGNORED, Row, packs, read_groups

from nl2sql.errors import UsageError


def rows(count: int, shared: int = 20, seed: int = 0) -> list[Row]:
    rng = random.Random(seed)
    head = [rng.randrange(3, 259) for _ in range(shared)]
    made = []
    for n in range(count):
        ids = [*head, 3 + n, *(rng.randrange(3, 40) for _ in range(rng.randrange(4, 30)))]
        answer = len(ids) - 3
        made.append(Row(tuple(ids), tuple(IGNORED if i < answer else token for i, token in enumerate(ids))))
    return made


def test_packs_hold_every_row_once_behind_what_they_share() -> None:
    made = rows(7)
    found = packs([made], max_tokens=120)
    assert len(found) > 1
    assert all(len(pack.ids) <= 120 for pack in found)
    again = [(*pack.ids[: pack.shared], *pack.ids[start:end]) for pack in found for start, end in pack.spans]
    assert again == [row.ids for row in made]
    assert sum(pack.learned for pack in found) == 7 * 3
    assert found[0].shared == 20
    for pack in found:
        for start, end in pack.spans:
            assert pack.positions[start:end] == list(range(pack.shared, pack.shared + end - start))


def test_a_pack_takes_as_many_rows_as_fit() -> None:
    """Against the definition: what a prefix of the rows begins with, and the most of them that fit behind it."""

    def size(some: list[Row]) -> int:
        limit = min(next((i for i, t in enumerate(r.labels) if t != IGNORED), len(r.ids)) for r in some)
        ends = (i for i in range(limit) if len({r.ids[i] for r in some}) > 1)
        shared = next(ends, limit) if len(some) > 1 else 0
        return shared + sum(len(r.ids) - shared for r in some)

    for seed in range(60):
        left = rows(3, shared=seed % 25, seed=seed) + rows(4, shared=seed % 11, seed=seed)
        random.Random(seed).shuffle(left)
        for pack in packs([left], 60):
            count = len(pack.spans)
            assert len(pack.ids) == size(left[:count]) <= 60
            assert count == len(left) or size(left[: count + 1]) > 60
            left = left[count:]
        assert not left


def test_data_are_built_unless_an_evaluation_set_holds_the_same_databases(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ["--benchmark", "packaged", "--split", "dev", "--limit", "15", "--rounds", "1", "--act", "0"]
    refused = programs.script("build_training_data.py", *options, "--out", data, "--check", "packaged:test")
    assert refused.returncode == 2 and "nothing is left" in refused.stderr
    built = programs.script("build_training_data.py", *options, "--out", data)
    assert built.returncode == 0, built.stderr
    assert json.loads((data / "card.json").read_text())["examples"]["train write"] > 5
    (tmp_path / "file").touch()
    found = programs.script("build_training_data.py", "--benchmark", "packaged", "--out", tmp_path / "file")
    assert (found.returncode, found.stderr.count("\n")) == (2, 1) and "is a file" in found.stderr


def test_training_data_are_read_line_by_line(tmp_path: Path) -> None:
    """U+0085 and U+2028 end lines for ``str.splitlines``, not in this file."""
    with pytest.raises(UsageError, match=r"build_training_data\.py"):
        read_groups(tmp_path)
    asked = {"role": "user", "content": "caf\x85 \u2028"}
    about = {"id": "1", "db_id": "shop", "task": "write", "closed": True}
    example = about | {"messages": [asked], "pieces": [["SELECT 1", True]]}
    parts = (("train", 1), ("held_out", 0), ("train", 0))
    lines = [{"part": part, "round": number, "examples": [example]} for part, number in parts]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (tmp_path / "groups.jsonl").write_text(text, encoding="utf-8")
    rounds, held_out = read_groups(tmp_path)
    assert ([len(groups) for groups in rounds], len(held_out)) == ([1, 1], 1)
    assert rounds[0][0][0].messages[0]["content"] == asked["content"]
