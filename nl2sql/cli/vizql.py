"""``nl2sql data vizql``: data sources from databases and services, and structured queries held to them."""

from __future__ import annotations

import sys
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from nl2sql.cli import options as opt
from nl2sql.cli.options import Group
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.machine import from_json, write_whole

if TYPE_CHECKING:
    from nl2sql.config import VizqlConfig
    from nl2sql.vizql.source import DataSource
    from nl2sql.vizql.validator import Validation

QueryArgument = Annotated[str, typer.Argument(help="A query, or a request, as JSON; '-': read from stdin.")]
SourceOption = Annotated[Path, typer.Option(help="The data source, as YAML (nl2sql data vizql infer writes one).")]

app = typer.Typer(cls=Group, rich_markup_mode=None)


@app.command("infer")
def infer_command(
    db: Annotated[str | None, typer.Option(help=opt.DATABASE)] = None,
    vds: Annotated[str | None, typer.Option(metavar="URL", help="Ask a Tableau server's VizQL Data Service.")] = None,
    luid: Annotated[str | None, typer.Option(help="With --vds: of the published data source.")] = None,
    semantic_model: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --db: described by this model of OSI 1.0, as YAML.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; without it, standard output.")] = None,
    force: Annotated[bool, typer.Option(help="Overwrite a file that is there.")] = False,
) -> None:
    """Describe a database, or a data source of a Tableau server, as a data source: captions, roles, tables and their
    relationships, as YAML to edit. How to sign in at a server: docs/vizql.md.

    \b
    Examples:
      nl2sql data vizql infer --db packaged:scale_models --out scale_models.yaml
      nl2sql data vizql infer --vds https://10az.online.tableau.com --luid LUID --out sales.yaml
    """
    from nl2sql.databases.engines import open_database
    from nl2sql.vizql.infer import infer
    from nl2sql.vizql.service import open_service
    from nl2sql.vizql.source import to_yaml

    if out is not None and out.exists() and not force:
        raise UsageError(f"{out} exists, maybe with corrections; name another file, or add --force")
    if (db is None) == (vds is None) or (vds is None) != (luid is None):
        raise UsageError("expected --db DATABASE, or --vds URL with --luid LUID; see: nl2sql data vizql infer --help")
    if vds is not None and luid is not None:
        with open_service(vds, datasource_luid=luid) as service:
            source = service.source
    else:
        with closing(open_database(db or "")) as database:
            source = infer(database)
    if semantic_model is not None:
        from nl2sql.vizql.semantic_model import described

        source, left = described(source, semantic_model)
        print("".join(f"left out: {line}\n" for line in left), end="", file=sys.stderr)
    if out is None:
        print(to_yaml(source), end="")
    else:
        write_whole(out, to_yaml(source))
        print(f"wrote {len(source.fields)} fields of {len(source.logicalTables)} tables to {out}")


@app.command("validate")
def validate_command(
    file: QueryArgument,
    source: SourceOption,
    db: Annotated[str | None, typer.Option(help="The database behind it, to look for the values of filters.")] = None,
    overrides: opt.Set = None,
    as_json: opt.Json = False,
) -> None:
    """Say whether a structured query is valid over a data source, what is wrong, and what would mend it. Exit code 1
    when it is not valid.

    \b
    Example: nl2sql data vizql validate query.json --source scale_models.yaml --db packaged:scale_models
    """
    *_, validation = _validated(file, source, overrides, db)
    _show_validation(validation, as_json)
    if not validation.is_valid:
        raise typer.Exit(1)


@app.command("compile")
def compile_command(
    file: QueryArgument,
    source: SourceOption,
    dialect: Annotated[str, typer.Option(help="The database's dialect: sqlite or duckdb.")] = "sqlite",
    overrides: opt.Set = None,
    as_json: opt.Json = False,
) -> None:
    """Print the SQL of a structured query. Exit code 1 when it is not valid, or not executable here.

    \b
    Example: nl2sql data vizql compile query.json --source scale_models.yaml
    """
    from nl2sql.vizql.autofix import as_json as one_line_json
    from nl2sql.vizql.compile import compiled
    from nl2sql.vizql.query import Request, as_request

    settings, document, described, validation = _validated(file, source, overrides)
    if not validation.is_valid:
        _show_validation(validation, as_json)
        raise typer.Exit(1)
    query = compiled(Request.model_validate(as_request(document)), described, dialect, settings=settings)
    if as_json:
        print(one_line_json(asdict(query)))
    else:
        print(query.sql or "\n".join(f"not executable: {reason}" for reason in query.not_executable))
        _warn(validation, sys.stderr)
    if not query.sql:
        raise typer.Exit(1)


