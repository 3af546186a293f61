"""Private database servers for the tests: started in a temporary folder, as an unprivileged user where we are root."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READER = "nl2sql_reader"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def unprivileged(*names: str) -> str | None:
    """The first of ``names`` that is a user here, when we are root; else None: we run as ourselves."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in (*names, "nobody") if name in known), None)


@contextmanager
def folder_of(user: str | None) -> Iterator[Path]:
    """A temporary folder that belongs to ``user``. Not under pytest's own, which other users cannot enter."""
    path = Path(tempfile.mkdtemp(prefix="nl2sql-"))
    try:
        if user is not None:
            shutil.chown(path, user)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def find_program(*names: str, folders: str = "") -> str | None:
    places = [str(path) for path in sorted(Path("/").glob(folders), reverse=True)] if folders else []
    path = os.pathsep.join([*places, os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


@contextmanager
def postgres(schema: str) -> Iterator[str | None]:
    """URL of a database with ``schema``, for a role that may only read; None where no server is installed."""
    initdb = find_program("initdb", folders="usr/lib/postgresql/*/bin")
    server = find_program("postgres", folders="usr/lib/postgresql/*/bin")
    if initdb is None or server is None:
        yield None
        return
    import psycopg

    user, port = unprivileged("postgres"), free_port()
    with folder_of(user) as folder:
        data = folder / "data"
        made = [initdb, "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"]
        subprocess.run(made, check=True, capture_output=True, user=user, cwd=folder)
        options = ["-p", str(port), "-k", str(folder), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        process = subprocess.Popen(
            [server, "-D", data, *options], user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            admin = f"postgresql://postgres@127.0.0.1:{port}/postgres"
            connection = waiting(lambda: psycopg.connect(admin, autocommit=True), psycopg.OperationalError, process)
            with connection:
                connection.execute("CREATE DATABASE shop")
                connection.execute(f"CREATE ROLE {READER} LOGIN")
            with psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/shop", autocommit=True) as connection:
                connection.execute(schema)
                connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {READER}")
            yield f"postgresql://{READER}@127.0.0.1:{port}/shop"
        finally:
            stop(process)


@contextmanager
def mysql(schema: str, dump: Path | None = None) -> Iterator[str | None]:
    """The same for MariaDB. dump: a mysqldump file that makes a database of its own, named as the file's folder."""
    install = find_program("mariadb-install-db", "mysql_install_db")
    server = find_program("mariadbd", "mysqld")
    if install is None or server is None:
        yield None
        return
    import pymysql

    user, port = unprivileged("mysql"), free_port()
    with folder_of(user) as folder:
        data = folder / "data"
        made = [install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal"]
        subprocess.run([*made, "--skip-test-db"], check=True, capture_output=True, user=user, cwd=folder)
        options = [f"--port={port}", "--bind-address=127.0.0.1", f"--socket={folder}/s", f"--pid-file={folder}/pid"]
        process = subprocess.Popen(
            [server, "--no-defaults", f"--datadir={data}", *options, "--innodb-flush-log-at-trx-commit=0"],
            user=user,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            connection = waiting(
                lambda: pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True),
                pymysql.err.OperationalError,
                process,
            )
            with connection, connection.cursor() as cursor:
                cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
                cursor.execute("USE shop")
                for statement in filter(str.strip, schema.split(";")):
                    cursor.execute(statement)
                cursor.execute(f"CREATE USER {READER}")
                cursor.execute(f"GRANT SELECT ON shop.* TO {READER}")
            name = "shop"
            if dump is not None:
                name = dump.parent.name
                client = [str(find_program("mariadb", "mysql")), "--no-defaults", f"--socket={folder}/s", "--user=root"]
                with dump.open("rb") as script:
                    subprocess.run(client, stdin=script, check=True, capture_output=True)
                subprocess.run([*client, "-e", f"GRANT SELECT ON {name}.* TO {READER}"], check=True)
            yield f"mysql://{READER}@127.0.0.1:{port}/{name}"
        finally:
            stop(process)


@contextmanager
def redis(*options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]] | None]:
    """Address and process of an empty Redis server; None where none is installed. options: words of its command."""
    server = find_program("redis-server")
    if server is None:
        yield None
        return
    user, port = unprivileged("redis"), free_port()
    with folder_of(user) as folder:
        command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *options]
        process = subprocess.Popen(command, user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            waiting(lambda: socket.create_connection(("127.0.0.1", port), 1).close(), OSError, process)
            yield f"redis://127.0.0.1:{port}/0", process
        finally:
            stop(process)


def waiting(connect, refused: type[Exception], process: subprocess.Popen):  # type: ignore[no-untyped-def]
    """What ``connect`` returns as soon as the server answers."""
    for _ in range(600):
        try:
            return connect()
        except refused:
            assert process.poll() is None, f"the server ended with {process.returncode}"
            time.sleep(0.1)
    raise AssertionError("the server does not answer after a minute")


def stop(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
