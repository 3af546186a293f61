"""``nl2sql chat``: a conversation over one database, typed or from a pipe."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nl2sql.cli import options as opt
from nl2sql.errors import Cancelled, Nl2SqlError, UsageError, interruptible, one_line, printable
from nl2sql.interfaces import DEFAULT_MODEL
from nl2sql.machine import as_path, masked, write_whole

if TYPE_CHECKING:
    from nl2sql.agents.record import Episode
    from nl2sql.cli.answer_text import StatusLine
    from nl2sql.sessions.conversation import Conversation
    from nl2sql.sessions.stores import SessionStore

MOST_SUGGESTED = 5
HELP = """A question in plain words, or one of:
/history      the turns that the next question follows on
/sql          the last query that ran
/reset        forget this session and begin another
/export FILE  write the turns as JSON, to a new file
/sessions     your sessions in the store, the latest first
/help         these lines
/quit         end; so does the end of the input"""


def chat(
    db: Annotated[str | None, typer.Option("--db", help="A database, as for nl2sql ask.")] = None,
    session: Annotated[
        str | None, typer.Option("--session", help="A session of --store to go on with, or a name for a new one.")
    ] = None,
    store: Annotated[
        str, typer.Option(help="Where turns are kept: memory (lost at the end), a FILE, or redis://HOST:PORT/NUMBER.")
    ] = "memory",
    ttl: Annotated[float, typer.Option(help="Seconds that a session rests before it ends; 0: no end.")] = 0.0,
    model: opt.Model = DEFAULT_MODEL,
    controller: opt.Controller = "best",
    device: opt.Device = "auto",
    dtype: opt.Dtype = None,
    adapter: opt.Adapter = "auto",
    server: opt.Server = None,
    no_cache: opt.Cache = False,
    config: opt.Config = None,
    set_: opt.Set = None,
    constrain: opt.Constrain = None,
    knowledge: opt.Knowledge = None,
    verified: opt.Verified = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON for each answer and command.")
    ] = False,
) -> None:
    """Ask question after question; a follow-up ("What about Germany?") is understood from the turns before it.

    Each answer shows what was understood, the SQL and the rows. Ctrl-C gives up a question, the end of input ends.

    \b
    Examples:
      nl2sql chat --db packaged:scale_models
      nl2sql chat --db shop.sqlite --store chats.db --session monday
      nl2sql chat --db shop.sqlite --knowledge shop.md --verified shop_queries.yaml
      nl2sql chat --db postgresql://reader@localhost/shop --store redis://localhost:6379/0
      printf 'How many customers are there?\\nWhat about those in Germany?\\n/sql\\n' | nl2sql chat --db shop.sqlite
      nl2sql chat --db shop.sqlite -c session.resolve=rewrite --model http://localhost:8000/v1#NAME
    """
    if db is None:
        raise UsageError("which database? give --db FILE.sqlite")
    if session and store == "memory":
        raise UsageError(f"--session {session}: memory keeps no session after the end; add --store FILE")

    from nl2sql.agents.controllers import get_controller
    from nl2sql.benchmarks.verified import read_verified
    from nl2sql.cli.answer_text import StatusLine, stale_lines
    from nl2sql.config import load_config
    from nl2sql.models import load_model
    from nl2sql.runs.plan import check_config
    from nl2sql.sessions.conversation import Conversation, local_owner
    from nl2sql.sessions.stores import open_store, shown_address

    named = get_controller(controller)
    own = {"constrain": constrain, "knowledge.file": knowledge, "knowledge.verified": verified}
    settings = load_config(config or (), opt.overrides(set_, own), base=named.preset)
    with ExitStack() as stack:
        status = stack.enter_context(StatusLine())
        database = stack.enter_context(closing(opt.open_asked(db)))
        kept = stack.enter_context(closing(open_store(store, ttl_s=ttl, say=_say)))
        kept.cleanup()
        status.say(f"loading {model} ...")
        where: dict[str, Any] = {"device": device, "dtype": dtype, "adapter": adapter}
        loaded = load_model(model, **where, batch_size=8, server=server or (), cache=not no_cache)
        stack.enter_context(closing(loaded))
        check_config(loaded, settings)
        whose: dict[str, Any] = {"session_id": session, "owner": local_owner()}
        conversation = Conversation(database, loaded, named, kept, config=settings, **whose)
        status.say("")
        if store != "memory" and session is None:
            where_kept = shown_address(store)
            _say(f"session {conversation.session_id}; to go on with it: --store {where_kept} --session (this name)")
        if settings.knowledge.verified:
            queries = read_verified(settings.knowledge.verified)
            usable = [f"  {query.question}" for query in queries.usable(database)]
            more = [f"  ... {len(usable) - MOST_SUGGESTED} more"] if len(usable) > MOST_SUGGESTED else []
            lines = ["verified questions:", *usable[:MOST_SUGGESTED], *more]
            for line in [*lines, *stale_lines(queries.stale(database))]:
                _say(line)
        shown = Shown(conversation, kept, status, as_json)
        stack.enter_context(interruptible("interrupted; turns in a --store are kept"))
        for line in _lines(conversation.session_id):
            if line in ("/quit", "/exit"):
                break
            shown.answer(line)


class Shown:
    """A conversation on a terminal or a pipe: each line is answered, and nothing that goes wrong ends it."""

    def __init__(self, conversation: Conversation, store: SessionStore, status: StatusLine, as_json: bool) -> None:
        self.conversation, self.store, self.status, self.as_json = conversation, store, status, as_json
        self.commands: dict[str, Callable[[str], dict[str, Any]]] = {
            "/history": self.history,
            "/sql": self.sql,
            "/reset": self.reset,
            "/export": self.export,
            "/sessions": self.sessions,
            "/help": lambda _: {"text": HELP},
        }

    def answer(self, line: str) -> None:
        """Print what comes of a line: a command, or a question."""
        try:
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._question(line)
        except Cancelled as error:
            _say(one_line(error))
        except (Nl2SqlError, OSError) as error:
            self._print(f"error: {masked(one_line(error))}", {"error": one_line(error)})

    # -------------------------------------------------------------------------------------------- commands

    def history(self, _: str) -> dict[str, Any]:
        turns = self.conversation.history
        lines = [f"{n}. {t.user_query}\n   {t.sql}\n   {t.results_summary}" for n, t in enumerate(turns, 1)]
        return {"text": "\n".join(lines) or "(no turns yet)", "turns": [asdict(turn) for turn in turns]}

    def sql(self, _: str) -> dict[str, Any]:
        turns = self.conversation.history
        return {"text": turns[-1].sql if turns else "(no query yet)", "sql": turns[-1].sql if turns else ""}

    def reset(self, _: str) -> dict[str, Any]:
        self.conversation.reset()
        return {"text": f"a new session: {self.conversation.session_id}", "session_id": self.conversation.session_id}

    def export(self, name: str) -> dict[str, Any]:
        if not name:
            raise UsageError("export to which file? type /export FILE.json")
        turns = [asdict(turn) for turn in self.conversation.history]
        path = as_path(name)
        if path is None:
            raise UsageError(f"{name} is no path of a file; type /export with another name")
        try:
            write_whole(path, json.dumps(turns, indent=2) + "\n", new=True)
        except FileExistsError:
            raise UsageError(f"{path} exists; type /export with another name") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}; type /export with another name") from None
        return {"text": f"wrote {len(turns)} turns to {path}", "file": str(path)}

    def sessions(self, _: str) -> dict[str, Any]:
        names = self.store.sessions(self.conversation.owner)
        lines = [f"{name} (this one)" if name == self.conversation.session_id else name for name in names]
        return {"text": "\n".join(lines) or "(no sessions yet)", "sessions": names}

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if name not in self.commands:
            raise UsageError(f"no command {name}; there are {', '.join(self.commands)}, /quit")
        said = self.commands[name](argument.strip())
        self._print(said.pop("text"), {"command": name, **said})

    # ------------------------------------------------------------------------------------------- questions

    def _question(self, text: str) -> None:
        from nl2sql.cli.answer_text import answer_text, escaped
        from nl2sql.sessions.conversation import understood_lines

        episode = self._asked(text)
        self.status.say("")
        if self.as_json:
            self._print("", episode.to_dict())
            return
        lines = [f"-- {escaped(line)}" for line in understood_lines(episode)]
        back = episode.flags.get("talk") or episode.flags.get("clarification")
        answered = f"-- {escaped(back)}" if back else answer_text(episode, self.conversation.database)
        self._print("\n".join([*lines, answered]), {})

    def _asked(self, text: str) -> Episode:
        """The answer, computed beside this thread, so that Ctrl-C reaches this one and is passed on."""
        cancel = threading.Event()
        answer: Future[Episode] = Future()

        def ask() -> None:
            try:
                answer.set_result(self.conversation.ask(text, sink=self.status.event, cancel=cancel))
            except BaseException as error:  # noqa: BLE001 - raised again where it was asked
                answer.set_exception(error)

        thread = threading.Thread(target=ask)
        try:
            thread.start()  # Ctrl-C may reach this thread here already
            return answer.result()
        except KeyboardInterrupt:
            cancel.set()
            self.status.say("giving up the question ...")
            if thread.is_alive():
                thread.join()
            raise Cancelled("the question was given up; ask another, or end with Ctrl-D") from None

    def _print(self, text: str, record: dict[str, Any]) -> None:
        from nl2sql.agents.record import json_text

        print(json_text(record) if self.as_json else masked(printable(text)), flush=True)


def _lines(session_id: str) -> Iterator[str]:
    """The lines that are typed, or come over a pipe, up to the end."""
    if not sys.stdin.isatty():
        for raw in sys.stdin.buffer:
            yield raw.decode("utf-8", "replace").strip()
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - input() then edits lines and knows the earlier ones
    _say(f"session {session_id}; /help for commands, Ctrl-D to end")
    while True:
        try:
            yield input("? ").encode("utf-8", "replace").decode("utf-8").strip()
        except KeyboardInterrupt:
            print()
        except EOFError:
            print()
            return


def _say(text: str) -> None:
    print(f"-- {masked(printable(text))}", file=sys.stderr, flush=True)
