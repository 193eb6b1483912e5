"""Models: one port, an adapter for each wire format, and what stands between a call and its answer.

The names others may rely on are loaded when they are asked for.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.anthropic.adapter import AnthropicModel
    from holdfast.model.base import Model, Reply
    from holdfast.model.offline import OfflineModel as OfflineModel
    from holdfast.model.openai.adapter import OpenAIModel
    from holdfast.model.scripted import ScriptedModel as ScriptedModel

_LAZY = {
    "AnthropicModel": "holdfast.model.anthropic.adapter",
    "Model": "holdfast.model.base",
    "OfflineModel": "holdfast.model.offline",
    "OpenAIModel": "holdfast.model.openai.adapter",
    "Reply": "holdfast.model.base",
    "ScriptedModel": "holdfast.model.scripted",
}

__all__ = ["AnthropicModel", "Model", "OfflineModel", "OpenAIModel", "Reply", "ScriptedModel"]


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'holdfast.model' has no attribute {name!r}")
