"""The process that llama.cpp runs in: its server on a loopback port, until standard input ends or the parent is gone.

Settings come as one JSON line on standard input, so that no key stands in a list of processes; one JSON line on
standard output says where it listens, or why it does not. What llama.cpp logs goes to standard error. Run as a file:
nothing of the package is imported here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from typing import Any

BATCH = 256  # tokens of a prompt that are read before the other rows write their next one
PARENT_S = 1.0  # how often it looks whether its parent is still there


def main() -> None:
    """Read the settings, serve, and end with standard input."""
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to understand
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, args=(settings["folder"],), daemon=True).start()
    try:
        server = _server(settings)
    except Exception as error:  # noqa: BLE001  the parent is told, whatever it was
        _tell({"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    _tell({"address": server.listening_address})
    while os.getppid() == parent:  # another process may hold the other end of our standard input
        time.sleep(PARENT_S)
    _end(settings["folder"])


def _server(settings: dict[str, Any]) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = settings["model"], {settings["name"]}
    params.n_parallel, params.n_ctx, params.kv_unified = settings["slots"], settings["cells"], True
    params.n_batch = params.n_ubatch = BATCH
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.cpuparams.poll = params.cpuparams_batch.poll = 0  # no spinning between graphs
    params.port, params.api_keys, params.ui = settings["port"], [settings["key"]], False
    params.sampling.top_k, params.sampling.min_p = 0, 0.0  # temperature and top_p alone, in this order
    params.sampling.samplers = "temperature;top_p"
    params.warmup = False  # the first row does it
    params.cache_ram_mib, params.cache_idle_slots = 0, False  # which slot holds what is ours to decide
    params.slot_save_path = settings["folder"]
    params.verbosity = 2
    if settings["adapter"]:
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(settings["adapter"], 1.0)]
    return xllamacpp.Server(params)


def _tell(data: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def _end_with_input(folder: str) -> None:
    sys.stdin.read()
    _end(folder)


def _end(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # a parent that was killed left it
    os._exit(0)


if __name__ == "__main__":
    main()
