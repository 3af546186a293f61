"""SQLite's compiled programs in a form that two statements share where they do the very same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nl2sql.eval.suites.source import Row

# Opcodes by what their operands are. A program with any other is compared as it stands: that costs a proof, no more.
_JUMPS = """
    Init Goto Gosub Yield InitCoroutine If IfNot IsNull NotNull Eq Ne Lt Le Gt Ge IfPos IfNotZero DecrJumpZero Once
    Rewind Last Next Prev SeekGE SeekGT SeekLE SeekLT SeekRowid NotExists NotFound Found NoConflict IdxGE IdxGT IdxLE
    IdxLT SorterSort SorterNext Sort IfNullRow"""
_CURSORS = """
    OpenRead OpenEphemeral OpenAutoindex SorterOpen Rewind Last Next Prev SeekGE SeekGT SeekLE SeekLT SeekRowid Rowid
    NotExists NotFound Found NoConflict IdxGE IdxGT IdxLE IdxLT IdxRowid IdxInsert Column DeferredSeek NullRow
    IfNullRow SorterInsert SorterSort SorterNext Sort"""
_NEITHER = """
    Halt Transaction ResultRow Integer Int64 Real String8 String Null Copy SCopy Move Affinity Multiply Add Subtract
    Divide Concat And Or Not Function PureFunc AggStep AggFinal MakeRecord RealAffinity CollSeq Cast Return
    BeginSubrtn Noop"""
JUMPS = frozenset(_JUMPS.split())  # the second operand is an address
CURSORS = frozenset(_CURSORS.split())  # the first operand is a cursor
KNOWN = JUMPS | CURSORS | frozenset(_NEITHER.split())


def canonical(rows: Sequence[Row]) -> tuple[Any, ...]:
    """A program without the Noops that an ORDER BY leaves which the scan fulfils; addresses and cursors renumbered."""
    if any(row[1] not in KNOWN for row in rows):
        return tuple(row[1:7] for row in rows)
    target, kept = {}, 0
    for row in rows:
        target[row[0]] = kept
        kept += row[1] != "Noop"
    cursors: dict[int, int] = {}
    program = []
    for _, opcode, first, second, third, *rest in (row[:7] for row in rows if row[1] != "Noop"):
        if opcode in CURSORS:
            first = cursors.setdefault(first, len(cursors))
        if opcode == "DeferredSeek":
            third = cursors.setdefault(third, len(cursors))
        program.append((opcode, first, target.get(second, second) if opcode in JUMPS else second, third, *rest))
    return tuple(program)
