"""A network that fails on demand: stands between a client and a server on this machine.

It forwards bytes, and on request resets connections, holds everything back, adds delays, drops a message that
contains certain bytes, or drops the answer to it.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from typing import Self

from tests.support import postgres

# The fate of a message that contains the trapped bytes: it is lost with its connection, or its answer is.
UNSENT, UNHEARD = "unsent", "unheard"
PIECE = 65_536
_ENCRYPTED = 8  # bytes has the question whether the server would


class _Link:
    """One forwarded connection and its faults: deaf, mute, orphaned or stalled."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.faults: set[str] = set()

    def reset(self) -> None:
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                # Not closed in an orderly way: the other side learns of it by an error.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD)
            end.close()


class Proxy:
    """In front of the server of this run, or of another."""

    def __init__(self, address: postgres.Address | None = None) -> None:
        self._address = address or postgres.shared()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._links: list[_Link] = []
        self._guard = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self._trap: tuple[bytes, str] | None = None
        self._chance: random.Random | None = None
        self._refusal: tuple[str, str] | None = None
        self._rate: int | None = None
        self.sprung = self.refused = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flows.set()
        self.reset()

    def through(self, address: str, **options: str) -> str:
        """The same store, reached this way."""
        schema = address.rpartition("search_path%3D")[2]
        here = self._address._replace(port=self.port)
        return here.dsn(schema, tcp=True, **options)

    # --- faults -----------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """All connections there are."""
        with self._guard:
            links, self._links = self._links, []
        for link in links:
            link.reset()

    def hold(self) -> None:
        """Forward nothing in either direction; new connections are accepted and get no answer."""
        self._flows.clear()

    def flow(self) -> None:
        """Forward the data held back so far, and all that follows."""
        self._flows.set()

    def hold_for(self, seconds: float) -> None:
        self.hold()
        threading.Timer(seconds, self.flow).start()

    def mute(self) -> None:
        """Drop all answers on the present connections; new ones work."""
        self._add_fault("mute")

    def stall(self) -> None:
        """Read nothing from the server on the present connections; new ones work."""
        self._add_fault("stalled")

    def orphan(self) -> None:
        """Close the server's ends of the present connections, not the clients'; new ones work."""
        for link in self._add_fault("orphaned"):
            link.server.shutdown(socket.SHUT_RDWR)

    def _add_fault(self, fault: str) -> list[_Link]:
        with self._guard:
            for link in self._links:
                link.faults.add(fault)
            return list(self._links)

    def refuse(self, code: str, words: str) -> None:
        """Refuse new connections with this error, as a server would."""
        self._refusal = (code, words)

    def admit(self) -> None:
        self._refusal = None

    def dawdle(self, seed: str) -> None:
        """Every piece takes its time from now on."""
        self._chance = random.Random(seed)

    def throttle(self, bytes_per_second: int) -> None:
        """Pass requests on at this rate over connections made from now on, through a small buffer."""
        self._rate = bytes_per_second
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)

    def trap(self, words: bytes, fate: str) -> None:
        """The next message that says these words."""
        self._trap = (words, fate)

    # --- forwarding -------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                if self._refusal is not None:
                    threading.Thread(target=self._turn_away, args=(client, *self._refusal), daemon=True).start()
                    continue
                server = socket.create_connection(("127.0.0.1", self._address.port))
            except OSError:
                return
            link = _Link(client, server)
            with self._guard:
                self._links.append(link)
            threading.Thread(target=self._ask, args=(link,), daemon=True).start()
            threading.Thread(target=self._answer, args=(link,), daemon=True).start()

    def _turn_away(self, client: socket.socket, code: str, words: str) -> None:
        fields = f"SFATAL\0VFATAL\0C{code}\0M{words}\0\0".encode()
        self.refused += 1
        with contextlib.suppress(OSError), client:
            while len(client.recv(4096)) == _ENCRYPTED:
                client.sendall(b"N")
            client.sendall(b"E" + struct.pack("!I", len(fields) + 4) + fields)

    def _ask(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while data := link.client.recv(PIECE):
                self._flows.wait()
                fate = self._fate(data)
                if fate == UNSENT:
                    break
                link.faults |= {"deaf"} if fate == UNHEARD else set()
                self._take_time()
                if self._rate is not None:
                    time.sleep(len(data) / self._rate)
                if "orphaned" not in link.faults:
                    link.server.sendall(data)
        link.reset()

    def _answer(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while data := link.server.recv(PIECE):
                self._flows.wait()
                if link.faults & {"deaf", "stalled"}:
                    break
                if "mute" in link.faults:
                    continue
                self._take_time()
                link.client.sendall(data)
        if not link.faults & {"orphaned", "stalled"}:
            link.reset()

    def _fate(self, data: bytes) -> str | None:
        words, fate = self._trap or (b"", None)
        if fate is None or words not in data:
            return None
        self._trap, self.sprung = None, self.sprung + 1
        return fate

    def _take_time(self) -> None:
        if self._chance is not None:
            time.sleep(self._chance.uniform(0.0, 0.003))
