"""Notes about a person in a dictionary, for tests of the memory tool."""

from __future__ import annotations

from holdfast import types


def make_note(number: int, text: str, at: float = 0.0) -> types.Memory:
    return types.Memory(id=number, owner="", text=text, at=at, updated_at=at or float(number))


class FakeMemory:
    """Notes in a dictionary."""

    def __init__(self, *texts: str) -> None:
        self.notes = {number: make_note(number, text) for number, text in enumerate(texts, 1)}

    async def remember(self, text: str) -> types.Memory:
        made = make_note(len(self.notes) + 1, text)
        self.notes[made.id] = made
        return made

    async def memories(self) -> list[types.Memory]:
        return list(self.notes.values())

    async def revise(self, number: int, text: str) -> types.Memory:
        self.notes[number] = make_note(number, text)
        return self.notes[number]

    async def forget(self, number: int) -> bool:
        return self.notes.pop(number, None) is not None