@app.command("run")
def run_command(
    file: QueryArgument,
    db: opt.Database,
    source: Annotated[Path | None, typer.Option(help="The data source, as YAML; without it, inferred.")] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Rows that are read.")] = 10_000,
    overrides: opt.Set = None,
    as_json: opt.Json = False,
) -> None:
    """Execute a structured query over a database, or a published data source. Exit code 1 when no rows came of it.

    \b
    Examples:
      nl2sql data vizql run query.json --db packaged:scale_models
      nl2sql data vizql run query.json --db vds:https://10az.online.tableau.com#LUID
    """
    from nl2sql.agents.record import json_text
    from nl2sql.cli.answer_text import rows_text
    from nl2sql.config import load_config
    from nl2sql.vizql.infer import infer
    from nl2sql.vizql.querying import run_query
    from nl2sql.vizql.source import read_source

    settings, document = load_config(overrides=overrides or ()).vizql, _read_document(file)
    with closing(opt.open_asked(db)) as database:
        own = getattr(database, "source", None)
        described = read_source(source) if source else own or infer(database)
        reply = run_query(document, described, database, settings, max_rows=max_rows)
    result = reply.result
    if as_json:
        print(json_text(reply.to_dict()))
    elif not reply.validation.is_valid:
        _show_validation(reply.validation, as_json=False)
    elif result is not None and result.success:
        print("\n".join([reply.sql, *rows_text(result.columns, result.rows)]))
        if result.truncated:
            print(f"-- cut at {max_rows} rows; see --max-rows")
        _warn(reply.validation, sys.stderr)
    if reply.error:
        if reply.validation.is_valid and not as_json:
            raise Nl2SqlError(reply.error)
        raise typer.Exit(1)


def _validated(
    file: str, source: Path, overrides: list[str] | None, db: str | None = None
) -> tuple[VizqlConfig, Any, DataSource, Validation]:
    """The settings, the query that was read, the data source, and what of the query is not valid."""
    from nl2sql.config import load_config
    from nl2sql.databases.engines import open_database
    from nl2sql.vizql.source import read_source
    from nl2sql.vizql.validator import validate

    settings = load_config(overrides=overrides or ()).vizql
    document, described = _read_document(file), read_source(source)
    with closing(open_database(db)) if db else nullcontext() as database:
        return settings, document, described, validate(document, described, settings, database)


def _read_document(file: str) -> Any:
    """The JSON in a file, or on standard input (``-``). Raises UsageError where there is none."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        return from_json(text.removeprefix("\ufeff"), once=True)  # Windows begins UTF-8 with a mark
    except OSError as error:
        raise UsageError(f"cannot read the query {file!r} ({error.strerror}); expected a file of JSON, or -") from None
    except ValueError as error:
        raise Nl2SqlError(f'{file!r} is not JSON: {error}; expected a query: {{"fields": [...]}}') from None


def _show_validation(validation: Validation, as_json: bool) -> None:
    """Print a validation as JSON, or for people: each error with the ways to mend it below."""
    from nl2sql.vizql.autofix import as_json as one_line_json

    if as_json:
        print(one_line_json(validation.to_dict()))
        return
    count = len(validation.errors)
    print(f"not valid: {count} error{'s' * (count > 1)}" if count else "valid")
    for error in validation.errors:
        print(f"- {error.message}")
        for text in dict.fromkeys(way.text for way in error.suggestions):
            print(f"    {text}")
    _warn(validation, sys.stdout)


def _warn(validation: Validation, stream: TextIO) -> None:
    for text in validation.warnings:
        print(f"warning: {text}", file=stream)
