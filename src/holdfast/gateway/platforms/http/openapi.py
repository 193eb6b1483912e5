"""The OpenAPI document of the HTTP API. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.gateway.platforms.http import signatures

_TEXT = {"type": "string", "minLength": 1}
_ID = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"}
_NAME = {"name": "name", "in": "path", "required": True, "schema": _ID}


def document(models: Sequence[str], hooks: bool, conversation_header: str) -> dict[str, Any]:
    """Return the document; `models` are the model names that requests may use."""
    health = _operation("Health check.", "Health")
    health["responses"]["503"] = health["responses"]["200"]
    metrics = _operation("Metrics for Prometheus.")
    metrics["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    completions = _operation(
        "A turn of a conversation.",
        "Completion",
        body={"$ref": "#/components/schemas/Request"},
        parameters=[
            {"name": conversation_header, "in": "header", "schema": _ID},
            {"name": "Idempotency-Key", "in": "header", "schema": _ID},
        ],
    )
    completions["responses"]["200"]["content"]["text/event-stream"] = {"schema": _object(["data"], data=_TEXT)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": "1", "description": "Conversations with an agent."},
        "paths": {
            "/health": {"get": health},
            "/metrics": {"get": metrics},
            "/openapi.json": {"get": _operation("This document.")},
            "/v1/models": {"get": _operation("The models.", "Models")},
            "/v1/models/{name}": {"get": _operation("A model.", "Model", parameters=[_NAME])},
            "/v1/chat/completions": {"post": completions},
            **(_hooks() if hooks else {}),
        },
        "components": {
            "schemas": _schemas(models),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(
    summary: str,
    schema: str | None = None,
    *,
    status: str = "200",
    parameters: Sequence[object] = (),
    body: object | None = None,
) -> dict[str, Any]:
    found = {"$ref": f"#/components/schemas/{schema}"} if schema else {"type": "object"}
    error = {"description": "The error.", "content": _json({"$ref": "#/components/schemas/Error"})}
    responses = {status: {"description": summary, "content": _json(found)}, "default": error}
    request = {"requestBody": {"required": True, "content": _json(body)}} if body else {}
    return {"summary": summary, "responses": responses, "parameters": list(parameters), **request}


def _json(schema: object) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _hooks() -> dict[str, Any]:
    number = {"name": "id", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 1}}
    signed = [
        {"name": signatures.ID, "in": "header", "schema": {"type": "string", "pattern": signatures.ID_PATTERN}},
        {"name": signatures.TIMESTAMP, "in": "header", "schema": {"type": "string", "pattern": "^[0-9]{1,12}$"}},
        {"name": signatures.SIGNATURE, "in": "header", "schema": {"type": "string"}},
    ]
    posted = _operation(
        "The delivery is stored.", "Taken", status="202", parameters=[_NAME, *signed], body={"type": "object"}
    )
    fetched = _operation("The outcome and the reply.", "Kept", parameters=[_NAME, number, *signed])
    return {"/hooks/{name}": {"post": posted}, "/hooks/{name}/{id}": {"get": fetched}}


def _object(required: Sequence[str], **properties: object) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


def _schemas(models: Sequence[str]) -> dict[str, Any]:
    flag, text = {"type": "boolean"}, {"type": "string"}
    message = _object(["role", "content"], role={"enum": ["user"]}, content={**_TEXT, "pattern": "\\S"})
    choice = _object(["index", "message", "finish_reason"], message={"type": "object"}, finish_reason=text)
    error = _object(["message", "type", "param", "code"], message=text, type=text)
    return {
        "Request": _object(
            ["model", "messages"],
            model={"enum": list(models)},
            messages={"type": "array", "minItems": 1, "maxItems": 20, "items": message},
            stream=flag,
            user={"type": "string"},
            max_completion_tokens={"type": "integer", "minimum": 1},
        ),
        "Completion": _object(
            ["id", "object", "created", "model", "choices", "usage"],
            object={"const": "chat.completion"},
            choices={"type": "array", "minItems": 1, "maxItems": 1, "items": choice},
        ),
        "Error": _object(["error"], error=error),
        "Health": _object(["status", "live", "ready", "store"], live=flag, ready=flag, store=flag),
        "Model": _object(["id", "object"], id=text, object={"const": "model"}),
        "Models": _object(["object", "data"], data={"type": "array"}),
        "Taken": _object(["id"], id={"type": "integer"}),
        "Kept": _object(["id", "outcome", "text"], id={"type": "integer"}),
    }
