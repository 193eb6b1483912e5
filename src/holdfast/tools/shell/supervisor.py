"""Looks after one command, in a process of its own: keeps its output, writes down its end, leaves nothing running.

Run as a script, never imported by the program: `python -I -S warden.py MODE FOLDER INPUT BYTES SECONDS MOST SHELL
COMMAND`. `tied` is for a call somebody waits for: its standard input is a pipe that closes when that somebody dies,
however that happens, and then everything dies. `kept` goes on by itself; it listens at a named pipe, `control`, whose
link into the folder is its claim to be the one warden there: whoever finds no reader at that pipe knows it is gone.

A command may stop or kill its parent, and that is its warden. So on Linux the warden has a parent of its own, the
guard, which does nothing but wake it when it is stopped, and kill everything once it is dead or late: what the warden
leaves becomes the guard's, whatever its session or environment. A guard that dies is noticed by the warden, which then
ends everything. The kernel wakes either when its parent dies.

In the folder: `out.<n>`, the output from byte n on, of which the last two parts are kept; `pids`; `in`, if input is
wanted; and `status` at the end. On Linux orphans of the command become children of this process, so that daemons are
found too. Elsewhere only the process group of the command is stopped.
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
"""How long what is asked to end may take; then it is killed."""
SETTLE = 0.2
"""How long after the command its children may end by themselves."""
PATIENCE = 10.0
"""How long the killed may take to be gone: one in the middle of a broken disk is not waited for."""
LATE = GRACE + PATIENCE + 2.0
"""How long after its time a warden may take to end everything; then its guard does."""
ROUNDS = 100
TICK = 1.0
CHUNK = 65_536


class Spool:
    """Output in parts, each named by the byte it begins at. Only two are kept, so that a flood fills no disk."""

    def __init__(self, folder: str, size: int) -> None:
        self._folder, self._size = folder, size
        self._before, self._begin, self.end, self.lost = -1, 0, 0, 0
        self._fd = self._open(0)

    def add(self, data: bytes) -> None:
        """Keep it; where the disk is full it is counted as lost, and the command goes on."""
        try:
            while data:
                if self.end == self._begin + self._size:
                    self._turn()
                written = os.write(self._fd, data[: self._begin + self._size - self.end])
                self.end += written
                data = data[written:]
        except OSError:
            self.lost += len(data)

    def _turn(self) -> None:
        fd = self._open(self.end)
        os.close(self._fd)
        if self._before >= 0:
            os.unlink(f"{self._folder}/out.{self._before}")
        self._fd, self._before, self._begin = fd, self._begin, self.end

    def _open(self, begin: int) -> int:
        return os.open(f"{self._folder}/out.{begin}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)


class Warden:
    """One command, from its start to the end of its last descendant."""

    def __init__(self, folder: str, size: int, most: int, guard: int = 0) -> None:
        self.spool = Spool(folder, size)
        self.why = ""
        self.left = 0
        self.orphaned = False
        self._folder, self._most, self._guard = folder, most, guard
        self._command, self._status, self._alone, self._input = 0, -1, False, -1
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._poll = select.poll()
        self._counted, self._threads = time.monotonic(), threads()

    # --- the start -------------------------------------------------------------------------------------

    def start(self, shell: str, command: str, control: int, wants_input: bool) -> None:
        waking, woken = os.pipe()
        os.set_blocking(waking, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for waking_up in (signal.SIGCHLD, signal.SIGCONT):
            signal.signal(waking_up, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._ask("asked"))
        for ignored in (signal.SIGHUP, signal.SIGINT):
            signal.signal(ignored, signal.SIG_IGN)
        stdin = self._open_input() if wants_input else os.open(os.devnull, os.O_RDONLY)
        reading, writing = os.pipe()
        # A request to end that comes before the child is the command waits until it is one that can end.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._command = os.fork()
        if not self._command:
            become(shell, command, stdin, writing)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(writing)
        os.close(stdin)
        os.chdir("/")  # Nobody's folder is held by this process.
        self._listen(waking, lambda fd: void(os.read(fd, CHUNK)))
        self._listen(reading, self._take)
        self._listen(control, self._obey)
        save(self._folder, "pids", f"{os.getpid()} {self._command}\n", durable=False)

    def _open_input(self) -> int:
        """The end the command reads. Ours only writes: so others can tell whether the command still reads."""
        path = f"{self._folder}/in"
        os.mkfifo(path, 0o600)
        both = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        stdin, self._input = os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY)
        os.close(both)
        return stdin

    def _listen(self, fd: int, handler: Callable[[int], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def _deaf(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._handlers[fd]
        os.close(fd)

    # --- what happens meanwhile ------------------------------------------------------------------------

    def _take(self, fd: int) -> None:
        data = os.read(fd, CHUNK)
        if data:
            self.spool.add(data)
        else:
            self._deaf(fd)

    def _obey(self, fd: int) -> None:
        said = os.read(fd, 1)
        if said == b"e":
            self._end_input()
        elif said == b"k":
            self._ask("asked")
        elif not said:
            self.orphaned = True
            self._deaf(fd)
            self._ask("orphaned")

    def _end_input(self) -> None:
        if self._input >= 0:
            os.close(self._input)
            os.unlink(f"{self._folder}/in")
            self._input = -1

    def _ask(self, why: str) -> None:
        self.why = self.why or why

    def _bury(self) -> None:
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._command:
                    self._status = found[1]
        except ChildProcessError:
            self._alone = True

    def _count(self) -> None:
        """Stop a command that does nothing but fork. Only when the whole machine has so many more are its counted."""
        if time.monotonic() - self._counted < TICK:
            return
        self._counted = time.monotonic()
        if threads() - self._threads > self._most and len(descendants()) > self._most:
            self._ask("processes")

    def _pump(self, seconds: float, done: Callable[[], bool]) -> None:
        """Take output, bury the dead and obey, until it is done or the time is up."""
        until = time.monotonic() + seconds
        self._bury()
        while not done() and (left := until - time.monotonic()) > 0:
            for fd, _ in self._poll.poll(min(left, TICK) * 1000):
                self._handlers[fd](fd)
            self._bury()
            self._count()
            if self._guard and os.getppid() != self._guard:
                self._ask("asked")

    # --- the end ---------------------------------------------------------------------------------------

    def look_after(self, seconds: float) -> None:
        """Return when the command has ended, by itself or not, and nothing of it is left."""
        self._pump(seconds, lambda: self._status >= 0 or bool(self.why))
        if self._status < 0:
            self._ask("time")
        if self.why:
            self.stop(0 if self.why == "processes" else GRACE)
        else:
            self._pump(SETTLE, lambda: self._alone)
            self.left = 0 if self._alone else len(descendants())
            self.stop(GRACE / 4)
        # What it wrote last may still be in the pipe; it closes when nobody is left who could write.
        self._pump(SETTLE, lambda: self._take not in self._handlers.values())

    def stop(self, grace: float) -> None:
        """End every descendant: ask, wait, kill."""
        self._request(grace)
        until = time.monotonic() + PATIENCE
        while not self._alone and time.monotonic() < until:
            send(signal.SIGKILL, frozen(self._living))
            self._pump(0.05, lambda: self._alone)
        if not LINUX:
            send(signal.SIGKILL, {self._command})

    def _request(self, grace: float) -> None:
        """Ask each to end, once; also those that were just being born when the others were asked."""
        asked: set[int] = set()
        until, pause = time.monotonic() + grace, 0.02
        while not self._alone and (left := until - time.monotonic()) > 0:
            # Parents first: one that would clear up should not see its children die before it is asked.
            fresh = [pid for pid in self._living() if pid not in asked]
            for number in (signal.SIGTERM, signal.SIGCONT):
                send(number, fresh)
            asked.update(fresh)
            self._pump(min(pause, left), lambda: self._alone)
            pause = min(pause * 2, 0.25)

    def _living(self) -> list[int]:
        return descendants() if LINUX else [self._command]

    def told(self) -> str:
        """How it ended, as JSON."""
        number = os.WTERMSIG(self._status) if self._status >= 0 and os.WIFSIGNALED(self._status) else 0
        code = os.WEXITSTATUS(self._status) if self._status >= 0 and not number else -1
        stuck = 0 if self._alone else len(descendants())
        return (
            f'{{"code":{code},"signal":{number},"why":"{self.why}","left":{self.left},"stuck":{stuck},'
            f'"bytes":{self.spool.end},"lost":{self.spool.lost},"at":{time.time():.3f}}}'
        )


def become(shell: str, command: str, stdin: int, writing: int) -> None:
    """In the child: turn into the command. Its session is its own, so that there is no terminal it could read."""
    try:
        os.setsid()
        prctl(PARENT_DEATH, signal.SIGKILL)
        for fd, source in enumerate((stdin, writing, writing)):
            os.dup2(source, fd)
        signal.set_wakeup_fd(-1)
        # What this interpreter and those before it ignore, a command expects to be as usual.
        for name in ("SIGPIPE", "SIGXFSZ", "SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGCHLD"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.execv(shell, [os.path.basename(shell), "-c", "--", command])  # noqa: S606
    finally:
        os._exit(127)


# --- the guard -----------------------------------------------------------------------------------------


def guarded(folder: str, seconds: float, control: int) -> int:
    """Go on as the warden, in a child of a process that guards it: the number of that one, 0 where there is none.

    `control` is a pipe that closes when nobody waits any more, or -1.
    """
    if not LINUX:
        return 0
    awaited = {signal.SIGCHLD, signal.SIGCONT, signal.SIGTERM}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    prctl(SUBREAPER, 1)
    prctl(PARENT_DEATH, signal.SIGCONT)
    guard, warden = os.getpid(), os.fork()
    if warden:
        os._exit(guard_it(warden, folder, seconds, control))
    # A session of its own, so that no signal to a group meets both.
    os.setsid()
    prctl(PARENT_DEATH, signal.SIGCONT)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
    return guard


def guard_it(warden: int, folder: str, seconds: float, control: int) -> int:
    """Until the warden has ended, or should have; then kill what there still is. How it ended, 0 if well."""
    os.chdir("/")
    for ignored in (signal.SIGHUP, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    code = accompany(warden, time.monotonic() + seconds + LATE, control)
    until = time.monotonic() + GRACE
    while not alone() and time.monotonic() < until:
        send(signal.SIGKILL, frozen(descendants))
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)
    if code and closed(control):
        with contextlib.suppress(OSError):
            clear(folder)
    return code


def accompany(warden: int, until: float, control: int) -> int:
    """Wake the warden whenever it is stopped, and pass on requests to end; how it ended, 1 if it did not in time."""
    while (left := until - time.monotonic()) > 0:
        found = signal.sigtimedwait({signal.SIGCHLD, signal.SIGCONT, signal.SIGTERM}, min(left, TICK))
        if found and found.si_signo == signal.SIGTERM:
            os.kill(warden, signal.SIGTERM)
        ended, status = os.waitpid(warden, os.WNOHANG | os.WUNTRACED)
        if ended and not os.WIFSTOPPED(status):
            return int(status != 0)
        if ended:
            os.kill(warden, signal.SIGCONT)
        if closed(control):
            until = min(until, time.monotonic() + LATE)
    return 1


def closed(control: int) -> bool:
    """Whether the other end of the pipe is gone; nothing is ever written to it."""
    return control >= 0 and bool(select.select([control], [], [], 0)[0])


def alone() -> bool:
    """Bury the dead; whether there is no child any more."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


