"""Models: the `Model` protocol, an adapter for each API, retries, and `create`, which makes a model from a string.

The public names are loaded on first use.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.anthropic.adapter import AnthropicModel as AnthropicModel
    from holdfast.model.base import Model as Model
    from holdfast.model.base import Reply as Reply
    from holdfast.model.offline import OfflineModel as OfflineModel
    from holdfast.model.openai.adapter import OpenAIModel as OpenAIModel
    from holdfast.model.providers import create as create
    from holdfast.model.retry import Backoff as Backoff
    from holdfast.model.retry import FallbackModel as FallbackModel
    from holdfast.model.retry import RetryingModel as RetryingModel
    from holdfast.model.scripted import ScriptedModel as ScriptedModel

_LAZY = {
    "AnthropicModel": "holdfast.model.anthropic.adapter",
    "Backoff": "holdfast.model.retry",
    "FallbackModel": "holdfast.model.retry",
    "Model": "holdfast.model.base",
    "OfflineModel": "holdfast.model.offline",
    "OpenAIModel": "holdfast.model.openai.adapter",
    "Reply": "holdfast.model.base",
    "RetryingModel": "holdfast.model.retry",
    "ScriptedModel": "holdfast.model.scripted",
    "create": "holdfast.model.providers",
}

__all__ = list(_LAZY)


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'holdfast.model' has no attribute {name!r}")
