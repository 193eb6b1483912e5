"""A model provider for the pictures: it speaks Anthropic's protocol on loopback and sends scripted replies."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "claude-sonnet-4-5"

SUMMARY = """\
## Goal
- Release version 2.0 of the web shop on Friday.
## Decisions
- The staging database listens on port 5433, because port 5432 belongs to the CI database.
- Prices are integers in cents; only templates format them.
- Orders are exported as CSV every night at 02:30.
## Done
- The tests of all modules pass.
## Open asks
- Run the tests of cart.
## Commands
- make test-cart
"""

# Each user message has the replies to it: tool calls (name, arguments) and, at the end, a text.
REPLIES: dict[str, list[str | tuple[str, dict[str, Any]]]] = {
    "The total of the cart is wrong for 2 items. Please fix it.": [
        ("read_file", {"path": "cart.py"}),
        (
            "edit_file",
            {
                "path": "cart.py",
                "old_text": "return sum(prices) * quantity",
                "new_text": "return sum(prices) * int(quantity)",
            },
        ),
        "Fixed: the form sends the quantity as a string, so `total()` now converts it to an integer.",
    ],
    "Which port did we choose for the staging database?": [
        ("search_conversation", {"query": "staging database port", "limit": 3}),
        "Port **5433**, because port 5432 belongs to the CI database. You decided that in message 3.",
    ],
    "What is left before the release?": [
        ("read_file", {"path": "TODO.md"}),
        """\
Two tasks are open:

| task | owner | due |
|---|---|---|
| Review the release notes | Ines | Thursday |
| Load test of the checkout | Tom | Friday |

The load test needs the staging database, so start it before Friday noon:

```python
run_load_test(url="https://staging.example.com", users=200, minutes=15)
```
""",
    ],
    "Delete the old build and start a new one.": [
        ("shell", {"command": "rm -rf dist && python -m build"}),
        "The new build is in `dist`.",
    ],
}


def reply_to(request: dict[str, Any]) -> str | tuple[str, dict[str, Any]]:
    """Return the next scripted reply to a request, or the summary if there are no tools in it."""
    if not request.get("tools"):
        return SUMMARY
    replies: list[str | tuple[str, dict[str, Any]]] = []
    position = 0
    for message in request["messages"]:
        parts = message["content"] if isinstance(message["content"], list) else [{"text": message["content"]}]
        for text in (part.get("text", "") for part in parts):
            replies, position = next(((REPLIES[key], 0) for key in REPLIES if key in text), (replies, position))
        position += message["role"] == "assistant"
    return replies[position]


def stream_events(reply: str | tuple[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the events of a streamed reply."""
    yield {"type": "message_start", "message": {"id": "m1", "model": MODEL, "usage": {}}}
    if isinstance(reply, str):
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": reply}
    else:
        block = {"type": "tool_use", "id": f"call_{reply[0]}", "name": reply[0], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(reply[1])}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    reason = "end_turn" if isinstance(reply, str) else "tool_use"
    yield {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {}}
    yield {"type": "message_stop"}


class Handler(BaseHTTPRequestHandler):
    """Answer POST /v1/messages. A summary waits for the end of the turn, so that its notice comes last."""

    turn_ended = threading.Event()

    def do_POST(self) -> None:
        reply = reply_to(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        if reply is SUMMARY:
            self.turn_ended.wait()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in stream_events(reply):
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        if isinstance(reply, str):
            self.turn_ended.set()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve() -> Iterator[dict[str, str]]:
    """Serve the scripted replies, and yield the environment variables that make the program use them."""
    handler = type("SceneHandler", (Handler,), {"turn_ended": threading.Event()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "key", "HOLDFAST_MODEL": f"anthropic/{MODEL}"}
        server.shutdown()