# --- processes -----------------------------------------------------------------------------------------


def frozen(living: Callable[[], list[int]]) -> set[int]:
    """All of them, stopped: so none can make another before it is killed."""
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
    """Every living process below this one, parents before their children."""
    children: dict[int, list[int]] = {}
    dead = set()
    for name in os.listdir("/proc") if LINUX else ():
        if name.isdigit() and (fields := stat(name)):
            children.setdefault(int(fields[1]), []).append(int(name))
            # A process whose first thread ended looks dead, and is not while it has others.
            if fields[0] in b"ZX" and int(fields[17]) < 2:
                dead.add(int(name))
    found, look = [], [os.getpid()]
    while look:
        below = children.get(look.pop(), [])
        found += below
        look += below
    return [pid for pid in found if pid not in dead]


def stat(pid: str) -> list[bytes]:
    """What the system says of a process, from its state on; nothing when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def threads() -> int:
    """How many threads the whole machine has; 0 where nobody says."""
    try:
        with open("/proc/loadavg", "rb") as file:
            return int(file.read().split()[3].split(b"/")[1])
    except (OSError, ValueError, IndexError):
        return 0


def prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def quietly(act: Callable[[int, int], None], to: int, number: int) -> None:
    """Send a signal to what may be gone already, or may not be ours to signal."""
    with contextlib.suppress(OSError):
        act(to, number)


def void(_: object) -> None:
    """What was read says nothing."""


def save(folder: str, name: str, text: str, durable: bool) -> None:
    """A file that is there whole or not at all."""
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
    """Our end of the control pipe. It has a reader before it has its name; FileExistsError: there is a claim."""
    path = f"{folder}/control"
    os.mkfifo(f"{path}.new", 0o600)
    control = os.open(f"{path}.new", os.O_RDWR | os.O_NONBLOCK)
    os.link(f"{path}.new", path)
    os.unlink(f"{path}.new")
    return control


def detach() -> int:
    """Go on as a process that nobody waits for; the first one ends well once a byte comes through what this gives."""
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
    mode, folder, wants_input, size, seconds, most, shell, command = argv
    kept = mode == "kept"
    ready = detach() if kept else -1
    control = claim(folder) if kept else 0
    guard = guarded(folder, float(seconds), -1 if kept else control)
    prctl(SUBREAPER, 1)
    warden = Warden(folder, int(size), int(most), guard)
    try:
        warden.start(shell, command, control, wants_input == "1")
        if kept:
            os.write(ready, b".")
            os.close(ready)
        warden.look_after(float(seconds))
    finally:
        warden.stop(0)
    save(folder, "status", warden.told(), durable=kept)
    if warden.orphaned:
        clear(folder)  # Nobody is left who would.


if __name__ == "__main__":
    main(sys.argv[1:])
