"""One registry: a command says what it is, what it takes and where it is for, and refuses the rest in a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, events
from holdfast.agent import commands
from holdfast.agent.commands import base, turns
from tests.support import slash_commands
from tests.support.runtimes import run_command
from tests.support.slash_commands import said

PROMISED = [
    "help",
    "new",
    "reset",
    "compact",
    "compress",
    "undo",
    "redo",
    "retry",
    "title",
    "resume",
    "sessions",
    "branch",
    "status",
    "usage",
    "model",
    "tools",
    "memory",
    "search",
    "recall",
    "stop",
    "queue",
    "steer",
    "approve",
    "deny",
    "quit",
]
ABOUT_ONE = sorted(name for name, slash in commands.COMMANDS.items() if slash.needs)
GIVEN = {"recall": "1", "unpin": "1", "search": "harbour", "steer": "left"}


def line(name: str) -> str:
    return f"/{name} {GIVEN.get(name, '')}".strip()


class Prompts:
    """Commands from elsewhere."""

    def listed(self) -> Sequence[commands.CommandInfo]:
        return [
            base.SlashCommand(
                name="raw:review", help="Looks over it.", run=commands.COMMANDS["help"].run, argument="[WHAT]"
            )
        ]

    async def text(self, name: str, argument: str) -> str | None:
        return f"Review {argument}." if name == "raw:review" else None


def test_composed_command_lines_name_their_commands() -> None:
    lines = [commands.resume_line("a"), commands.command_line(turns.undo, 2)]
    assert [found.name for line in lines if (found := commands.find(line))] == ["resume", "undo"]


def test_every_promised_command_is_there_and_says_what_it_is_for() -> None:
    assert set(PROMISED) <= set(commands.COMMANDS)
    assert all(slash.help.endswith(".") and slash.name == name for name, slash in commands.COMMANDS.items())
    assert ABOUT_ONE == ["branch", "compact", "compress", "recall", "redo", "retry", "undo", "unpin"]


@pytest.mark.parametrize("name", commands.COMMANDS)
async def test_help_of_one_command_shows_its_form_and_what_it_is_for(name: str, db: AsyncSessionDB) -> None:
    async with slash_commands.door(db) as run:
        slash = commands.COMMANDS[name]
        for asked in (f"/help {name}", f"/help /{name.upper()}"):
            first, *rest = (await said(run, asked)).splitlines()
            assert first == commands.COMMANDS[slash.same_as or name].form.replace(slash.same_as or name, name, 1)
            assert slash.help in rest


async def test_help_of_another_name_tells_what_the_command_itself_would(db: AsyncSessionDB) -> None:
    async with slash_commands.door(db, prompt_commands=Prompts()) as run:
        assert "keep the last 3 exchanges" in await said(run, "/help compress")
        assert await said(run, "/help raw:review") == "/raw:review [WHAT]\nLooks over it."
        assert await said(run, "/help undp") == (
            "error: Unknown command: '/undp'. Did you mean /undo? Type /help for the list."
        )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("/compcat", "compact"), ("/sesions", "sessions"), ("/COMP", "compact"), ("/rev", None), ("/raw:", "raw:review")],
)
async def test_an_unknown_command_is_answered_with_the_nearest_name(
    typed: str, meant: str | None, db: AsyncSessionDB
) -> None:
    async with slash_commands.door(db, prompt_commands=Prompts()) as run:
        answer = await said(run, typed)
    assert answer.startswith(f"error: Unknown command: {errors.quote(typed)}.")
    assert ("Did you mean" in answer) == (meant is not None)
    assert meant is None or f"Did you mean /{meant}?" in answer


@pytest.mark.parametrize("typed", ["/", "/ ", "//", "/\x1b[2J", "/\n", "/" + "x" * 5000])
async def test_what_is_no_name_is_refused_and_cannot_reach_the_screen_as_it_is(typed: str, db: AsyncSessionDB) -> None:
    async with slash_commands.door(db) as run:
        answer = await said(run, typed)
    assert answer.startswith("error: Unknown command: ")
    assert "\x1b" not in answer
    assert len(answer) < 500


@pytest.mark.parametrize("name", [name for name, slash in commands.COMMANDS.items() if not slash.argument])
async def test_a_command_that_takes_nothing_refuses_what_comes_after_it(name: str, db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 1)
    async with slash_commands.door(db) as run:
        assert await said(run, f"/{name} now") == f"error: /{name} takes no argument."
    assert await slash_commands.view(db) == ["q1", "a1"]


@pytest.mark.parametrize("name", sorted(GIVEN))
async def test_a_command_that_needs_something_says_what(name: str, db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 1)
    async with slash_commands.door(db) as run:
        assert await said(run, f"/{name}  ") == (f"error: /{name} needs an argument: {commands.COMMANDS[name].form}")


@pytest.mark.parametrize("name", ABOUT_ONE)
async def test_a_command_about_a_conversation_is_refused_before_it_began_and_after_it_was_deleted(
    name: str, db: AsyncSessionDB
) -> None:
    async with slash_commands.door(db) as run:
        assert await said(run, line(name)) == (
            f"error: The conversation begins with your first message; /{name} needs one."
        )
        assert await db.list_sessions() == []
        await slash_commands.exchanges(db, 2)
        await db.delete_conversation("talk")
        answer = await said(run, line(name))
        assert answer.startswith("error: ")
        assert "was deleted" in answer
        assert await db.list_sessions() == []


@pytest.mark.parametrize("name", [name for name in commands.COMMANDS if name not in (*ABOUT_ONE, "resume")])
async def test_every_other_command_has_an_answer_before_a_conversation_began_and_leaves_nothing_behind(
    name: str, db: AsyncSessionDB
) -> None:
    async with slash_commands.door(db) as run:
        seen = await slash_commands.run_command(run, line(name))
    assert seen
    assert not any(isinstance(each, events.Notice) and each.level == "error" for each in seen)
    assert await db.list_sessions() == []


@pytest.mark.parametrize("name", ["status", "title", "usage"])
async def test_of_a_deleted_conversation_there_is_only_that_to_tell(name: str, db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 1)
    await db.delete_conversation("talk")
    async with slash_commands.door(db) as run:
        assert "was deleted" in await said(run, f"/{name}")


@pytest.mark.parametrize("name", ["new", "reset", "sessions", "search", "queue", "memory", "help", "stop"])
async def test_from_a_deleted_conversation_people_can_look_around_and_leave(name: str, db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 1)
    await db.delete_conversation("talk")
    async with slash_commands.door(db) as run:
        (event,) = await run_command(run, line(name))
        assert not isinstance(event, events.Notice) or event.level == "info"


async def test_a_command_is_refused_and_not_listed_where_it_means_nothing(db: AsyncSessionDB) -> None:
    async with slash_commands.door(db, prompt_commands=Prompts()) as run:
        assert [each.name for each in commands.list_commands(run)] == [*commands.COMMANDS, "raw:review"]
        assert "quit" not in [each.name for each in commands.list_commands(run, "chat")]
        with run.subscribe("talk") as listening:
            await run.send("talk", events.Command("/quit", "chat"))
            listening.put(None)
            seen = [emitted.event async for emitted in listening]
        assert seen == [events.Notice("/quit is not available here.", "error")]
        assert await commands.complete(run, "talk", "/qu", "chat") == await commands.complete(
            run, "talk", "/que", "chat"
        )


async def test_the_argument_may_come_after_any_white_space(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 1)
    async with slash_commands.door(db) as run:
        for white in ("\n", "\t", " \n "):
            assert await run_command(run, f"/title{white}Harbour") == [events.Titled("Harbour")]


# --- completion ----------------------------------------------------------------------------------------


async def offered(run: commands.CommandHost, typed: str) -> list[str]:
    return [each.value for each in await commands.complete(run, "talk", typed)]


async def test_names_are_completed_and_then_what_the_command_takes(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 1)
    await slash_commands.exchanges(db, 1, "harbour")
    await db.create_session("untitled", source="test")
    await db.pin("talk", 1)
    kept = await db.memory.add("", "I eat fish.")
    async with slash_commands.door(db, prompt_commands=Prompts()) as run:
        assert await offered(run, "/co") == ["/compact ", "/compress "]
        assert await offered(run, "/ra") == ["/raw:review "]
        assert await offered(run, "/compact ") == ["/compact --preview", "/compact here 3"] + [
            f"/compact {word}" for word in ("undo", "redo")
        ]
        assert await offered(run, "/compress U") == ["/compress undo"]
        assert sorted(await offered(run, "/resume ")) == ["/resume The harbour", "/resume untitled"]
        assert await offered(run, "/resume the h") == ["/resume The harbour"]
        assert await offered(run, "/unpin ") == ["/unpin 1"]
        assert await offered(run, "/memory f") == [f"/memory forget {kept.id}", "/memory forget all"]
        assert await offered(run, "/approve c") == ["/approve conversation"]
        assert await offered(run, "/help und") == ["/help undo"]
        assert await offered(run, "/stop ") == await offered(run, "/nonsense ") == []


@pytest.mark.parametrize("name", commands.COMMANDS)
async def test_completion_raises_nothing_wherever_the_conversation_is(name: str, db: AsyncSessionDB) -> None:
    async with slash_commands.door(db) as run:
        before = await offered(run, f"/{name} ")
        await slash_commands.exchanges(db, 1)
        await db.delete_conversation("talk")
        assert await offered(run, f"/{name} ") == before


async def test_where_the_store_cannot_say_nothing_is_offered() -> None:
    db = AsyncSessionDB(SessionDB(":memory:"))
    async with slash_commands.door(db) as run:
        await slash_commands.exchanges(db, 1, "harbour")
        assert await offered(run, "/resume ") == ["/resume The harbour"]
        await db.close()
        assert await offered(run, "/resume ") == []


@pytest.mark.parametrize("place", sorted(base.EVERYWHERE))
async def test_what_a_command_recommends_is_there_where_it_was_given(place: events.Place, db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 8, "harbour")
    async with slash_commands.door(db) as run:
        here = {each.name for each in commands.list_commands(run, place)}
        lines = [line(name) for name in commands.COMMANDS] + ["/resum", "/sea", "/help resum"]
        lines += [f"/help {name}" for name in here]
        for given in lines:
            made = await db.branch("harbour")
            heard = list[events.AnyEvent]()
            await commands.run(run, made.id, given, heard.append, place)
            texts = [each.text for each in heard if isinstance(each, events.Answer | events.Notice)]
            named = {*re.findall(r"(?<![\w/])/([a-z]+)", "\n".join(texts))} & {*commands.COMMANDS}
            assert named - {commands.split(given)[0]} <= here, (given, texts)
