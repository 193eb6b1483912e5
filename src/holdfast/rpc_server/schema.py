"""The schema of what is served to front ends of their own, from which others make their clients. Pure.

It is an OpenRPC document, as generators take it. What the server says unasked has no place in one: it stands behind
`x-events`, by the type of the event.
"""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from types import ModuleType
from typing import Any

import msgspec

from holdfast.rpc import frames, peer
from holdfast.rpc_server import methods, notifications, wire_types

REF = "#/components/schemas/{name}"
ERRORS = {
    "NotJson": (frames.PARSE, "The frame is not JSON, or not UTF-8."),
    "NoMessage": (frames.INVALID, "It is JSON and no message, or more than it may be, or its id is in use."),
    "NoMethod": (frames.UNKNOWN, "There is no such method."),
    "Invalid": (frames.PARAMS, "The parameters are not what they have to be."),
    "Refused": (wire_types.REFUSED, "It cannot be done now, or not with this; `data.type` names the kind."),
    "Busy": (frames.BUSY, "Too much is being worked on."),
    "NotOpen": (wire_types.NOT_OPEN, "This client has no such session open: session.resume opens it."),
    "NotFound": (wire_types.NOT_FOUND, "There is no such session, or several fit: `data.candidates` lists them."),
    "Fault": (frames.INTERNAL, "Something failed here."),
    "Cancelled": (frames.CANCELLED, "The request was cancelled by `$/cancelRequest`."),
}


CANCEL = {
    "title": "Cancel",
    "description": "The request that is not wanted any more.",
    "type": "object",
    "properties": {"id": {"type": ["string", "number"], "description": "Its id."}},
    "required": ["id"],
}


def document() -> dict[str, Any]:
    """All of it."""
    told = [*notifications.EVENTS.values()]
    taken = [each for method in methods.METHODS.values() for each in (method.params, method.result)]
    _, schemas = msgspec.json.schema_components([*taken, *told], ref_template=REF)
    for module in (wire_types, notifications):
        _describe(module, schemas)
    schemas |= {"Event": _event(), "Cancel": CANCEL}
    about = (
        "Conversations with an agent that last, over JSON-RPC 2.0. The server sends the notification `event` with "
        "`type`, `session_id` and `payload`; `x-events` has what each type carries. `x-notifications` has what is "
        "never answered. Results and events may get more fields: ignore those you do not know."
    )
    return {
        "openrpc": "1.3.2",
        "info": {"title": "Holdfast", "version": str(wire_types.PROTOCOL), "description": about},
        "methods": [_method(name, method, schemas) for name, method in methods.METHODS.items()],
        "components": {
            "schemas": schemas,
            "errors": {name: {"code": code, "message": message} for name, (code, message) in ERRORS.items()},
        },
        "x-notifications": {
            "event": {"from": "server", "params": {"$ref": REF.format(name="Event")}},
            peer.CANCEL: {"from": "client", "params": {"$ref": REF.format(name="Cancel")}},
        },
        "x-events": {name: {"payload": _reference(kind)} for name, kind in notifications.EVENTS.items()},
    }


def written() -> str:
    """The document as it stands in a file."""
    return msgspec.json.format(msgspec.json.encode(document()), indent=2).decode() + "\n"


def _event() -> dict[str, Any]:
    """The parameters of `event`: what they carry goes by their type."""
    about = inspect.getdoc(notifications.Event)
    properties = {
        "type": {"type": "string"},
        "session_id": {"type": ["string", "null"], "description": _remarks(notifications)["Event"]["session_id"]},
        "payload": {"type": "object"},
    }
    kinds = [
        {"properties": {"type": {"const": name}, "payload": _reference(kind)}}
        for name, kind in notifications.EVENTS.items()
    ]
    return {
        "title": "Event",
        "description": about,
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "oneOf": kinds,
    }


def _describe(module: ModuleType, schemas: dict[str, Any]) -> None:
    """Say of every field what stands under it."""
    for name, remarks in _remarks(module).items():
        properties = schemas.get(name, {}).get("properties", {})
        for field in remarks.keys() & properties.keys():
            properties[field] = {**properties[field], "description": remarks[field]}


def _remarks(module: ModuleType) -> dict[str, dict[str, str]]:
    """What stands under the fields, by class and field: Python keeps it in the source alone."""
    found: dict[str, dict[str, str]] = {}
    for each in ast.parse(inspect.getsource(module)).body:
        if isinstance(each, ast.ClassDef):
            found[each.name] = {}
            for field, below in pairwise(each.body):
                match field, below:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(words))),
                    ):
                        found[each.name][name] = inspect.cleandoc(words).replace("\n", " ")
    return found


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
