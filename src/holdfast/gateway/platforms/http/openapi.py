"""The OpenAPI document of the HTTP API. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.gateway.platforms.http import signatures

_ERROR = {"$ref": "#/components/schemas/Error"}
_TEXT = {"type": "string", "minLength": 1}
_ID = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"}
_REFUSALS = {
    "400": "The request is invalid; `param` names the field.",
    "401": "The token is missing or unknown.",
    "403": "Access is denied.",
    "404": "It does not exist, or belongs to another owner.",
    "408": "The request body did not arrive in time.",
    "409": "The turn was interrupted.",
    "410": "It was deleted.",
    "413": "The request is too large.",
    "415": "The body has the wrong media type.",
    "421": "The host is not served here.",
    "422": "The Idempotency-Key was used for another request.",
    "429": "Rate limit exceeded.",
    "500": "Internal error.",
    "502": "The turn failed.",
    "503": "The gateway starts or stops, or the store is not available.",
}


def document(models: Sequence[str], hooks: bool, conversation_header: str) -> dict[str, Any]:
    """Return the document; `models` are the model names that requests may use."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": "1", "description": "Conversations with an agent."},
        "paths": {
            "/health": {"get": _answers("Health check.", "Health", refusals=(), more={"503": "Health"})},
            "/metrics": {"get": _metrics()},
            "/openapi.json": {"get": _answers("This document.", None, refusals=())},
            "/v1/models": {"get": _answers("The models.", "Models", refusals=("401", "403"))},
            "/v1/models/{name}": {
                "get": {
                    **_answers("A model.", "Model", refusals=("401", "403", "404")),
                    "parameters": [{"name": "name", "in": "path", "required": True, "schema": _ID}],
                }
            },
            "/v1/chat/completions": {"post": _completions(conversation_header)},
            **(_hooks() if hooks else {}),
        },
        "components": {
            "schemas": _schemas(models),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _json(schema: object) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _answers(
    summary: str,
    schema: str | None,
    *,
    refusals: Sequence[str],
    more: dict[str, str] | None = None,
    status: str = "200",
) -> dict[str, Any]:
    found = {"$ref": f"#/components/schemas/{schema}"} if schema else {"type": "object"}
    responses: dict[str, Any] = {status: {"description": summary, "content": _json(found)}}
    for other, name in (more or {}).items():
        responses[other] = {"description": summary, "content": _json({"$ref": f"#/components/schemas/{name}"})}
    for refusal in ("400", "413", "421", "408", *refusals):
        responses[refusal] = {"description": _REFUSALS[refusal], "content": _json(_ERROR)}
    return {"summary": summary, "responses": responses}


def _metrics() -> dict[str, Any]:
    made = _answers("Metrics for Prometheus.", None, refusals=("401", "403"))
    made["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return made


def _completions(conversation_header: str) -> dict[str, Any]:
    made = _answers("A turn of a conversation.", "Completion", refusals=tuple(_REFUSALS))
    made["responses"]["200"]["content"]["text/event-stream"] = {"schema": _object(["data"], data=_TEXT)}
    made["parameters"] = [
        {"name": conversation_header, "in": "header", "schema": _ID},
        {"name": "Idempotency-Key", "in": "header", "schema": _ID},
    ]
    made["requestBody"] = {"required": True, "content": _json({"$ref": "#/components/schemas/Request"})}
    return made


def _hooks() -> dict[str, Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": _ID}
    number = {"name": "id", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 1}}
    signed = [
        {"name": signatures.ID, "in": "header", "schema": {"type": "string", "pattern": signatures.ID_PATTERN}},
        {"name": signatures.TIMESTAMP, "in": "header", "schema": {"type": "string", "pattern": "^[0-9]{1,12}$"}},
        {"name": signatures.SIGNATURE, "in": "header", "schema": {"type": "string"}},
    ]
    posted = _answers(
        "The delivery is stored.",
        "Taken",
        status="202",
        refusals=("401", "403", "404", "410", "413", "415", "429", "500", "503"),
    )
    posted["parameters"] = [name, *signed]
    posted["requestBody"] = {"required": True, "content": _json({"type": "object"})}
    fetched = _answers("The outcome and the reply.", "Kept", refusals=("401", "404", "500", "503"))
    fetched["parameters"] = [name, number, *signed]
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
