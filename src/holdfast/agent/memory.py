"""What an agent remembers about the person: the tool, the section of its prompt, and the review of its turns.

The section is read when the agent takes its first turn and again when the conversation has another head, which is
after a compaction: in between the prompt stays the same bytes, whoever notes what. A person's own `/memory` counts
at once.
"""

from __future__ import annotations

import logging

from holdfast import content_parts, events
from holdfast.agent import memory_notes as noted
from holdfast.agent import memory_review, system_prompt
from holdfast.model import base as models
from holdfast.tools import memory

logger = logging.getLogger("holdfast.agent")


class AgentMemory:
    """The memory of one agent; of one that has no notes, nothing at all. Without a `reviewer` nothing is reviewed.

    `charge` is called with what each review used.
    """

    def __init__(self, notes: noted.Notes | None, reviewer: models.Model | None, charge: memory_review.Charge) -> None:
        self.tools = (memory.memory(notes),) if notes else ()
        self._notes = notes
        self._review = memory_review.Review(reviewer, notes, charge) if reviewer and notes else None
        self._read_for: str | None = None
        self._section = ""

    async def prompt(self, plain: str, head: str) -> str:
        """The prompt of a turn that begins at this head. Notes that cannot be read stop no turn."""
        if self._notes and self._read_for != head:
            try:
                self._section = memory.section(await self._notes.memories())
                self._read_for = head
            except Exception as error:  # noqa: BLE001 -- notes that cannot be read stop no turn
                logger.warning("what is remembered could not be read: %s", error)
        return system_prompt.remembering(plain, self._section)

    def changed(self) -> None:
        """The person changed what is remembered: the next turn knows it."""
        self._read_for = None

    def over(self, result: events.TurnResult, allowance: float | None = None) -> None:
        """Review a turn that was delivered, if a person spoke and was answered to the end.

        The review may cost `allowance` US dollars; None: any amount.
        """
        spoke = any(each.role == "user" and not content_parts.noticed(each.content) for each in result.messages)
        if self._review is not None and spoke and result.completed and result.api_calls:
            self._review.begin(memory_review.Turn(result.messages, allowance))

    @property
    def is_reviewing(self) -> bool:
        """Whether a review is at work."""
        return self._review is not None and self._review.under_way

    async def wait_for_review(self, within: float) -> None:
        """Until what was said last is looked over, or so many seconds have passed."""
        if self._review is not None:
            await self._review.over(within)

    async def close(self) -> None:
        if self._review is not None:
            await self._review.close()
