"""An MCP server over HTTP that can misbehave."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from holdfast.tools.mcp import settings

ANY = {"type": "object", "properties": {}}
TOOLS = ("ok", "status", "flood", "stream", "bomb", "refuse")
MEGABYTE = 1024 * 1024
FLOOD = 200


class Web:
    """The state of the server, which a test may change."""

    def __init__(self) -> None:
        self.url = ""
        self.began = 0
        """Number of sessions that were opened."""
        self.sent = 0
        """Megabytes of a flood that were sent."""
        self.status = 500
        self.forgotten: tuple[int, Any] | None = None
        """Status and body of answers to an older session."""

    @property
    def session(self) -> str:
        return f"session-{self.began}"

    def forget(self, status: int, body: Any) -> None:
        """Forget all sessions, as after a restart."""
        self.forgotten = (status, body)
        self.began += 1


@contextlib.contextmanager
def serving() -> Iterator[Web]:
    web = Web()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"web": web}))
    server.daemon_threads = True
    web.url = f"http://127.0.0.1:{server.server_address[1]}/mcp"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def wanted(web: Web) -> settings.ServerConfig:
    return settings.ServerConfig(name="web", url=web.url, timeout=30.0)


class Handler(BaseHTTPRequestHandler):
    web: Web
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self.put(405)

    def do_DELETE(self) -> None:
        self.put(405)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        session = self.headers.get("mcp-session-id")
        if session not in (None, self.web.session) and self.web.forgotten:
            status, body = self.web.forgotten
            self.put(status, body and {**body, "jsonrpc": "2.0", "id": None})
        elif "id" not in message:
            self.put(202)
        else:
            self.answer(message["id"], message["method"], message.get("params") or {})

    def answer(self, number: Any, method: str, params: dict[str, Any]) -> None:
        match method:
            case "initialize":
                self.web.began += 1
                info = {"name": "web", "version": "1"}
                can = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
                self.result(number, can, **{"mcp-session-id": self.web.session})
            case "tools/list":
                self.result(number, {"tools": [{"name": name, "inputSchema": ANY} for name in TOOLS]})
            case "tools/call":
                self.call(number, params["name"])
            case _:
                self.put(200, {"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no"}})

    def call(self, number: Any, tool: str) -> None:
        match tool:
            case "ok":
                self.result(number, {"content": [{"type": "text", "text": "fine"}]})
            case "status":
                self.put(self.web.status)
            case "refuse":
                self.put(400, {"jsonrpc": "2.0", "id": number, "error": {"code": -32602, "message": "not so"}})
            case "flood":
                self.flood("application/json", "[")
            case "stream":
                self.flood("text/event-stream", "data: ")
            case "bomb":
                text = json.dumps({"content": [{"type": "text", "text": "x" * (20 * MEGABYTE)}]})
                packed = gzip.compress(f'{{"jsonrpc":"2.0","id":{number},"result":{text}}}'.encode(), 1)
                self.put(200, packed, **{"content-encoding": "gzip"})

    def flood(self, kind: str, begin: str) -> None:
        """Send a body without an end."""
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str((FLOOD + 1) * MEGABYTE))
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):  # The client closes the connection.
            self.wfile.write(begin.encode())
            for self.web.sent in range(FLOOD):
                self.wfile.write(b"x" * MEGABYTE)

    def result(self, number: Any, result: Any, **headers: str) -> None:
        self.put(200, {"jsonrpc": "2.0", "id": number, "result": result}, **headers)

    def put(self, status: int, body: Any = None, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        self.send_response(status)
        if data:
            self.send_header("content-type", "application/json")
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
