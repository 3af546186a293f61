"""The mean of two or more LoRA adapters of one model, as one adapter of a lower rank.

    python scripts/average_adapters.py training/first/release training/second/release --out training/average --rank 40

Each is a packaged name or a folder. Use it on adapters that were trained on from one another (``--start-from``):
the mean of two that know nothing of each other is neither.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.models.adapters import find_adapter


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapters", nargs="+", metavar="ADAPTER")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--rank", type=int, metavar="N", help="default: the sum of theirs, which loses nothing")
    options = parser.parse_args()
    try:
        if options.rank is not None and options.rank < 1:
            raise UsageError(f"--rank {options.rank}: give a rank of at least 1")
        if options.out.is_file():
            raise UsageError(f"--out {options.out} is a file; expected a folder")
        folders = [folder for spec in options.adapters if (folder := find_adapter(spec))]
        if len(folders) < len(options.adapters):
            raise UsageError("an average is of adapters: give packaged names or folders")
        from training.publish import average

        average(folders, options.out, options.rank)
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
