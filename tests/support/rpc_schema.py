"""Generates docs/reference/rpc.schema.json, the schema of the RPC protocol for client generators, from the wire types.

It is an OpenRPC document. OpenRPC has no place for notifications of the server: they are in `x-events`, by type.
"""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import Any

import msgspec

from holdfast.rpc import frames, peer
from holdfast.rpc_server import wire_types

REF = "#/components/schemas/{name}"
ERRORS = {
    "NotJson": (frames.PARSE_ERROR, "The frame is not JSON or not UTF-8."),
    "NoMessage": (frames.INVALID_REQUEST, "The JSON is not a message, exceeds a limit, or its id is in use."),
    "NoMethod": (frames.METHOD_NOT_FOUND, "Unknown method."),
    "Invalid": (frames.INVALID_PARAMS, "The parameters are invalid."),
    "Refused": (wire_types.REFUSED, "The request cannot be carried out; `data.type` names the kind of error."),
    "Busy": (frames.BUSY, "Too many requests are running."),
    "NotOpen": (wire_types.NOT_OPEN, "This client has not opened the session; session.resume opens it."),
    "NotFound": (wire_types.NOT_FOUND, "No such session, or several match; then `data.candidates` lists them."),
    "Fault": (frames.INTERNAL_ERROR, "Internal error."),
    "Cancelled": (frames.CANCELLED, "The request was cancelled by `$/cancelRequest`."),
}
CANCEL = {
    "title": "Cancel",
    "description": "The request to cancel.",
    "type": "object",
    "properties": {"id": {"type": ["string", "number"], "description": "Its id."}},
    "required": ["id"],
}
ABOUT = (
    "Durable conversations with an agent, over JSON-RPC 2.0. The server sends the notification `event` with `type`, "
    "`session_id` and `payload`; `x-events` lists the payload of each type. `x-notifications` lists all notifications. "
    "Results and events may get more fields: ignore unknown ones."
)


def build_schema() -> dict[str, Any]:
    """Return the OpenRPC document."""
    methods = wire_types.METHODS
    payloads = [*wire_types.EVENTS.values()]
    values = [each for method in methods.values() for each in (method.params, method.result)]
    _, schemas = msgspec.json.schema_components([*values, *payloads], ref_template=REF)
    descriptions = _read_descriptions()
    for name, properties in ((name, found.get("properties", {})) for name, found in schemas.items()):
        for base in reversed(getattr(wire_types, name, object).__mro__):
            for field, text in descriptions.get(base.__name__, {}).items():
                properties[field] = {**properties[field], "description": text}
    schemas |= {"Event": _event(descriptions["EventParams"]["session_id"]), "Cancel": CANCEL}
    return {
        "openrpc": "1.3.2",
        "info": {"title": "Holdfast", "version": str(wire_types.PROTOCOL), "description": ABOUT},
        "methods": [_method(name, method, schemas) for name, method in methods.items()],
        "components": {
            "schemas": schemas,
            "errors": {name: {"code": code, "message": message} for name, (code, message) in ERRORS.items()},
        },
        "x-notifications": {
            "event": {"from": "server", "params": {"$ref": REF.format(name="Event")}},
            peer.CANCEL: {"from": "client", "params": {"$ref": REF.format(name="Cancel")}},
        },
        "x-events": {name: {"payload": _reference(kind)} for name, kind in wire_types.EVENTS.items()},
    }


def format_schema() -> str:
    """Return the document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(build_schema()), indent=2).decode() + "\n"


def _event(session_id: str) -> dict[str, Any]:
    """Return the schema of `event`, whose payload depends on its type."""
    properties = {
        "type": {"type": "string"},
        "session_id": {"type": ["string", "null"], "description": session_id},
        "payload": {"type": "object"},
    }
    return {
        "title": "Event",
        "description": inspect.getdoc(wire_types.EventParams),
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "oneOf": [
            {"properties": {"type": {"const": name}, "payload": _reference(kind)}}
            for name, kind in wire_types.EVENTS.items()
        ],
    }


def _read_descriptions() -> dict[str, dict[str, str]]:
    """Return the docstrings of fields, by class and field; Python keeps them in the source only."""
    found: dict[str, dict[str, str]] = {}
    for each in ast.parse(inspect.getsource(wire_types)).body:
        if isinstance(each, ast.ClassDef):
            found[each.name] = {}
            for field, below in pairwise(each.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[each.name][name] = inspect.cleandoc(text).replace("\n", " ")
    return found


def _method(name: str, method: wire_types.Method, schemas: dict[str, Any]) -> dict[str, Any]:
    params = schemas[method.params.__name__]
    required = params.get("required", [])
    return {
        "name": name,
        "summary": method.help,
        "paramStructure": "by-name",
        "params": [
            {"name": each, "required": each in required, "schema": schema}
            for each, schema in sorted(params["properties"].items(), key=lambda both: both[0] not in required)
        ],
        "result": {"name": method.result.__name__, "schema": _reference(method.result)},
        "errors": [{"$ref": f"#/components/errors/{name}"} for name in ERRORS],
    }


def _reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": REF.format(name=kind.__name__)}
