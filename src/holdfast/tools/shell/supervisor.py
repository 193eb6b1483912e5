"""Supervise one command in a separate process: keep its output, record its end, leave nothing running.

Run as a script, never imported by the program, with `python -I -S`, in one of three modes:

- `tied FOLDER INPUT BYTES SECONDS PROCESSES SHELL COMMAND`: for a call that a caller waits for. Standard input is a
  pipe that closes when the caller dies, and then the command is stopped.
- `kept …`, with the same arguments: the command continues when the program ends. The supervisor listens on a named
  pipe, `control`, in the folder. A pipe without a reader means that the supervisor is gone.
- `stdio BYTES PARENT COMMAND …`: for a server that speaks line by line on its standard streams. Lines are limited to
  BYTES, and the server is stopped when the process PARENT dies or sends SIGTERM.

The folder contains `out.<n>`, the output from byte n on, of which the last two parts are kept; `pids`; `in`, if input
is wanted; and finally `status`. On Linux, orphans of the command become children of the supervisor, so that daemons are
found, too; elsewhere only the process group of the command is stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable

LINUX = sys.platform.startswith("linux")
SUBREAPER, PARENT_DEATH = 36, 1

GRACE = 2.0
"""Seconds that processes have to end after SIGTERM; then they are killed."""
SETTLE = 0.2
"""Seconds that children of the command have to end by themselves after it."""
PATIENCE = 10.0
"""Seconds to wait for killed processes: one that is blocked in the kernel may not die."""
MAX_INVALID_LINES = 1_000
MAX_SERVER_PROCESSES = 1_000
ROUNDS = 100
TICK = 1.0
CHUNK = 65_536


class OutputSpool:
    """Stores output in parts, each named by its first byte. Only two are kept: a flood does not fill the disk."""

    def __init__(self, folder: str, size: int) -> None:
        self._folder, self._size = folder, size
        self._before, self._begin, self.end, self.lost = -1, 0, 0, 0
        self._fd = self._open(0)

    def add(self, data: bytes) -> None:
        """Store output. If the disk is full, it is counted as lost and the command continues."""
        try:
            while data:
                if self.end == self._begin + self._size:
                    self._rotate()
                written = os.write(self._fd, data[: self._begin + self._size - self.end])
                self.end += written
                data = data[written:]
        except OSError:
            self.lost += len(data)

    def _rotate(self) -> None:
        fd = self._open(self.end)
        os.close(self._fd)
        if self._before >= 0:
            os.unlink(f"{self._folder}/out.{self._before}")
        self._fd, self._before, self._begin = fd, self._begin, self.end

    def _open(self, begin: int) -> int:
        return os.open(f"{self._folder}/out.{begin}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)


class LineFilter:
    """Passes on lines that may be JSON messages to standard output, each whole, and stops at one that is too long."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._rest, self._invalid = max_bytes, bytearray(), 0
        self.why = ""

    def add(self, data: bytes) -> None:
        begin = len(self._rest)
        self._rest += data
        while (end := self._rest.find(b"\n", begin)) >= 0:
            line = bytes(self._rest[: end + 1])
            del self._rest[: end + 1]
            begin = 0
            if line.startswith(b"{"):
                self._write(line)
            else:
                self._invalid += 1
        if len(self._rest) > self._max_bytes:
            self.why = f"it sent a line of more than {self._max_bytes // 1024 // 1024} MB"
        elif self._invalid >= MAX_INVALID_LINES:
            self.why = "it writes something other than messages"

    def _write(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(1, line) :]
        except BrokenPipeError:
            self.why = "its client is gone"


