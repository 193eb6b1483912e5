"""The kinds of model servers that may run on this machine: names and ports, for whoever only wants to know those."""

from __future__ import annotations

import msgspec

HOST = "127.0.0.1"


class Kind(msgspec.Struct, frozen=True):
    """A kind of server: the port it listens on unless told otherwise, and how it is started."""

    name: str
    port: int
    start: str


KINDS: tuple[Kind, ...] = (
    Kind("ollama", 11434, "ollama serve"),
    Kind("llama.cpp", 8080, "llama-server --jinja -m MODEL.gguf"),
    Kind("lmstudio", 1234, "lms server start"),
    Kind("vllm", 8000, "vllm serve MODEL"),
)
