"""Models: one port, an adapter for each wire format, and what stands between a call and its answer.

The names others may rely on are loaded when they are asked for.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.anthropic import AnthropicModel as AnthropicModel
    from holdfast.model.offline import OfflineModel as OfflineModel
    from holdfast.model.openai import OpenAIModel as OpenAIModel
    from holdfast.model.port import Model as Model
    from holdfast.model.port import Reply as Reply
    from holdfast.model.scripted import ScriptedModel as ScriptedModel

_LAZY = {
    "AnthropicModel": "holdfast.model.anthropic",
    "Model": "holdfast.model.port",
    "OfflineModel": "holdfast.model.offline",
    "OpenAIModel": "holdfast.model.openai",
    "Reply": "holdfast.model.port",
    "ScriptedModel": "holdfast.model.scripted",
}

__all__ = ["AnthropicModel", "Model", "OfflineModel", "OpenAIModel", "Reply", "ScriptedModel"]


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'holdfast.model' has no attribute {name!r}")
