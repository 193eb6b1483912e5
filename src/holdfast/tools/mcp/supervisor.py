"""Stands between us and a server's process, so that nothing of it outlives us, however we end.

Run as a script, never imported by the program: `python -I -S keeper.py FD COMMAND [ARGUMENT ...]`. The server has
this process's standard streams, which this process then lets go. When the other end of FD closes, be it that we
closed it or that we died, the server has a moment, and then everything it started is killed. This process ends as
the server did, with nothing left behind. On Linux orphans become children of this process, so that daemons are found
too; elsewhere only the process group of the server is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

LINUX = sys.platform.startswith("linux")
SUBREAPER, PARENT_DEATH = 36, 1
MOMENT = 1.0


def prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def become(command: list[str]) -> None:
    """In the child: turn into the server. Its session is its own, so that there is no terminal it could read."""
    try:
        os.setsid()
        prctl(PARENT_DEATH, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for name in ("SIGPIPE", "SIGXFSZ", "SIGTERM", "SIGCHLD"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        os.write(2, f"cannot be started: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def let_go() -> None:
    """Leave the streams to the server: whoever reads them sees its end, not ours."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    os.close(nothing)


def look_after(server: int, lifeline: int, woken: int) -> int:
    """Until the server has ended, or nobody wants it any more; its status, or -1."""
    while True:
        status = reaped(server)
        if status >= 0:
            return status
        for fd in select.select([lifeline, woken], [], [])[0]:
            if fd == lifeline:
                return last_moment(server, woken)
            if signal.SIGTERM in os.read(woken, 64):
                send(signal.SIGTERM, {pid for pid in below(server) if pid > 0} or {-server})


def last_moment(server: int, woken: int) -> int:
    """Its input has ended with us, so it may end by itself, for a moment; its status, or -1."""
    until = time.monotonic() + MOMENT
    while (left := until - time.monotonic()) > 0:
        if select.select([woken], [], [], left)[0]:
            os.read(woken, 64)
        status = reaped(server)
        if status >= 0:
            return status
    return -1


def reaped(server: int) -> int:
    """Bury whoever died; the status of the server, if it was among them."""
    found = -1
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            found = status if pid == server else found
    return found


def kill_all(server: int) -> None:
    """Frozen first, none of them can make another meanwhile. Only the system knows when there is no child any more:
    to see none says little, as one may have come since."""
    with contextlib.suppress(ChildProcessError):
        while True:
            frozen: set[int] = set()
            while fresh := below(server) - frozen:
                send(signal.SIGSTOP, fresh)
                frozen |= fresh
            send(signal.SIGKILL, frozen)
            os.waitpid(-1, 0)
            reaped(server)


def send(number: int, to: set[int]) -> None:
    for each in to:
        with contextlib.suppress(OSError):
            os.kill(each, number)


def below(server: int) -> set[int]:
    """Every process below this one, and their groups, as numbers below zero: what makes a child and ends, over and
    over, is gone before its turn comes, and its group is not. The dead are among them: what looks dead because its
    first thread ended may go on in others, and a signal does no harm to the rest."""
    if not LINUX:
        return {-server}
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{int(name)}/stat", "rb") as file:
            parent, group = map(int, file.read().rpartition(b")")[2].split()[1:3])
            children.setdefault(parent, []).append((int(name), group))
    found, look = set[int](), [os.getpid()]
    while look:
        for pid, group in children.get(look.pop(), []):
            found |= {pid, -group} if group > 1 else {pid}
            look.append(pid)
    # One that was only just made may be in our own.
    return found - {-os.getpgrp()}


def main(argv: list[str]) -> None:
    lifeline, command = int(argv[0]), argv[1:]
    os.set_inheritable(lifeline, False)
    prctl(SUBREAPER, 1)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    server = os.fork()
    if server == 0:
        become(command)
    let_go()
    status = look_after(server, lifeline, woken)
    kill_all(server)
    if status >= 0 and os.WIFSIGNALED(status):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status) if status >= 0 and os.WIFEXITED(status) else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
