"""How the command and its groups show themselves: whole sentences, and help where nothing was asked.

Not covered: groups that do something without a command; there are none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

EVERY = "nl2sql.every_option"  # in a context's meta: the help shows all
WrongUse: Any = typer.BadParameter.__base__  # every mistake in a command's words; typer has no public name for it
CODES = {"red": 31, "green": 32, "yellow": 33, "bold": 1}
MOVED = {  # commands that stood at the top before there were groups
    **{name: f"data {name}" for name in ("explain", "replicas", "vizql")},
    **{name: f"new {name}" for name in ("examples", "plugins")},
    **{name: f"runs {name}" for name in ("compare", "export", "replay", "view")},
    "bench-repair": "corpus bench",
    "check-data": "data check",
    "check-run": "runs check",
    "doctor": "models doctor",
    "export-failures": "runs failures",
}
WIDTH = 110  # of a help that is written into a pipe or a file


class Group(TyperGroup):
    """A group whose help names each command with its whole first sentence, and whose bare call is a call for help."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command; a mistake in its words is one line that names the help, and exit code 2."""
        standalone_mode = options.get("standalone_mode", True)
        try:
            code = super().main(*args, **options | {"standalone_mode": False})
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


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """The text in a colour of ``CODES``, where ``stream`` is a terminal that has it; else the text as it is.

    None in a pipe, on a dumb terminal, or with NO_COLOR (https://no-color.org).
    """
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain or not colour else f"\x1b[{CODES[colour]}m{text}\x1b[0m"


def _sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    first, stop, _ = paragraph.partition(". ")
    return first + "." * bool(stop)
