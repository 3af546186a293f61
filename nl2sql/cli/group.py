"""How the command and its groups show themselves: whole sentences, and help where nothing was asked.

    app = typer.Typer(cls=Group)

Not covered: groups that do something without a command; there are none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from nl2sql.cli.colour import coloured

WrongUse: Any = typer.BadParameter.__base__  # every mistake in a command's words; typer has no public name for it
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
        """The command's words; without any, the help is printed."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit(0)
        return list(super().parse_args(ctx, args))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands, without a cut."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, _sentence(command.help or "")) for name, command in commands if command and not command.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def settings() -> dict[str, Any]:
    """Settings of a help's width: that of the terminal up to ``WIDTH``; in a pipe ``WIDTH``."""
    width = {} if sys.stdout.isatty() else {"terminal_width": WIDTH}
    return {"help_option_names": ["-h", "--help"], "max_content_width": WIDTH, **width}


def _sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    first, stop, _ = paragraph.partition(". ")
    return first + "." * bool(stop)
