"""How the command and its groups show themselves: whole sentences, and help where nothing was asked.

    app = typer.Typer(cls=Group)

Not covered: groups that do something without a command; there are none.
"""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

WIDTH = 110  # of a help that is written into a pipe or a file


class Group(TyperGroup):
    """A group whose help names each command with its whole first sentence, and whose bare call is a call for help."""

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
