"""The system prompt: byte-stable, composed of instructions, files, memory and sections of the turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.agent import context_files, memory, system_prompt


def prompt(folder: Path, instructions: system_prompt.Instructions = "") -> system_prompt.SystemPrompt:
    files = context_files.read(str(folder))
    return system_prompt.SystemPrompt(instructions, files, "likes tea", memory.AgentMemory())


def test_the_prompt_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Use tabs.", encoding="utf-8")
    one, two = (asyncio.run(prompt(tmp_path).build("head", "extra")) for _ in range(2))
    assert one == two
    assert one.index("Use tabs.") < one.index("likes tea") < one.index("extra")


def test_instructions_replace_the_identity_and_a_function_is_called_for_every_turn(tmp_path: Path) -> None:
    texts = iter(["Be brief.", "Be kind."])

    async def instructions() -> str:
        return next(texts)

    made = prompt(tmp_path, instructions)
    assert asyncio.run(made.build("head")).startswith("Be brief.\n")
    assert asyncio.run(made.build("head")).startswith("Be kind.\n")
    assert system_prompt.IDENTITY not in made.text
