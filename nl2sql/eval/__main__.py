"""``python -m nl2sql.eval``, the specification's way to score, is ``nl2sql score``."""

import runpy
import sys

if __name__ == "__main__":
    sys.argv[1:1] = ["score"]
    runpy.run_module("nl2sql.cli", run_name="__main__", alter_sys=True)
