"""What a finished run teaches: its repairs go into a corpus, its refused statements are there to be looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nl2sql.cli import app
from nl2sql.errors import UsageError
from nl2sql.repair.corpus import Corpus
from nl2sql.runs.export import import_run


def run_folder(tmp_path: Path, split: str, **plan: str) -> Path:
    """A run folder with one repaired episode."""
    folder = tmp_path / f"run-{split}"
    folder.mkdir()
    observations = [
        ("generate_sql", {"sql": "SELECT nam FROM customers;"}),
        ("validate_sql", {"valid": False, "reason": "unknown_column:nam"}),
        ("repair_sql", {"sql": "SELECT name FROM customers;"}),
        ("validate_sql", {"valid": True, "reason": "ok"}),
        ("run_sql", {"success": True}),
    ]
    trace = [{"step": 0, "action": a, "args": {}, "observation": o} for a, o in observations]
    row = {"id": "q1", "db_id": "shop", "key": "k", "question": "Names?", "trace": trace}
    (folder / "traces.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "key": "k", "plan": {"split": split, **plan}}))
    (folder / "report.json").write_text("{}")
    return folder


def test_a_run_over_test_questions_is_refused(tmp_path: Path) -> None:
    with Corpus(tmp_path / "corpus.db", create=True) as corpus:
        assert import_run(corpus, run_folder(tmp_path, "dev")) == (1, 1)
        with pytest.raises(UsageError, match="only dev, development"):
            import_run(corpus, run_folder(tmp_path, "test"))
        assert import_run(corpus, tmp_path / "run-test", any_split=True) == (1, 0)


def test_the_repair_of_a_run_is_stored_with_where_it_comes_from(tmp_path: Path) -> None:
    with Corpus(tmp_path / "corpus.db", create=True) as corpus:
        import_run(corpus, run_folder(tmp_path, "train"))
        (row,) = corpus.rows()
    assert (row["failed_sql"], row["successful_sql"]) == (
        "SELECT nam FROM customers",
        "SELECT name FROM customers",
    )
    assert (row["source"], row["category"]) == ("shop/q1", "unknown_column")


def test_a_repair_is_stored_for_the_engine_that_was_asked(tmp_path: Path) -> None:
    with Corpus(tmp_path / "corpus.db", create=True) as corpus:
        import_run(corpus, run_folder(tmp_path, "dev", engine_url="duckdb:shops/{db_id}.duckdb"))
        assert [row["dialect"] for row in corpus.rows()] == ["duckdb"]


def test_the_command_line_reads_runs(tmp_path: Path) -> None:
    def corpus_command(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["corpus", *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    folder, file = str(run_folder(tmp_path, "dev")), str(tmp_path / "corpus.db")
    assert corpus_command("import", folder, "--corpus", file) == "1 found, 1 new\n"
