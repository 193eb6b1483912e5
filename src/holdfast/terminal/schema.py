"""The schema of what is served to front ends of their own, from which others make their clients. Pure.

It is an OpenRPC document, as generators take it. What the server says unasked has no place in one: it stands behind
`x-events`, by the type of the event.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.rpc import frames
from holdfast.terminal import happenings, methods, wire

REF = "#/components/schemas/{name}"
ERRORS = {
    "Invalid": (frames.PARAMS, "The parameters are not what they have to be."),
    "Refused": (wire.REFUSED, "It cannot be done now, or not with this; `data.type` may name the kind."),
    "Busy": (frames.BUSY, "Too much is being worked on."),
    "NotOpen": (wire.NOT_OPEN, "This client has no such session open: session.resume opens it."),
    "NotFound": (wire.NOT_FOUND, "There is no such session, or several fit: `data.candidates` lists them."),
    "Fault": (frames.INTERNAL, "Something failed here."),
    "Cancelled": (frames.CANCELLED, "The request was cancelled by `$/cancelRequest`."),
}


def document() -> dict[str, Any]:
    """All of it."""
    told = [*happenings.EVENTS.values()]
    taken = [each for method in methods.METHODS.values() for each in (method.params, method.result)]
    _, schemas = msgspec.json.schema_components([*taken, *told], ref_template=REF)
    about = (
        "Conversations with an agent that last, over JSON-RPC 2.0. The server sends the notification `event` with "
        "`type`, `session_id` and `payload`; `x-events` has what each type carries."
    )
    return {
        "openrpc": "1.3.2",
        "info": {"title": "Holdfast", "version": str(wire.PROTOCOL), "description": about},
        "methods": [_method(name, method, schemas) for name, method in methods.METHODS.items()],
        "components": {
            "schemas": schemas,
            "errors": {name: {"code": code, "message": message} for name, (code, message) in ERRORS.items()},
        },
        "x-events": {name: {"payload": _reference(kind)} for name, kind in happenings.EVENTS.items()},
    }


def written() -> str:
    """The document as it stands in a file."""
    return msgspec.json.format(msgspec.json.encode(document()), indent=2).decode() + "\n"


def _method(name: str, method: methods.Method, schemas: dict[str, Any]) -> dict[str, Any]:
    taken = schemas[method.params.__name__]
    required = taken.get("required", [])
    return {
        "name": name,
        "summary": method.help,
        "paramStructure": "by-name",
        "params": [
            {"name": each, "required": each in required, "schema": schema}
            for each, schema in sorted(taken["properties"].items(), key=lambda both: both[0] not in required)
        ],
        "result": {"name": method.result.__name__, "schema": _reference(method.result)},
        "errors": [{"$ref": f"#/components/errors/{name}"} for name in ERRORS],
    }


def _reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": REF.format(name=kind.__name__)}
