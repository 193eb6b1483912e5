"""Structured output: the model's answer as a value of a Python type, validated.

The schema is part of the turn's system prompt, so it works with every provider. Supported are msgspec Structs,
dataclasses, TypedDicts, anything else msgspec can decode (`list[City]`, `int | None`), and pydantic models.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast import errors
from holdfast.tools import decorator

PROMPT = """\
# Output format
End your work with an answer that is one JSON value and nothing else: no text around it, no code fence. It must match \
this JSON Schema:
{schema}"""
REPAIR = "{problem} Answer again with one JSON value that matches the schema, and nothing else."


_FENCED = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL | re.IGNORECASE)


class OutputFormat:
    """Describes an output type to the model and parses answers of that type."""

    def __init__(self, output_type: Any) -> None:
        self._type = output_type
        # A pydantic model validates itself; pydantic is not imported for it.
        self._pydantic = isinstance(output_type, type) and hasattr(output_type, "model_validate_json")
        try:
            if self._pydantic:
                schema = output_type.model_json_schema()
            else:
                schema = decorator.build_schema(output_type)
                if schema.get("type") != "object":
                    del schema["properties"]
                self._decoder = msgspec.json.Decoder(output_type)
        except (TypeError, errors.InvalidArgument) as error:
            raise errors.InvalidArgument(f"`output_type` {self.name} is not supported: {error}") from None
        self.instructions = PROMPT.format(schema=msgspec.json.encode(schema).decode())

    @property
    def name(self) -> str:
        return getattr(self._type, "__name__", str(self._type))

    def parse(self, answer: str) -> Any:
        """Return the answer as a value of the type. Raises OutputInvalid if it does not match."""
        fenced = _FENCED.match(answer)
        text = fenced[1] if fenced else answer.strip()
        try:
            return self._type.model_validate_json(text) if self._pydantic else self._decoder.decode(text)
        except ValueError as error:  # msgspec.DecodeError and pydantic.ValidationError are ValueErrors
            problem = " ".join(str(error).split()).rstrip(".")
            raise errors.OutputInvalid(f"The answer is not a valid {self.name}: {problem}.") from None