class Supervisor:
    """Runs one command, from its start to the end of its last descendant.

    `should_stop` is called at least once a second, and returns why the command is no longer wanted, if it is not.
    """

    def __init__(
        self, output: OutputSpool | LineFilter, max_processes: int, should_stop: Callable[[], str] = lambda: ""
    ) -> None:
        self.why = ""
        self.left = 0
        self.input = -1
        self.status = -1
        self._output, self._max_processes, self._should_stop = output, max_processes, should_stop
        self._command, self._alone = 0, False
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._poll = select.poll()
        self._counted, self._threads = time.monotonic(), threads()

    def start(self, program: str, argv: list[str], stdin: int, stderr: int | None = None) -> int:
        """Start the command and return its process id. Its standard error goes to the output by default."""
        waking, woken = os.pipe()
        os.set_blocking(waking, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for waking_up in (signal.SIGCHLD, signal.SIGCONT):
            signal.signal(waking_up, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.ask("asked"))
        for ignored in (signal.SIGHUP, signal.SIGINT):
            signal.signal(ignored, signal.SIG_IGN)
        reading, writing = os.pipe()
        # A SIGTERM that arrives before the child has become the command is delivered afterwards.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._command = os.fork()
        if not self._command:
            become(program, argv, (stdin, writing, writing if stderr is None else stderr))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(writing)
        os.dup2(os.open(os.devnull, os.O_RDWR), stdin)  # Only the command has its input.
        os.chdir("/")  # Do not keep a file system busy.
        self.listen(waking, lambda fd: void(os.read(fd, CHUNK)))
        self.listen(reading, self._take)
        return self._command

    def listen(self, fd: int, handler: Callable[[int], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def unlisten(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._handlers[fd]
        os.close(fd)

    def ask(self, why: str) -> None:
        """Have the command stopped."""
        self.why = self.why or why

    # --- events ----------------------------------------------------------------------------------------

    def _take(self, fd: int) -> None:
        data = os.read(fd, CHUNK)
        if data:
            self._output.add(data)
        else:
            self.unlisten(fd)

    def _reap(self) -> None:
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._command:
                    self.status = found[1]
        except ChildProcessError:
            self._alone = True

    def _check(self) -> None:
        """Stop a command that is no longer wanted, or forks without end.

        Its processes are counted only when the machine has many more than before.
        """
        self.ask(self._should_stop())
        if time.monotonic() - self._counted < TICK:
            return
        self._counted = time.monotonic()
        if threads() - self._threads > self._max_processes and len(descendants()) > self._max_processes:
            self.ask("processes")

    def _pump(self, seconds: float, done: Callable[[], bool]) -> None:
        """Handle events until `done` or the timeout."""
        until = time.monotonic() + seconds
        self._reap()
        while not done() and (left := until - time.monotonic()) > 0:
            for fd, _ in self._poll.poll(min(left, TICK) * 1000):
                self._handlers[fd](fd)
            self._reap()
            self._check()

    # --- stopping --------------------------------------------------------------------------------------

    def supervise(self, seconds: float = float("inf"), grace: float = GRACE) -> None:
        """Return when the command has ended, by itself or not, and none of its processes is left."""
        self._pump(seconds, lambda: self.status >= 0 or bool(self.why))
        if self.status < 0:
            self.ask("time")
        if self.why:
            self.stop(0 if self.why == "processes" else grace)
        else:
            self._pump(SETTLE, lambda: self._alone)
            self.left = self.count_left()
            self.stop(GRACE / 4)
        # Read the rest of the output. The pipe closes when the last writer is gone.
        self._pump(SETTLE, self.has_closed_output)

    def stop(self, grace: float) -> None:
        """End every descendant: SIGTERM, wait, SIGKILL."""
        stop_all(self._command, grace, lambda seconds: self._pump(seconds, lambda: self._alone), lambda: self._alone)

    def has_closed_output(self) -> bool:
        return self._take not in self._handlers.values()

    def count_left(self) -> int:
        """Return the number of processes that are still running."""
        return 0 if self._alone else len(descendants())


def become(program: str, argv: list[str], streams: tuple[int, int, int]) -> None:
    """In the child: run the command, in its own session so that it has no terminal."""
    try:
        os.setsid()
        prctl(PARENT_DEATH, signal.SIGKILL)
        for fd, source in enumerate(streams):
            os.dup2(source, fd)
        signal.set_wakeup_fd(-1)
        # Python and the programs before it may ignore signals that a command expects to have their default action.
        for name in ("SIGPIPE", "SIGXFSZ", "SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGCHLD"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.execvp(program, argv)  # noqa: S606
    except OSError as error:
        os.write(2, f"cannot be started: {error.strerror}\n".encode())
    finally:
        os._exit(127)


# --- modes ---------------------------------------------------------------------------------------------


def serve_stdio(max_bytes: int, parent: int, command: list[str]) -> None:
    """Run a server with our standard input and error, and pass on its output. Its end is the last line of stderr."""
    prctl(PARENT_DEATH, signal.SIGTERM)
    front = os.getpid()
    if pid := os.fork():
        # The caller may kill this process; the supervisor itself, in another session, notices and stops the server.
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 255)
    os.setsid()
    prctl(PARENT_DEATH, signal.SIGTERM)
    prctl(SUBREAPER, 1)
    lines = LineFilter(max_bytes)

    def should_stop() -> str:
        wanted = os.getppid() == front and exists(parent) and not supervisor.has_closed_output()
        return lines.why or ("" if wanted else "orphaned")

    supervisor = Supervisor(lines, MAX_SERVER_PROCESSES, should_stop)
    supervisor.start(command[0], command, stdin=0, stderr=2)
    supervisor.supervise(grace=GRACE / 4)
    os.write(2, f"\n{lines.why or exit_reason(supervisor.status)}\n".encode())
    os._exit(0)


def exit_reason(status: int) -> str:
    if status < 0:
        return "it was stopped"
    code = os.waitstatus_to_exitcode(status)
    return f"it ended with exit code {code}" if code >= 0 else f"it ended with signal {-code}"


def run_command(mode: str, folder: str, wants_input: bool, size: int, seconds: float, max_processes: int,
                argv: list[str]) -> None:  # fmt: skip
    """Run a command with its output in a folder."""
    kept = mode == "kept"
    ready = detach() if kept else -1
    control = claim(folder) if kept else 0
    prctl(SUBREAPER, 1)
    # Wakes a supervisor that its command has stopped when the program dies.
    prctl(PARENT_DEATH, signal.SIGCONT)
    spool = OutputSpool(folder, size)
    supervisor = Supervisor(spool, max_processes)
    orphaned = False

    def obey(fd: int) -> None:
        nonlocal orphaned
        request = os.read(fd, 1)
        if request == b"e" and supervisor.input >= 0:
            os.close(supervisor.input)
            os.unlink(f"{folder}/in")
            supervisor.input = -1
        elif request == b"k":
            supervisor.ask("asked")
        elif not request:
            orphaned = True
            supervisor.unlisten(fd)
            supervisor.ask("orphaned")

    try:
        stdin = open_input(folder, supervisor) if wants_input else os.open(os.devnull, os.O_RDONLY)
        pid = supervisor.start(argv[0], [os.path.basename(argv[0]), *argv[1:]], stdin)
        supervisor.listen(control, obey)
        save(folder, "pids", f"{os.getpid()} {pid}\n", durable=False)
        if kept:
            os.write(ready, b".")
            os.close(ready)
        supervisor.supervise(seconds)
    finally:
        supervisor.stop(0)
    save(folder, "status", describe_end(supervisor, spool), durable=kept)
    if orphaned:
        clear(folder)  # The program that would do it is gone.


def open_input(folder: str, supervisor: Supervisor) -> int:
    """Create the input pipe and keep a write end only: if it has a reader, the command still reads."""
    path = f"{folder}/in"
    os.mkfifo(path, 0o600)
    both = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    stdin, supervisor.input = os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY)
    os.close(both)
    return stdin


def describe_end(supervisor: Supervisor, spool: OutputSpool) -> str:
    """Return how the command ended, as JSON."""
    code = os.waitstatus_to_exitcode(supervisor.status) if supervisor.status >= 0 else -1
    return (
        f'{{"code":{max(code, -1)},"signal":{max(-code, 0) if supervisor.status >= 0 else 0},'
        f'"why":"{supervisor.why}","left":{supervisor.left},"stuck":{supervisor.count_left()},'
        f'"bytes":{spool.end},"lost":{spool.lost},"at":{time.time():.3f}}}'
    )


# --- processes -----------------------------------------------------------------------------------------


def stop_all(command: int, grace: float, wait: Callable[[float], None], alone: Callable[[], bool]) -> None:
    """End every descendant: SIGTERM, wait, SIGKILL. `wait` handles events for some seconds; `alone`: none is left."""

    def living() -> list[int]:
        return descendants() if LINUX else [command]

    asked: set[int] = set()
    until, delay = time.monotonic() + grace, 0.02
    while not alone() and (left := until - time.monotonic()) > 0:
        # Parents first: a parent that cleans up should not see its children die before it is asked to end.
        fresh = [pid for pid in living() if pid not in asked]
        for number in (signal.SIGTERM, signal.SIGCONT):
            send(number, fresh)
        asked.update(fresh)
        wait(min(delay, left))
        delay = min(delay * 2, 0.25)
    until = time.monotonic() + PATIENCE
    while not alone() and time.monotonic() < until:
        send(signal.SIGKILL, freeze(living))
        wait(0.05)
    if not LINUX:
        send(signal.SIGKILL, {command})


def freeze(living: Callable[[], list[int]]) -> set[int]:
    """Stop all processes, so that none can create another before it is killed."""
    found: set[int] = set()
    for _ in range(ROUNDS):
        fresh = [pid for pid in living() if pid not in found]
        if not fresh:
            break
        send(signal.SIGSTOP, fresh)
        found.update(fresh)
    return found


def send(number: signal.Signals, to: Iterable[int]) -> None:
    for pid in to:
        quietly(os.kill if LINUX else os.killpg, pid, number)


def descendants() -> list[int]:
    """Return every living process below this one, parents before their children."""
    children: dict[int, list[int]] = {}
    dead = set()
    for name in os.listdir("/proc") if LINUX else ():
        if name.isdigit() and (fields := stat(name)):
            children.setdefault(int(fields[1]), []).append(int(name))
            # A process whose first thread has ended looks like a zombie, but is alive while it has other threads.
            if fields[0] in b"ZX" and int(fields[17]) < 2:
                dead.add(int(name))
    found, look = [], [os.getpid()]
    while look:
        below = children.get(look.pop(), [])
        found += below
        look += below
    return [pid for pid in found if pid not in dead]


def stat(pid: str) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on; nothing if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def threads() -> int:
    """Return the number of threads on the machine; 0 if unknown."""
    try:
        with open("/proc/loadavg", "rb") as file:
            return int(file.read().split()[3].split(b"/")[1])
    except (OSError, ValueError, IndexError):
        return 0


def prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def quietly(act: Callable[[int, int], None], to: int, number: int) -> None:
    """Send a signal; ignore processes that are gone or belong to another user."""
    with contextlib.suppress(OSError):
        act(to, number)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def void(_: object) -> None:
    """Discard a value."""


def save(folder: str, name: str, text: str, durable: bool) -> None:
    """Write a file atomically."""
    fd = os.open(f"{folder}/{name}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, text.encode())
    if durable:
        os.fsync(fd)
    os.close(fd)
    os.rename(f"{folder}/{name}.new", f"{folder}/{name}")
    if durable:
        above = os.open(folder, os.O_RDONLY)
        os.fsync(above)
        os.close(above)


def claim(folder: str) -> int:
    """Create the control pipe and open it, before it gets its name. FileExistsError: there is another supervisor."""
    path = f"{folder}/control"
    os.mkfifo(f"{path}.new", 0o600)
    control = os.open(f"{path}.new", os.O_RDWR | os.O_NONBLOCK)
    os.link(f"{path}.new", path)
    os.unlink(f"{path}.new")
    return control


def detach() -> int:
    """Continue in a child. The parent exits with 0 once a byte is written to the returned pipe."""
    reading, ready = os.pipe()
    if os.fork():
        os.close(ready)
        os._exit(0 if os.read(reading, 1) else 1)
    os.close(reading)
    return ready


def clear(folder: str) -> None:
    for name in os.listdir(folder):
        os.unlink(f"{folder}/{name}")
    os.rmdir(folder)


def main(argv: list[str]) -> None:
    if argv[0] == "stdio":
        serve_stdio(int(argv[1]), int(argv[2]), argv[3:])
    mode, folder, wants_input, size, seconds, max_processes, shell, command = argv
    line = [shell, "-c", "--", command]
    run_command(mode, folder, wants_input == "1", int(size), float(seconds), int(max_processes), line)


if __name__ == "__main__":
    main(sys.argv[1:])
