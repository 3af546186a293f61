"""Write down what a person sees at a terminal, second by second: a command's output as lines with their seconds.

    python scripts/record_terminal.py nl2sql ask "How many customers are there?" --db packaged:scale_models

prints lines such as ``    0.4  loading smollm2-135m ...`` while the command runs. The command gets a terminal of
``--columns`` columns (a pty). Colours and other control sequences are taken away. A line that is rewritten in place (a
status line, a progress bar) is shown as it stood, where it stood for ``--every`` seconds or more; what is replaced
sooner is left out, so that a bar that moves ten times a second does not fill the page. The seconds are those at which a
line began to be seen, from the start of the command. The exit code is the command's own.

Not covered: programs that draw the whole screen or move the cursor up (several bars at once), keys that a program waits
for, lines longer than the terminal (they are not broken), Windows, which has no pty.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator

TOKEN = re.compile(
    r"\x1b\[[0-?]*[ -/]*([@-~])|\x1b\].*?(?:\x07|\x1b\\)|\x1b[()]?.|[\r\n\b\x07]|[^\x1b\r\n\b\x07]+", re.S
)
UNFINISHED = re.compile(
    r"\x1b(\[[0-?]*[ -/]*|\][^\x07\x1b]*|[()])?\Z"
)  # a control sequence, the rest of which comes later


def started(command: list[str], columns: int) -> tuple[subprocess.Popen[bytes], int]:
    """The command at a terminal of its own, and our end of that terminal; raises OSError where it cannot be run."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    try:
        given = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "env": environment | {"TERM": "xterm"}}
        return subprocess.Popen(command, **given), ours
    finally:
        os.close(theirs)


def parts(terminal: int) -> Iterator[tuple[float, str]]:
    """What is written to the terminal as it comes, with seconds from now, until its other end is closed."""
    start, decoder = time.monotonic(), codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux says so when the other end is closed
            return
        if not part:
            return
        yield time.monotonic() - start, decoder.decode(part)


def lines(written: Iterable[tuple[float, str]], every: float) -> Iterator[tuple[float, str]]:
    """The lines that a person sees, each with the seconds at which it began to be seen.

    written: seconds and what was written then. every: seconds that a line which is rewritten must have stood to be
    shown.

    >>> list(lines([(0.1, "load"), (0.2, "ing"), (2.0, "\\r\\x1b[K\\x1b[32mdone\\x1b[0m\\r\\n")], every=0.5))
    [(0.1, 'loading'), (2.0, 'done')]
    """
    row, column, rest = "", 0, ""
    shown, since = "", 0.0  # what stands on the last line of the screen, and since when
    for now, text in written:
        text, rest = rest + text, ""
        if cut := UNFINISHED.search(text):
            text, rest = text[: cut.start()], cut[0]
        for token in TOKEN.finditer(text):
            piece, control = token[0], token[1]
            if piece == "\n":
                if shown and not row.startswith(shown) and now - since >= every:
                    yield since, shown
                if row.strip():
                    yield since if shown and row.startswith(shown) else now, row.rstrip()
                row, column, shown = "", 0, ""
            elif piece == "\r":
                column = 0
            elif piece == "\b":
                column = max(column - 1, 0)
            elif control == "K":  # erased to the end, or as a whole
                row = row[:column] if piece in ("\x1b[K", "\x1b[0K") else ""
            elif piece[0] not in "\x1b\x07":
                row = row[:column].ljust(column) + piece + row[column + len(piece) :]
                column += len(piece)
        if row.rstrip() == shown:
            continue
        if not (shown and row.startswith(shown)):
            if shown and now - since >= every:
                yield since, shown
            since = now
        shown = row.rstrip()
    if shown:
        yield since, shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, default=100, help="width of the terminal (default: %(default)s)")
    parser.add_argument("--every", type=float, default=0.3, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    options = parser.parse_args()
    if not options.command:
        parser.error(
            'which command? for example: python scripts/record_terminal.py nl2sql explain "SELECT 1" --db FILE'
        )
    try:
        running, terminal = started(options.command, options.columns)
    except OSError as error:
        parser.error(f"{options.command[0]} cannot be run ({error.strerror}); give the path of a program")
    for seconds, line in lines(parts(terminal), options.every):
        print(f"{seconds:7.1f}  {line}", flush=True)
    sys.exit(running.wait())


if __name__ == "__main__":
    main()
