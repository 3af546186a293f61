"""How the command and its groups show themselves: whole sentences, help where nothing was asked, options in groups.

    app = typer.Typer(cls=Group)
    app.command("eval", cls=grouped({"Model": ("model dtype", "device")}))(command)

Not covered: groups that do something without a command; there are none.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from nl2sql.cli.colour import coloured

EVERY = "nl2sql.every_option"  # in a context's meta: the help shows all
WrongUse: Any = typer.BadParameter.__base__  # every mistake in a command's words; typer has no public name for it
MOVED = {  # commands that stood at the top before there were groups
    "bench-repair": "corpus bench",
    "check-data": "data check",
    "check-run": "runs check",
    "compare": "runs compare",
    "doctor": "models doctor",
    "examples": "new examples",
    "explain": "data explain",
    "export": "runs export",
    "export-failures": "runs failures",
    "plugins": "new plugins",
    "replay": "runs replay",
    "replicas": "data replicas",
    "view": "runs view",
    "vizql": "data vizql",
}
WIDTH = 110  # of a help that is written into a pipe or a file


class Group(TyperGroup):
    """A group whose help names each command with its whole first sentence, and whose bare call is a call for help."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command; a mistake in its words is one line that names the help, and exit code 2."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except WrongUse as error:
            if not standalone_mode:
                raise
            said = error.format_message().rstrip(".").replace("Value error, ", "")
            command = error.ctx.command_path if error.ctx else self.name
            start = coloured("error:", "red", sys.stderr)
            print(f"{start} {said}{' See' if said.endswith('?') else '; see'}: {command} --help", file=sys.stderr)
            sys.exit(2)
        except typer.Abort:
            if not standalone_mode:
                raise
            print("aborted", file=sys.stderr)
            sys.exit(1)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The command's words; without any, the help is printed. A group below the top exits with 2 then."""
        if not args and not ctx.resilient_parsing:
            below = ctx.parent is not None  # a script that typed no command has not got what it wanted
            typer.echo(ctx.get_help(), err=below)
            ctx.exit(2 if below else 0)
        return list(super().parse_args(ctx, args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word. Raises a mistake of use that names the new place of a moved command."""
        if ctx.parent is None and args[0] in MOVED:
            ctx.fail(f"nl2sql {args[0]} is now: nl2sql {MOVED[args[0]]}")
        if ctx.info_name == "runs" and args[0] not in self.commands and Path(args[0]).is_dir():
            ctx.fail(f"nl2sql runs {args[0]} is now: nl2sql runs list {args[0]}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands, without a cut."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, _sentence(command.help or "")) for name, command in commands if command and not command.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def grouped(groups: Mapping[str, tuple[str, str]]) -> type[TyperCommand]:
    """A command whose help shows its options in groups, the rarer ones with ``--help-all`` alone.

    groups: title -> the names of parameters that ``--help`` shows, and those that only ``--help-all`` shows, each a
    text of names with spaces between. Parameters that no group names are shown with ``--help-all`` under the last
    title. The command takes ``HelpAllOption``.
    """

    class Grouped(TyperCommand):
        def format_options(self, ctx: Any, formatter: Any) -> None:
            every = ctx.meta.get(EVERY, False)
            named = {name for shown in groups.values() for part in shown for name in part.split()}
            records = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
            for title, (usual, rarer) in groups.items():
                names = usual.split() + rarer.split() * every
                if title == list(groups)[-1]:
                    names += [name for name in records if name not in named and (every or name == "help")]
                with formatter.section(title):
                    formatter.write_dl([records[name] for name in names])

    return Grouped


def _show_all(ctx: typer.Context, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        typer.echo(full_help(ctx))
        raise typer.Exit


HelpAllOption = Annotated[
    bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show every option, and exit.")
]


def full_help(ctx: Any) -> str:
    """The help of a command with all its options, as ``--help-all`` prints it."""
    ctx.meta[EVERY] = True
    return str(ctx.get_help())


def settings() -> dict[str, Any]:
    """Settings of a help's width: that of the terminal up to ``WIDTH``; in a pipe ``WIDTH``."""
    width = {} if sys.stdout.isatty() else {"terminal_width": WIDTH}
    return {"help_option_names": ["-h", "--help"], "max_content_width": WIDTH, **width}


def _sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    first, stop, _ = paragraph.partition(". ")
    return first + "." * bool(stop)
