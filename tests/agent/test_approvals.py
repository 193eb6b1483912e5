"""Permissions at work: nothing is done that is not allowed and written down, and only people and settings allow."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import AIAgent, AsyncSessionDB, SessionDB, errors, events, types
from holdfast.agent import approvals
from holdfast.compaction.base import Outcome
from holdfast.model import ScriptedModel, base
from holdfast.tools import base as tools
from holdfast.tools.files import file_tools
from holdfast.tools.permissions import rules
from tests.support import agents
from tests.support import approvals as house
from tests.support.compaction import WINDOW, FakeSummarizer, fill
from tests.support.runtimes import events_until

# --- rules ---------------------------------------------------------------------------------------------


async def test_a_rule_that_allows_asks_nobody_and_is_named_in_the_audit(db: AsyncSessionDB) -> None:
    home = house.House(db, [house.runs("git diff"), "Done."], law=house.law(allow=["shell(git diff)"]))
    async with home.door as door:
        assert (await door.submit("talk", events.Submit("go"))).completed
    assert home.shell.ran == ["git diff"]
    assert await house.audit(db) == [("git diff", True, "rule: allow shell(git diff)", True)]


async def test_a_rule_that_forbids_is_told_to_the_model_and_nobody_is_asked(db: AsyncSessionDB) -> None:
    home = house.House(db, [house.runs("git push"), "Well."], law=house.law(deny=["shell(git push)"]), yes=True)
    async with home.door as door:
        with door.subscribe("talk", can_approve=True) as heard:
            assert (await door.submit("talk", events.Submit("go"))).completed
            seen = [each.event for each in await events_until(heard, events.TurnFinished)]
    assert not any(isinstance(each, events.ApprovalAsked) for each in seen)
    assert home.shell.ran == []
    assert "A rule in the settings forbids it (deny shell(git push))." in home.results[0]
    assert await house.audit(db) == [("git push", False, "rule: deny shell(git push)", None)]


async def test_a_tool_that_only_looks_is_forbidden_by_rule_too(db: AsyncSessionDB) -> None:
    looks = agents.says("read_file", "the content")
    spec = types.ToolSpec("read_file", "Reads.", {"type": "object", "properties": {"path": {"type": "string"}}})
    closed = rules.Policy(house.law(deny=["read_file(**/private/**)"]).rules, "/work")
    calls = [
        base.Reply(calls=(types.ToolCall(name, "read_file", {"path": name}),), usage=types.Usage(1, 1))
        for name in ("private/x", "other/../private/x", "/work/private/x", "public/x")
    ]
    model = ScriptedModel([*calls, "Done."])
    reader = tools.Tool(spec, looks.run)
    agent = agents.agent(db, model, tools=[reader], approvals=approvals.Approvals(db.permissions, law=closed))
    await agent.run_conversation("go")
    results = [str(each.content) for each in model.requests[-1].messages if each.role == "tool"]
    assert ["Not allowed" in each for each in results] == [True, True, True, False]
    by = "rule: deny read_file(**/private/**)"
    named = ("private/x", "other/../private/x", "/work/private/x")
    assert await house.audit(db) == [(f"read_file '{name}'.", False, by, None) for name in named]


def files_at(tmp_path: Path, db: AsyncSessionDB, calls: list[tuple[str, dict[str, str]]], **said: list[str]) -> AIAgent:
    """An agent with the file tools of a folder, that makes these calls one after the other."""
    law = rules.Policy(house.law(**said).rules, str(tmp_path))
    replies = [
        base.Reply(calls=(types.ToolCall(f"c{number}", *call),), usage=types.Usage(1, 1))
        for number, call in enumerate(calls)
    ]
    return agents.agent(
        db,
        ScriptedModel([*replies, "Done."]),
        tools=file_tools.file_tools([str(tmp_path)]),
        approvals=approvals.Approvals(db.permissions, law=law, yes=True),
    )


async def test_a_search_shows_nothing_below_a_path_that_is_forbidden(tmp_path: Path, db: AsyncSessionDB) -> None:
    for name in ("private", "public", "closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("the word")
    rules = ["search_files(private/**)", "find_files(private/**)", "read_file(closed/**)"]
    calls: list[tuple[str, dict[str, str]]] = [
        ("search_files", {"text": "word"}),
        ("find_files", {"pattern": "*"}),
        ("search_files", {"text": "word", "folder": "private"}),
        ("find_files", {"pattern": "*", "folder": "private"}),
    ]

    agent = files_at(tmp_path, db, calls, deny=rules)
    await agent.run_conversation("go")
    assert isinstance(agent.model, ScriptedModel)
    found = [str(each.content) for each in agent.model.requests[-1].messages if each.role == "tool"]
    assert found[0] == "public/a.txt:1: the word"
    assert sorted(found[1].splitlines()) == ["closed/a.txt", "public/a.txt"]
    assert ["Not allowed" in each for each in found[2:]] == [True, True]
    assert [what for what, *_ in await house.audit(db)] == ["search_files 'private'.", "find_files 'private'."]


async def test_what_a_tool_itself_refuses_is_in_the_audit(tmp_path: Path, db: AsyncSessionDB) -> None:
    calls = [
        ("write_file", {"path": ".git/hooks/x", "content": "x"}),
        ("write_file", {"path": "a", "content": "x"}),
    ]
    await files_at(tmp_path, db, calls).run_conversation("go")
    assert (await house.audit(db))[0] == ("write_file '.git/hooks/x'.", False, "the tool: never", None)
    assert [allowed for _, allowed, _, _ in await house.audit(db)] == [False, True]


# --- asking --------------------------------------------------------------------------------------------


async def test_whoever_listens_is_asked_and_a_yes_lets_it_run_once(db: AsyncSessionDB) -> None:
    home = house.House(db, [house.runs("make it"), house.runs("make it", "c2"), "Done."])
    async with home.door as door:
        with door.subscribe("talk", can_approve=True) as heard:
            done = door.submit("talk", events.Submit("go"))
            first = await house.asked(heard)
            assert (first.tool, first.detail, first.call_id) == ("shell", "make it", "c1")
            assert home.shell.ran == []
            await door.send("talk", events.Approve(first.request_id, "once", "me"))
            settled = (await events_until(heard, events.ApprovalSettled))[-1].event
            assert settled == events.ApprovalSettled(first.request_id, True, "me: once")
            second = await house.asked(heard)
            await door.send("talk", events.Approve(second.request_id, "deny", "me", "not twice"))
            assert (await done).completed
    assert home.shell.ran == ["make it"]
    assert home.results == [
        "It ran.",
        "Error: Not allowed: Run make it. The person denied it. They said: not twice",
    ]
    assert await house.audit(db) == [("make it", True, "me: once", True), ("make it", False, "me: no", None)]
    assert await db.permissions.grants("", "talk") == []


@pytest.mark.parametrize("answer", ["conversation", "always"])
async def test_a_lasting_yes_is_remembered_where_it_was_meant(answer: events.Answered, db: AsyncSessionDB) -> None:
    script = [
        house.runs("git diff a"),
        house.runs("git diff b", "c2"),
        "Done.",
        house.runs("git diff c", "c3"),
        "Done.",
    ]
    home = house.House(db, script)
    async with home.door as door:
        with door.subscribe("talk", can_approve=True) as heard:
            done = door.submit("talk", events.Submit("go"))
            question = await house.asked(heard)
            assert question.remembers == "shell(git diff) in /"
            await door.send("talk", events.Approve(question.request_id, answer, "me"))
            assert (await done).completed
        assert home.shell.ran == ["git diff a", "git diff b"]
        assert (await door.submit("other", events.Submit("go"))).completed
    assert len(home.shell.ran) == (3 if answer == "always" else 2)
    (grant,) = await db.permissions.grants("", "talk")
    assert (grant.rule, grant.conversation_id) == (
        "shell(git diff) in /",
        "talk" if answer == "conversation" else None,
    )


async def test_a_lasting_yes_to_something_dangerous_holds_for_this_once(db: AsyncSessionDB) -> None:
    home = house.House(db, [house.runs("git push -f"), "Done."], law=house.law(allow=["shell"]))
    async with home.door as door:
        with door.subscribe("talk", can_approve=True) as heard:
            done = door.submit("talk", events.Submit("go"))
            question = await house.asked(heard)
            assert question.danger
            assert question.remembers == ""
            await door.send("talk", events.Approve(question.request_id, "always", "me"))
            seen = [each.event for each in await events_until(heard, events.TurnFinished)]
            await done
    assert any(isinstance(each, events.Notice) and "this once" in each.text for each in seen)
    assert home.shell.ran == ["git push -f"]
    assert await db.permissions.grants("") == []


@pytest.mark.parametrize("answer", ["no", "", "DENY", "Once", "yes", "always ", None])
async def test_whatever_is_no_known_yes_is_a_no(answer: Any, db: AsyncSessionDB) -> None:
    home = house.House(db, [house.runs("make"), "Done."])
    async with home.door as door:
        with door.subscribe("talk", can_approve=True) as heard:
            done = door.submit("talk", events.Submit("go"))
            question = await house.asked(heard)
            await door.send("talk", events.Approve(question.request_id, answer, "bot"))
            await done
    assert home.shell.ran == []
    assert await house.audit(db) == [("make", False, "bot: no", None)]
    assert await db.permissions.grants("", "talk") == []


async def test_where_something_forbidden_may_hide_a_person_is_asked_and_told_why(db: AsyncSessionDB) -> None:
    rules = house.law(deny=["shell(git status)"], allow=["shell"])
    home = house.House(db, [house.runs("x=status; git $x"), "Done."], law=rules)
    async with home.door as door:
        with door.subscribe("talk", can_approve=True) as heard:
            done = door.submit("talk", events.Submit("go"))
            question = await house.asked(heard)
            assert question.danger == "A rule may forbid it (rule: deny shell(git status))."
            assert question.remembers == ""
            await door.send("talk", events.Approve(question.request_id, "once", "me"))
            await done
    assert home.shell.ran == ["x=status; git $x"]


async def test_nobody_there_is_a_no_at_once(db: AsyncSessionDB) -> None:
    home = house.House(db, [house.runs("make"), "Well."])
    async with home.door as door:
        with door.subscribe("talk") as heard:
            assert (await door.submit("talk", events.Submit("go"))).completed
            seen = [each.event for each in await events_until(heard, events.TurnFinished)]
    assert not any(isinstance(each, events.ApprovalAsked) for each in seen)
    assert home.results == [f"Error: Not allowed: Run make. {approvals.NO_APPROVER}"]
    assert await house.audit(db) == [("make", False, "nobody", None)]


async def test_when_the_last_who_could_answer_leaves_the_answer_is_no(db: AsyncSessionDB) -> None:
    home = house.House(db, [house.runs("make"), "Well."])
    async with home.door as door:
        with door.subscribe("talk") as looking:
            with door.subscribe("talk", can_approve=True) as heard:
                with door.subscribe("talk", can_approve=True):
                    done = door.submit("talk", events.Submit("go"))
                    await house.asked(heard)
                # One of two has left: the other can still answer.
                assert len(home.approvals.pending("talk")) == 1
            assert (await done).completed
            settled = (await events_until(looking, events.ApprovalSettled))[-1].event
            assert isinstance(settled, events.ApprovalSettled)
            assert not settled.allowed
    assert approvals.APPROVER_LEFT in home.results[0]
    assert home.shell.ran == []


async def test_of_two_answers_at_once_the_first_counts(db: AsyncSessionDB) -> None:
    home = house.House(db, [house.runs("make"), "Done."])
    async with home.door as door:
        with door.subscribe("talk", can_approve=True) as one, door.subscribe("talk", can_approve=True) as two:
            done = door.submit("talk", events.Submit("go"))
            question = await house.asked(one)
            assert await house.asked(two) == question
            answers: tuple[events.Answered, ...] = ("always", "deny", "once")
            await asyncio.gather(
                *(
                    door.send("talk", events.Approve(question.request_id, answer, f"person {number}"))
                    for number, answer in enumerate(answers)
                )
            )
            seen = [each.event for each in await events_until(one, events.TurnFinished)]
            await done
    assert [each.by for each in seen if isinstance(each, events.ApprovalSettled)] == ["person 0: always"]
    late = [each for each in seen if isinstance(each, events.Notice)]
    assert [each.text for each in late] == ["This approval request is no longer pending."] * 2
    assert home.shell.ran == ["make"]
    assert [by for _, _, by, _ in await house.audit(db)] == ["person 0: always"]


async def test_an_answer_in_another_conversation_is_none(db: AsyncSessionDB) -> None:
    home = house.House(db, [house.runs("make"), "Done."])
    async with home.door as door:
        with door.subscribe("talk", can_approve=True) as heard:
            done = door.submit("talk", events.Submit("go"))
            question = await house.asked(heard)
            await door.send("other", events.Approve(question.request_id, "once"))
            await door.send("talk", events.Approve("made up", "once"))
            assert home.shell.ran == []
            assert not done.done()
            await door.send("talk", events.Approve(question.request_id, "deny"))
            await done
    assert home.shell.ran == []


async def test_an_interrupt_takes_the_question_back(db: AsyncSessionDB) -> None:
    home = house.House(db, [house.runs("make")])
    async with home.door as door:
        with door.subscribe("talk", can_approve=True) as heard:
            done = door.submit("talk", events.Submit("go"))
            question = await house.asked(heard)
            await door.send("talk", events.Interrupt())
            seen = [each.event for each in await events_until(heard, events.TurnFinished)]
            assert (await done).interrupted
            await door.send("talk", events.Approve(question.request_id, "always"))
    assert events.ApprovalSettled(question.request_id, False, "interrupted") in seen
    assert home.shell.ran == []
    assert await house.audit(db) == [("make", False, "interrupted", None)]
    assert await db.permissions.grants("") == []


async def test_a_question_asked_before_a_compaction_is_answered_after_it(db: AsyncSessionDB) -> None:
    await fill(db)
    home = house.House(db, [house.runs("make"), "Done."])
    async with home.door as door:
        with door.subscribe("talk", can_approve=True) as heard:
            done = door.submit("talk", events.Submit("go"))
            question = await house.asked(heard)
            before = (await db.head("talk")).id
            other = agents.agent(db, ScriptedModel(window=WINDOW), session_id="talk", summarizer=FakeSummarizer())
            assert (await other.compress_context(force=True)).outcome is Outcome.COMPACTED
            assert (await db.head("talk")).id != before
            await door.send("talk", events.Approve(question.request_id, "conversation", "me"))
            await done
    assert home.shell.ran == ["make"]
    assert await house.audit(db) == [("make", True, "me: conversation", True)]


# --- the audit -----------------------------------------------------------------------------------------


class Torn:
    """A store whose audit cannot be written."""

    def __init__(self, db: AsyncSessionDB) -> None:
        self.grants, self.grant, self.end_audit = db.permissions.grants, db.permissions.grant, db.permissions.end_audit

    async def begin_audit(self, *_: object) -> int:
        raise errors.StoreFull


async def test_what_cannot_be_written_down_is_not_done(db: AsyncSessionDB) -> None:
    home = house.House(db, [house.runs("make"), "Well."], law=house.law(allow=["shell"]), book=Torn(db))
    async with home.door as door:
        assert (await door.submit("talk", events.Submit("go"))).completed
    assert home.shell.ran == []
    assert approvals.NOT_RECORDED in home.results[0]


class Lost:
    """A store that can neither say what was granted nor keep it."""

    def __init__(self, db: AsyncSessionDB) -> None:
        self.begin_audit, self.end_audit = db.permissions.begin_audit, db.permissions.end_audit

    async def grants(self, *_: object) -> list[types.Grant]:
        raise errors.StoreFull

    async def grant(self, *_: object, **__: object) -> types.Grant:
        raise errors.StoreFull


async def test_where_grants_cannot_be_read_the_rules_still_hold(db: AsyncSessionDB) -> None:
    script = [house.runs("make"), house.runs("ls", "c2"), "Well."]
    home = house.House(db, script, law=house.law(allow=["shell(make)"]), book=Lost(db))
    async with home.door as door:
        assert (await door.submit("talk", events.Submit("go"))).completed
    assert home.shell.ran == ["make"]
    assert [(what, by) for what, _, by, _ in await house.audit(db)] == [
        ("make", "rule: allow shell(make)"),
        ("ls", "nobody"),
    ]


async def test_a_yes_that_cannot_be_kept_holds_for_this_once_and_is_written_down(db: AsyncSessionDB) -> None:
    async def approve(_: tools.Act) -> events.Answered:
        return "always"

    shell, model = house.Shell(), ScriptedModel([house.runs("make"), "Done."])
    desk = approvals.Approvals(Lost(db), approve=approve)
    await agents.agent(db, model, tools=[shell.tool], approvals=desk).run_conversation("go")
    assert shell.ran == ["make"]
    assert await house.audit(db) == [("make", True, "the program: once", True)]


async def test_secrets_are_not_in_the_audit(db: AsyncSessionDB) -> None:
    key = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
    home = house.House(db, [house.runs(f"deploy --key {key}"), "Done."], law=house.law(allow=["shell"]))
    async with home.door as door:
        await door.submit("talk", events.Submit("go"))
    assert home.shell.ran == [f"deploy --key {key}"]
    assert [what for what, *_ in await house.audit(db)] == ["deploy --key [redacted]"]


async def test_how_an_act_ended_is_in_the_audit(db: AsyncSessionDB) -> None:
    async def fails() -> str:
        raise errors.ToolFailed("It broke.")

    home = house.House(db, [house.runs("make"), "Well."], law=house.law(allow=["shell"]), shell=house.Shell(fails))
    async with home.door as door:
        await door.submit("talk", events.Submit("go"))
    stuck = agents.Stuck()

    async def hangs() -> str:
        return str(await stuck())

    home = house.House(db, [house.runs("make more")], law=house.law(allow=["shell"]), shell=house.Shell(hangs))
    async with home.door as door:
        done = door.submit("talk", events.Submit("go"))
        await stuck.reached.wait()
        await door.send("talk", events.Interrupt())
        await done
    assert [(what, ok) for what, _, _, ok in await house.audit(db)] == [("make", False), ("make more", False)]


DYING = """
import asyncio, sys
from holdfast import AIAgent, AsyncSessionDB, SessionDB
from holdfast.agent import approvals
from tests.support import approvals as house
from holdfast.model import ScriptedModel

async def hangs():
    print("under way", flush=True)
    await asyncio.Event().wait()

async def main():
    db = AsyncSessionDB(SessionDB(sys.argv[1]))
    model, shell = ScriptedModel([house.runs("make")]), house.Shell(hangs)
    agent = AIAgent(db=db, model=model, session_id="talk", tools=[shell.tool],
                    permissions=approvals.Approvals(db.permissions, law=house.law(allow=["shell"])))
    await agent.run_conversation("go")

asyncio.run(main())
"""


def test_an_act_in_the_middle_of_which_the_program_was_killed_has_no_end(tmp_path: Path) -> None:
    path, root = tmp_path / "h.db", Path(__file__).parent.parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", DYING, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=root,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"under way\n"
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    with SessionDB(path) as db:
        (act,) = db.permissions.audit_log()
        assert (act.summary, act.allowed, act.ended_at, act.ok) == ("make", True, None, None)
