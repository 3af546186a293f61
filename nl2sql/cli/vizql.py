"""``nl2sql vizql``: data sources from databases, and structured queries held to them."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from nl2sql.cli.explain import DatabaseOption
from nl2sql.cli.options import SetOption
from nl2sql.errors import Nl2SqlError, UsageError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command("infer")
def infer_command(
    db: DatabaseOption,
    out: Annotated[Path | None, typer.Option(help="The file to write; without it, standard output.")] = None,
) -> None:
    """Describe a database as a data source: captions, roles, tables and their relationships, as YAML to edit.

    \b
    Example: nl2sql vizql infer --db packaged:scale_models --out scale_models.yaml
    """
    from nl2sql.databases.engines import open_database
    from nl2sql.machine import write_whole
    from nl2sql.vizql.infer import infer
    from nl2sql.vizql.source import to_yaml

    database = open_database(db)
    try:
        source = infer(database)
    finally:
        database.close()
    if out is None:
        print(to_yaml(source), end="")
    else:
        write_whole(out, to_yaml(source))
        print(f"wrote {len(source.fields)} fields of {len(source.logicalTables)} tables to {out}")


@app.command("validate")
def validate_command(
    file: Annotated[str, typer.Argument(help="A query, or a request, as JSON; '-': read from stdin.")],
    source: Annotated[Path, typer.Option(help="The data source, as YAML (nl2sql vizql infer writes one).")],
    db: Annotated[str | None, typer.Option(help="The database behind it, to look for the values of filters.")] = None,
    overrides: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the validation as JSON.")] = False,
) -> None:
    """Say whether a structured query is valid over a data source, what is wrong, and what would mend it. Exit code 1
    when it is not valid.

    \b
    Example: nl2sql vizql validate query.json --source scale_models.yaml --db packaged:scale_models
    """
    from nl2sql.config import load_config
    from nl2sql.databases.engines import open_database
    from nl2sql.vizql.mending import as_json as one_line_json
    from nl2sql.vizql.source import read_source
    from nl2sql.vizql.validator import validate

    settings = load_config(overrides=overrides or ()).vizql
    document, described = read_document(file), read_source(source)
    with ExitStack() as stack:
        database = open_database(db) if db else None
        if database is not None:
            stack.callback(database.close)
        validation = validate(document, described, settings, database)
    if as_json:
        print(one_line_json(validation.to_dict()))
    else:
        for line in _lines(validation):
            print(line)
    if not validation.is_valid:
        raise typer.Exit(1)


def read_document(file: str) -> Any:
    """The JSON in a file, or on standard input (``-``). Raises UsageError where there is none."""
    from nl2sql.machine import from_json

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        return from_json(text)
    except OSError as error:
        raise UsageError(f"cannot read the query {file!r} ({error.strerror}); expected a file of JSON, or -") from None
    except ValueError as error:
        raise Nl2SqlError(f'{file!r} is not JSON: {error}; expected a query: {{"fields": [...]}}') from None


def _lines(validation: Any) -> list[str]:
    """The validation for people: each error with the ways to mend it below."""
    count = len(validation.errors)
    lines = [f"not valid: {count} error{'s' * (count > 1)}" if count else "valid"]
    for error in validation.errors:
        lines.append(f"- {error.message}")
        lines += [f"    {text}" for text in dict.fromkeys(way.text for way in error.suggestions)]
    return lines + [f"warning: {text}" for text in validation.warnings]
