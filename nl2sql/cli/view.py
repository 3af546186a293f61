"""``nl2sql runs view``: the runs of a folder in the browser, live. Loads no model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nl2sql.cli.options import TrustOption, TypedUrlOption, trust_of


def view_command(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the runs are.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0 for a free one.")] = 0,
    trust: TrustOption = False,
    engine_url: TypedUrlOption = "",
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Show the runs of a folder in the browser: a list, reports, comparisons, runs in progress, SQL.

    The pages are served on this machine only, under an address with a random token, until Ctrl-C. "run SQL" executes
    what you type on the databases of a run, read-only, in the sandbox. Notes on answers are written into the run's
    folder. What a run names beside packaged parts is opened with --trust alone.

    \b
    Examples:
      nl2sql runs view
      nl2sql runs view /data/runs --port 8000 --no-open
    """
    import sys
    import webbrowser

    from nl2sql.errors import UsageError, typed
    from nl2sql.runs.viewer import Pages, ViewServer

    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; start a run with: nl2sql eval --out {typed(folder / 'first')}")
    with ViewServer(Pages(folder, trust_of(trust, engine_url)), port) as server:
        print(f"{folder} is shown at {server.url}", flush=True)
        print("Ctrl-C ends it", file=sys.stderr)
        if open_ and sys.stdout.isatty():
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended", file=sys.stderr)
