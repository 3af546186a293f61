"""Record what a checkout of nl2sql does (predictions, traces, reports), and compare two recordings.

    python scripts/record_behaviour.py inputs  --inputs IN                    # once: scripts, predictions, weights
    python scripts/record_behaviour.py record  --inputs IN --out BEFORE --repo ../checkout-of-before
    python scripts/record_behaviour.py record  --inputs IN --out AFTER        # this checkout; goes on where it ended
    python scripts/record_behaviour.py record  --inputs IN --out AFTER --only 'scripted_*,score_*' --skip '*_seeds'
    python scripts/record_behaviour.py record  --inputs IN --list             # the parts and their commands
    python scripts/record_behaviour.py compare BEFORE AFTER --accept FILE     # exit code 1 where anything differs

Every part is a command line of nl2sql, run as the checkout's own console script in a process and a folder of its own;
only react_fixtures is a Python program, of public names. The folder IN is the same for both sides and is never made
anew. NL2SQL_BENCHMARKS is a folder with spider/ in it; the parts that need it are left out where it is not set.
Record on a quiet machine: queries have a limit of 10 s.

A line of --accept is PART|ID|FIELD, globs of a difference that was meant, e.g. score_*|spider-train-17|ts, or
*||config.repair.* for keys of the configuration that one side lacks (the manifest is one record, without an id).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from behaviour.comparing import compare
from behaviour.inputs import make_inputs
from behaviour.parts import parts
from behaviour.recording import record

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """The command line; the exit code."""
    args = _parser().parse_args()
    benchmarks = os.environ.get("NL2SQL_BENCHMARKS")
    if args.command == "inputs":
        make_inputs(args.repo.resolve(), args.inputs.resolve(), benchmarks)
        return 0
    if args.command == "compare":
        text = args.accept.read_text(encoding="utf-8") if args.accept else ""
        accept = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        return compare(args.a.resolve(), args.b.resolve(), _globs(args.only), accept, args.against)
    if args.list:
        for name, words in parts(args.inputs.resolve()).items():
            print(f"{name}: nl2sql {' '.join(words)}")
        return 0
    if args.out is None:
        raise SystemExit("error: record needs --out DIR, the folder of the recording")
    return record(
        args.repo.resolve(),
        args.inputs.resolve(),
        args.out.resolve(),
        python=args.python,
        only=_globs(args.only),
        skip=_globs(args.skip),
        benchmarks=benchmarks,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    inputs = commands.add_parser("inputs", help="make what every recording reads")
    recording = commands.add_parser("record", help="record the parts that are not yet in --out")
    for command in (inputs, recording):
        command.add_argument("--inputs", type=Path, required=True, metavar="DIR", help="scripts, predictions, weights")
        command.add_argument("--repo", type=Path, default=ROOT, metavar="DIR", help="the checkout (default: this one)")
    recording.add_argument("--out", type=Path, metavar="DIR", help="the recording; a folder per part, and a cache")
    recording.add_argument("--python", default=sys.executable, help="the interpreter (default: this one)")
    recording.add_argument("--only", default="*", help="comma-separated globs of parts")
    recording.add_argument("--skip", default="", help="comma-separated globs of parts")
    recording.add_argument("--list", action="store_true", help="print the parts and their commands")
    comparing = commands.add_parser("compare", help="compare two recordings")
    comparing.add_argument("a", type=Path, metavar="A")
    comparing.add_argument("b", type=Path, metavar="B")
    comparing.add_argument("--only", default="*", help="comma-separated globs of parts")
    comparing.add_argument("--against", metavar="PART", help="compare the part --only of A with this part of B")
    comparing.add_argument("--accept", type=Path, metavar="FILE", help="lines PART|ID|FIELD of what may differ")
    return parser


def _globs(text: str) -> list[str]:
    return [glob.strip() for glob in text.split(",") if glob.strip()]


if __name__ == "__main__":
    sys.exit(main())
