"""PostgreSQL, MariaDB and MySQL for tests: servers of their own, from the binaries that this machine has."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ports import free_port

PASSWORD = "right: 'one'"


@dataclass(frozen=True)
class Server:
    """A running server; ``url`` is for JDBC and ends before the database, ``client`` takes SQL. ``binaries``
    is the folder of its programs.
    """

    url: str
    user: str
    client: tuple[str, ...]
    in_database: str = ""
    binaries: Path | None = None

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""
        return int(self.url.rstrip("/").rpartition(":")[2])

    def sql(self, text: str, database: str = "") -> str:
        """Run SQL, and give what it prints."""
        password = PASSWORD if self.user else ""
        environment = {**os.environ, "PGPASSWORD": password, "MYSQL_PWD": password}
        command = [*self.client, *([self.in_database, database] if self.in_database and database else [])]
        command += [database] if database and not self.in_database else []
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, env=environment, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def transaction(server: Server, database: str, statement: str) -> Iterator[Callable[[], None]]:
    """A transaction that has run a statement, and is open until the end of the block or until what is given
    is called, which commits it.
    """
    named = [server.in_database, database] if server.in_database else ["--unbuffered", database]
    session = subprocess.Popen(
        [*server.client, *named],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PGPASSWORD": PASSWORD, "MYSQL_PWD": PASSWORD},
    )
    assert session.stdin is not None
    assert session.stdout is not None

    def commit() -> None:
        session.communicate("COMMIT;\n", timeout=60)

    try:
        session.stdin.write(f"BEGIN; {statement}; SELECT 'it has run';\n")
        session.stdin.flush()
        assert session.stdout.readline() == "it has run\n"
        yield commit
    finally:
        session.kill()
        session.wait(20)


@contextmanager
def start_postgres(folder: Path) -> Iterator[Server]:
    """A PostgreSQL server with logical decoding; skips where there are no binaries."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda each: int(each.parts[4]))
    named = shutil.which("postgres")
    binaries = Path(named).resolve().parent if named else found[-1].parent if found else None
    if binaries is None or shutil.which("psql") is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    owner = _owner("postgres")
    data, port = _data(folder, "postgres", owner), free_port()
    password = data / "password"
    password.write_text(PASSWORD)
    password.chmod(0o644)
    form = ("-A", "scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", f"--pwfile={password}")
    _run([binaries / "initdb", "-D", data / "pg", "-U", "tester", *form], owner)
    options = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": data,
        "wal_level": "logical",
        "fsync": "off",
    }
    command = [binaries / "postgres", "-D", data / "pg", *(f"--{k}={v}" for k, v in options.items())]
    client = ("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(port), "-U", "tester")
    server = Server(f"jdbc:postgresql://127.0.0.1:{port}/", "tester", client, "-d", binaries)
    with _running(command, data / "log", owner, lambda: server.sql("SELECT 1", "postgres")):
        yield server


@contextmanager
def start_mariadb(folder: Path) -> Iterator[Server]:
    """A MariaDB server with a binary log of rows; skips where there are no binaries."""
    server_binary, install = shutil.which("mariadbd"), shutil.which("mariadb-install-db")
    if server_binary is None or install is None:
        pytest.skip("MariaDB is not installed: apt-get install mariadb-server")
    owner = _owner("mysql")
    data, port = _data(folder, "mariadb", owner), free_port()
    user = [f"--user={owner.pw_name}"] if owner is not None else []
    form = ("--skip-test-db", "--auth-root-authentication-method=normal")
    _run([install, "--no-defaults", *user, f"--datadir={data}/db", *form], None)
    command = [
        *(server_binary, "--no-defaults", *user, f"--datadir={data}/db", "--bind-address=127.0.0.1"),
        *(f"--port={port}", f"--socket={data}/s", "--log-bin=binlog", "--binlog-format=ROW", "--server-id=1"),
        *("--character-set-server=utf8mb4", "--innodb-buffer-pool-size=32M", "--default-time-zone=+02:00"),
    ]
    root = ("mariadb", "--no-defaults", "-S", f"{data}/s", "-uroot", "-NB", "--default-character-set=utf8mb4")
    client = ("mariadb", "--no-defaults", "-h127.0.0.1", f"-P{port}", "-utester", "-NB")
    server = Server(
        f"jdbc:mariadb://127.0.0.1:{port}/", "tester", (*client, "--default-character-set=utf8mb4")
    )
    with _with_tester(command, data / "log", Server("", "", root)):
        yield server


@contextmanager
def start_mysql(folder: Path) -> Iterator[Server]:
    """A MySQL server with a binary log of rows; skips where there are no binaries."""
    server_binary, client_binary = _mysqld(), shutil.which("mysql") or shutil.which("mariadb")
    if server_binary is None or client_binary is None:
        pytest.skip("MySQL is not installed: its mysqld, and mysql or mariadb, have to be in the PATH")
    owner = _owner("mysql")
    data, port = _data(folder, "mysql", owner), free_port()
    user = [f"--user={owner.pw_name}"] if owner is not None else []
    _run([server_binary, "--no-defaults", *user, "--initialize-insecure", f"--datadir={data}/db"], None)
    command = [
        *(server_binary, "--no-defaults", *user, f"--datadir={data}/db", "--bind-address=127.0.0.1"),
        *(f"--port={port}", f"--socket={data}/s", f"--pid-file={data}/pid", "--mysqlx=OFF"),
        *("--secure-file-priv=", "--log-bin=binlog", "--server-id=1", "--innodb-buffer-pool-size=32M"),
        "--default-time-zone=+02:00",
    ]
    text = "--default-character-set=utf8mb4"
    root = (client_binary, "--no-defaults", "-S", f"{data}/s", "-uroot", "--skip-password", "-NB", text)
    client = (client_binary, "--no-defaults", "-h127.0.0.1", f"-P{port}", "-utester", "-NB", text)
    server = Server(f"jdbc:mysql://127.0.0.1:{port}/", "tester", client)
    with _with_tester(command, data / "log", Server("", "", root)):
        yield server


@contextmanager
def _with_tester(command: Sequence[object], log: Path, root: Server) -> Iterator[None]:
    """A server of MySQL or MariaDB runs meanwhile, with a user who may do all."""
    with _running(command, log, None, lambda: root.sql("SELECT 1")):
        quoted = PASSWORD.replace("'", "''")
        root.sql(
            f"CREATE USER tester@'127.0.0.1' IDENTIFIED BY '{quoted}'; "
            "GRANT ALL PRIVILEGES ON *.* TO tester@'127.0.0.1' WITH GRANT OPTION"
        )
        yield


def _mysqld() -> str | None:
    """The program of a MySQL server; that of MariaDB may have its name."""
    found = shutil.which("mysqld")
    if found is None:
        return None
    version = subprocess.run(
        [found, "--no-defaults", "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    return found if version.returncode == 0 and "MariaDB" not in version.stdout else None


def binlog_position(server: Server) -> tuple[str, int]:
    """Where the binary log of MariaDB or MySQL ends: file and position."""
    for status in ("SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"):
        try:
            file, at, *_ = server.sql(status).split()
            return file, int(at)
        except AssertionError:  # each server knows one of them
            continue
    raise RuntimeError("the server tells no position")


def _owner(name: str) -> pwd.struct_passwd | None:
    """Whom a server runs as, for none runs as root: the user of its package, or one without rights."""
    if os.getuid() != 0:
        return None
    known = {user.pw_name: user for user in pwd.getpwall()}
    return known.get(name) or known["nobody"]


def _data(folder: Path, name: str, owner: pwd.struct_passwd | None) -> Path:
    """A folder that the owner may write, and reach."""
    data = folder / name
    data.mkdir()
    if owner is not None:
        shutil.chown(data, owner.pw_uid, owner.pw_gid)
        for each in (folder, *folder.parents):
            if (
                each.stat().st_uid == os.getuid()
                and each != Path("/")
                and each.parts[1:2] == ("tmp",)
                and len(each.parts) > 2
            ):
                each.chmod(each.stat().st_mode | 0o011)
    return data


def _run(command: Sequence[object], owner: pwd.struct_passwd | None) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd="/",
        **_as(owner),  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _as(owner: pwd.struct_passwd | None) -> dict[str, object]:
    return {} if owner is None else {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


@contextmanager
def _running(
    command: Sequence[object], log: Path, owner: pwd.struct_passwd | None, ready: Callable[[], object]
) -> Iterator[None]:
    """A server until the end of the block; fails if it does not come up."""
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=out,
            stderr=out,
            cwd="/",
            **_as(owner),  # type: ignore[call-overload]
        )
    try:
        end = time.monotonic() + 180
        while True:
            try:
                ready()
                break
            except (AssertionError, subprocess.SubprocessError):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the server did not come up:\n{log.read_text()[-2000:]}") from None
                time.sleep(0.3)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
