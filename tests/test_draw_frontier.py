"""The figure of accuracy against time: which points no other one beats."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "draw_frontier.py"


def test_points_that_no_other_one_beats_are_on_the_frontier(tmp_path: Path) -> None:
    def group(seconds: float, ex: float) -> dict[str, object]:
        return {"all": {"seconds_median": seconds, "ex": {"value": ex, "low": ex - 0.1, "high": ex + 0.1}}}

    small, large = tmp_path / "small.json", tmp_path / "large.json"
    small.write_text(json.dumps({"controllers": {"one": group(1, 0.4), "best": group(3, 0.5)}}), encoding="utf-8")
    large.write_text(json.dumps({"controllers": {"one": group(2, 0.6), "best": group(6, 0.7)}}), encoding="utf-8")
    command = [sys.executable, str(SCRIPT), str(small), str(large), "--figure", str(tmp_path / "f.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    assert [row[:2] for row in rows if row[-1] == "yes"] == [["small", "one"], ["large", "one"], ["large", "best"]]
    assert (tmp_path / "f.png").stat().st_size > 1000
    (tmp_path / "no.json").write_text("[]", encoding="utf-8")
    broken = subprocess.run([*command[:2], str(tmp_path / "no.json")], capture_output=True, text=True, check=False)
    assert broken.returncode == 2 and "expected files of first_answer.py --json" in broken.stderr
