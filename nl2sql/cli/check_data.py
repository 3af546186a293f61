"""``nl2sql data check``: are a benchmark's golds fit to score with? Loads no model library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nl2sql.cli.options import DatabasesOption, QuestionsOption


def check_data(
    benchmark: Annotated[
        str,
        typer.Option(
            "--benchmark",
            "-b",
            help="packaged, packaged-dialogues, vizql, a name in NL2SQL_BENCHMARKS, a folder, or hf:...",
        ),
    ] = "packaged",
    questions: QuestionsOption = None,
    databases: DatabasesOption = None,
    split: Annotated[str | None, typer.Option(help="Check the questions of one split.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one statement may take.")] = 30.0,
    draft: Annotated[
        Path | None, typer.Option(help="Write what fails into a new file: a first draft for --corrections.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Check every gold: it runs, returns rows, answers the same whatever the order of rows, and is as hard as declared.

    Golds are run on the database and on copies with the same rows reversed and shuffled: a LIMIT that cuts through
    ties shows there. One line per failing item; exit code 1 if any fails. Items that the benchmark itself flags are
    passed over and counted.

    Examples:

        nl2sql data check

        nl2sql data check --benchmark packaged-dialogues

        nl2sql data check --benchmark spider --split holdout --json

        nl2sql data check --questions dev.json --databases database --draft corrections.yaml
    """
    import json
    import sys
    from dataclasses import asdict

    from nl2sql.benchmarks import left_out_counts, load_benchmark
    from nl2sql.benchmarks.check import FOUND_HERE, check_questions
    from nl2sql.benchmarks.dialogues import has_dialogues, interactions
    from nl2sql.benchmarks.load import check_databases, named
    from nl2sql.errors import BenchmarkError, UsageError

    if draft is not None and draft.exists():
        raise UsageError(f"--draft {draft} exists; name a new file")
    benchmark = named(benchmark, questions, databases)
    loaded = load_benchmark(benchmark, split=split)
    if not loaded.questions:
        raise BenchmarkError(f"benchmark {benchmark!r} has no questions to check")
    check_databases(loaded)
    faults = check_questions(loaded, loaded.questions, timeout_s=timeout, progress=sys.stderr.isatty())
    if draft is not None:
        from nl2sql.benchmarks.corrections import draft as drafted

        draft.write_text(drafted(faults, loaded.questions), encoding="utf-8")
    left_out = {k: n for k, n in left_out_counts(loaded.questions).items() if k not in FOUND_HERE}
    checked = len(loaded.questions) - sum(left_out.values())
    failing = len({fault.id for fault in faults})
    dialogues = len(interactions(loaded.questions)) if has_dialogues(loaded.questions) else 0
    if as_json:
        failed = [asdict(fault) for fault in faults]
        report = {"benchmark": loaded.name, "split": split, "n": checked, "failing": failing, "failed": failed}
        counted = {"dialogues": dialogues} if dialogues else {}
        typer.echo(json.dumps({**report, **counted, "left_out": left_out}, ensure_ascii=False))
    else:
        for fault in faults:
            typer.echo(f"{fault.id} ({fault.db_id}): {fault.reason}")
        passed_over = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        where = f", in {dialogues} dialogues" if dialogues else ""
        passed = f"; passed over: {passed_over}" if left_out else ""
        typer.echo(f"{checked - failing} of {checked} items are sound{where}{passed}")
    if faults:
        raise typer.Exit(1)
