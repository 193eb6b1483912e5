"""Settings of an AIAgent, in small frozen groups with defaults: pass only the groups that you want to change."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.compaction import base as compaction
from holdfast.compaction import hooks, policy
from holdfast.model import tokens


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits that end a turn although the model would continue."""

    steps: int = 50
    """Model requests per turn."""
    cost: float | None = None
    """US dollars per turn, including summaries and the memory review; needs a model whose price is known."""
    output: int | None = None
    """Tokens per reply; None leaves it to the model."""

    def with_output(self, max_output: int | None) -> Limits:
        """Return these limits with replies of at most `max_output` tokens; a smaller limit stays."""
        if max_output is None:
            return self
        return msgspec.structs.replace(self, output=min(max_output, self.output or max_output))


class CompactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When and how older messages are summarized."""

    summarizer: compaction.Summarizer | Sequence[compaction.Summarizer] | None = None
    """One summarizer, or several that are tried in order; None: the agent's model; (): extracts without a model."""
    policy: policy.CompactionPolicy = policy.CompactionPolicy()
    background: bool = True
    """Whether compactions run concurrently with turns from the soft threshold on."""
    hooks: hooks.Hooks = hooks.Hooks()
    meter: tokens.Meter | None = None
    """The token meter; agents with the same model may share one."""


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Notes about the user that outlive a conversation."""

    enabled: bool = False
    """Whether the system prompt has the notes of the conversation's owner, and the model a tool to change them."""
    review: bool = False
    """Whether a second request looks for things to remember after each turn."""
    text: str = ""
    """Fixed text for the memory section of the system prompt, for programs with a memory of their own."""


class ConversationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes of a conversation that the agent creates."""

    source: str = "library"
    owner: str = ""
    """The user whose notes and permissions apply."""
    route: str | None = None
    title: str | None = None
    """The title of a new conversation; None: its first words."""
    folder: str | None = None
    """The working folder: where context files are read; recorded with the conversation."""
    record_folder: bool = True


class TurnSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn is scheduled and reported."""

    wait_seconds: float = 600.0
    """How long a message waits for a turn of the same conversation in another process."""
    lease_ttl_seconds: float = 30.0
    quiet: bool = False
    """Whether Notice and Compacted events are dropped."""


LIMITS, COMPACTION, MEMORY = Limits(), CompactionSettings(), MemorySettings()
CONVERSATION, TURNS = ConversationSettings(), TurnSettings()
"""The defaults."""
