"""The registry of slash commands: names, arguments, availability, help and completion."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, events
from holdfast.agent import commands
from holdfast.agent.commands import base, turns
from tests.support.runtimes import add_exchanges, answer_text, context_texts, open_runtime, run_command

NEED_CONVERSATION = sorted(name for name, slash in commands.COMMANDS.items() if slash.needs)
ARGUMENTS = {"recall": "1", "unpin": "1", "search": "harbour", "steer": "left"}


def line(name: str) -> str:
    return f"/{name} {ARGUMENTS.get(name, '')}".strip()


class Prompts:
    """Prompt commands of an MCP server."""

    def listed(self) -> Sequence[commands.CommandInfo]:
        run = commands.COMMANDS["help"].run
        return [base.SlashCommand(name="raw:review", help="Looks over it.", run=run, argument="[WHAT]")]

    async def text(self, name: str, argument: str) -> str | None:
        return f"Review {argument}." if name == "raw:review" else None


PROMPTS = {"prompt_commands": Prompts()}


def test_commands_are_described_and_found_in_composed_lines() -> None:
    assert all(slash.help.endswith(".") and slash.name == name for name, slash in commands.COMMANDS.items())
    assert NEED_CONVERSATION == ["branch", "compact", "compress", "recall", "redo", "retry", "undo", "unpin"]
    lines = [commands.resume_line("a"), commands.command_line(turns.undo, 2)]
    assert [found.name for line in lines if (found := commands.find(line))] == ["resume", "undo"]


async def test_help_shows_every_command_and_its_form(db: AsyncSessionDB) -> None:
    async with open_runtime(db, options=PROMPTS) as run:
        listed = await answer_text(run, "/help")
        for name, slash in commands.COMMANDS.items():
            assert f"/{name}" in listed
            for asked in (f"/help {name}", f"/help /{name.upper()}"):
                first, *rest = (await answer_text(run, asked)).splitlines()
                target = slash.same_as or name
                assert first == commands.COMMANDS[target].form.replace(target, name, 1)
                assert slash.help in rest
        assert "keep the last 3 exchanges" in await answer_text(run, "/help compress")
        assert await answer_text(run, "/help raw:review") == "/raw:review [WHAT]\nLooks over it."
        unknown = "error: Unknown command: '/undp'. Did you mean /undo? Type /help for the list."
        assert await answer_text(run, "/help undp") == unknown


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("/compcat", "compact"),
        ("/COMP", "compact"),
        ("/raw:", "raw:review"),
        ("/rev", None),
        ("/\x1b[2J", None),
        ("/" + "x" * 5000, None),
    ],
)
async def test_unknown_command_is_refused_with_similar_name(typed: str, meant: str | None, db: AsyncSessionDB) -> None:
    async with open_runtime(db, options=PROMPTS) as run:
        answer = await answer_text(run, typed)
    assert answer.startswith("error: Unknown command: ")
    assert len(typed) > 100 or answer.startswith(f"error: Unknown command: {errors.quote(typed)}.")
    assert ("\x1b" in answer, len(answer) < 500) == (False, True)
    assert ("Did you mean" in answer) == (meant is not None)
    assert meant is None or f"Did you mean /{meant}?" in answer


async def test_missing_and_superfluous_arguments_are_refused(db: AsyncSessionDB) -> None:
    await add_exchanges(db, 1)
    async with open_runtime(db) as run:
        for name, slash in commands.COMMANDS.items():
            if not slash.argument:
                assert await answer_text(run, f"/{name} now") == f"error: /{name} takes no argument."
        for name in ARGUMENTS:
            missing = f"error: /{name} needs an argument: {commands.COMMANDS[name].form}"
            assert await answer_text(run, f"/{name}  ") == missing
        for space in ("\n", "\t", " \n "):
            assert await run_command(run, f"/title{space}Harbour") == [events.Titled("Harbour")]
    assert await context_texts(db) == ["q1", "a1"]


@pytest.mark.parametrize("name", [*NEED_CONVERSATION, "link"])  # `/link CODE` needs none.
async def test_command_needs_an_existing_conversation(name: str, db: AsyncSessionDB) -> None:
    async with open_runtime(db) as run:
        refused = f"error: The conversation begins with your first message; /{name} needs one."
        assert await answer_text(run, line(name)) == refused
        assert await db.list_sessions() == []
        await add_exchanges(db, 2)
        await db.delete_conversation("talk")
        answer = await answer_text(run, line(name))
        assert answer.startswith("error: ")
        assert "was deleted" in answer
        assert await db.list_sessions() == []


async def test_link_off_ends_the_links_to_this_user_only(db: AsyncSessionDB) -> None:
    async with open_runtime(db) as run:
        await add_exchanges(db, 1)
        code = re.findall(r"/link (\w{8})", await answer_text(run, "/link"))[0]
        await db.contacts.link_by_code("red", "ann", code)
        await db.contacts.link("blue", "ben", "red:ben")
        assert await answer_text(run, "/link off") == "The links of ann (red) were removed."
        assert [each.sender for each in await db.contacts.links()] == ["ben"]
        assert await answer_text(run, "/link OFF") == "No chat is linked. If you created a code, /link replaces it."
        assert "`/link CODE` to the agent in a chat" in await answer_text(run, f"/link {code}")


@pytest.mark.parametrize("name", sorted({*commands.COMMANDS} - {*NEED_CONVERSATION, "link", "resume"}))
async def test_other_command_answers_without_and_after_a_conversation(name: str, db: AsyncSessionDB) -> None:
    async with open_runtime(db) as run:
        for deleted in (False, True):
            seen = await run_command(run, line(name))
            assert seen
            if not deleted:
                assert not any(isinstance(each, events.Notice) and each.level == "error" for each in seen)
                assert await db.list_sessions() == []
                await add_exchanges(db, 1)
                await db.delete_conversation("talk")


async def test_command_is_neither_run_nor_listed_where_it_is_unavailable(db: AsyncSessionDB) -> None:
    async with open_runtime(db, options=PROMPTS) as run:
        assert [each.name for each in commands.list_commands(run)] == [*commands.COMMANDS, "raw:review"]
        assert "quit" not in [each.name for each in commands.list_commands(run, "chat")]
        with run.subscribe("talk") as stream:
            await run.send("talk", events.Command("/quit", "chat"))
            stream.put(None)
            seen = [emitted.event async for emitted in stream]
        assert seen == [events.Notice("/quit is not available here.", "error")]
        assert [each.value for each in await commands.complete(run, "talk", "/qu", "chat")] == ["/queue "]


async def offered(run: commands.CommandHost, typed: str) -> list[str]:
    return [each.value for each in await commands.complete(run, "talk", typed)]


async def test_names_and_arguments_are_completed(db: AsyncSessionDB) -> None:
    await add_exchanges(db, 1)
    await add_exchanges(db, 1, "harbour")
    await db.create_session("untitled", source="test")
    await db.pin("talk", 1)
    kept = await db.memory.add("", "I eat fish.")
    async with open_runtime(db, options=PROMPTS) as run:
        for typed, expected in (
            ("/co", ["/compact ", "/compress "]),
            ("/ra", ["/raw:review "]),
            ("/compact ", ["/compact --preview", "/compact here 3", "/compact undo", "/compact redo"]),
            ("/compress U", ["/compress undo"]),
            ("/resume the h", ["/resume The harbour"]),
            ("/unpin ", ["/unpin 1"]),
            ("/memory f", [f"/memory forget {kept.id}", "/memory forget all"]),
            ("/approve c", ["/approve conversation"]),
            ("/help und", ["/help undo"]),
            ("/stop ", []),
            ("/nonsense ", []),
        ):
            assert await offered(run, typed) == expected
        assert sorted(await offered(run, "/resume ")) == ["/resume The harbour", "/resume untitled"]


async def test_completion_never_fails() -> None:
    db = AsyncSessionDB(SessionDB(":memory:"))
    async with open_runtime(db) as run:
        before = {name: await offered(run, f"/{name} ") for name in commands.COMMANDS}
        await add_exchanges(db, 1)
        await db.delete_conversation("talk")
        assert {name: await offered(run, f"/{name} ") for name in commands.COMMANDS} == before
        await add_exchanges(db, 1, "harbour")
        assert await offered(run, "/resume ") == ["/resume The harbour"]
        await db.close()
        assert await offered(run, "/resume ") == []
