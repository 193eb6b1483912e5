"""The gateway of this program: store, desks and platforms from the settings, started and stopped by one `async with`.

Whoever talks to it from outside has conversations, notes, permissions and a folder of their own, and nothing of this
machine besides, unless settings say so: who may approve a command in a chat may run it.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import unquote

from holdfast import app, config, errors
from holdfast.agent import approvals
from holdfast.app import compose, daily_cleanup, models, toolset, tracing
from holdfast.compaction import summary
from holdfast.gateway import access, gateway, gateway_context, limits, metrics, route_keys
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import settings as said
from holdfast.gateway.platforms import loopback
from holdfast.gateway.platforms.http import platform as http_platform
from holdfast.gateway.platforms.http import webhooks
from holdfast.model import tokens
from holdfast.runtime import runtime
from holdfast.store import async_db, db
from holdfast.tools import base as tools_port
from holdfast.tools.mcp import servers
from holdfast.tools.permissions import rules
from holdfast.tools.shell import background

LINES = 'Listening at {path}: write {{"text": "Hello"}} to it, a line for each message.'

OPEN = (
    "Listening at {address}, for this machine only: point an OpenAI client at {address}/v1, or run: "
    "curl {address}/v1/chat/completions -H 'Content-Type: application/json' "
    """-d '{{"model": "holdfast", "messages": [{{"role": "user", "content": "Hello"}}]}}'"""
)
TOKENS = "Listening at {address}: point an OpenAI client at {address}/v1, with one of the tokens as its key."


# Python's default is 700. A busy gateway has thousands of tasks, and each collection visits the young ones again.
GC_THRESHOLD = 10_000


class Serving(NamedTuple):
    """A gateway at work."""

    db: async_db.AsyncSessionDB
    gateway: gateway.Gateway
    model: str
    notices: tuple[str, ...]
    """What there is to say about how it started."""
    where: tuple[str, ...]
    """Where it can be talked to, and how: a line for each way."""


def tune_garbage_collector() -> None:
    """Collect garbage less often. For a process that only runs a gateway."""
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 100)


@asynccontextmanager
async def served(
    settings: config.Settings,
    *,
    platforms: Sequence[gateway_platform.Platform] | None = None,
    database: str | None = None,
    model: str | None = None,
) -> AsyncIterator[Serving]:
    """Take in what comes, by these platforms or by those of the settings; at the end of the block, as `Gateway.stop`
    says."""
    async with AsyncExitStack() as stack:
        desks = await stack.enter_async_context(_desks(settings, database or settings.database, model))
        wanted, store = settings.gateway, desks.store
        meter = metrics.Meter()
        ways = _Ways(list(platforms), []) if platforms is not None else await _ways(stack, settings, store, meter)
        known = access.Access(store, access.rules(wanted))
        opened = gateway.Gateway(
            store,
            desks.at,
            ways.platforms,
            settings=gateway_context.Settings(
                busy=wanted.busy, reset=wanted.reset, answer_within=wanted.answer_within, most=wanted.chats
            ),
            profile=wanted.profile,
            guards=[known, limits.Limits(store, wanted.limits)],
            is_admin=known.is_admin,
            may_speak=known.may_speak,
            shared=partial(is_shared, said.ids(wanted.shared)),
            grace=wanted.grace,
            meter=meter,
        )
        desks.ended.append(opened.router.wake)
        tidies = asyncio.create_task(daily_cleanup.looking_after(store, wanted.remember))
        stack.push_async_callback(compose.stopped, tidies)
        stack.push_async_callback(compose.stopped, await compose.watched(desks.processes))
        await stack.enter_async_context(opened)
        yield Serving(store, opened, desks.model, desks.notices, tuple(ways.where))


def is_shared(groups: dict[str, frozenset[str]], came: gateway_platform.Came) -> bool:
    """Whether all in this group are in one conversation. Pure."""
    return came.kind != "dm" and bool(came.chat) and came.chat[0] in groups.get(came.platform, ())


class _Ways(NamedTuple):
    """The platforms of the settings, and how each can be talked to."""

    platforms: list[gateway_platform.Platform]
    where: list[str]


async def _ways(
    stack: AsyncExitStack, settings: config.Settings, store: async_db.AsyncSessionDB, meter: metrics.Meter
) -> _Ways:
    """Opened before the gateway and closed after it: what was taken is still answered when a gateway stops."""
    wanted, ways = settings.gateway, _Ways([], [])
    if wanted.loopback is not None:
        loopback.refuse(wanted.loopback.socket)
        ways.platforms.append(loopback.Lines(wanted.loopback.socket))
        ways.where.append(LINES.format(path=wanted.loopback.socket))
    if wanted.has_http:
        hooks = webhooks.Hooks(store, known := hooks_of(settings)) if wanted.hooks else None
        if hooks is not None:
            ways.platforms.append(hooks)
            ways.where.extend(nowhere(known, {each.name for each in ways.platforms}))
        tokens = tokens_of(settings)
        served_by = http_platform.Http(
            store,
            wanted.http,
            tokens=tokens,
            hooks=hooks,
            attachments=wanted.limits.attachments,
            meter=meter,
            profile=wanted.profile,
        )
        address = await stack.enter_async_context(served_by.serving())
        ways.platforms.append(served_by)
        ways.where.append((TOKENS if tokens else OPEN).format(address=address))
    if not ways.platforms:
        raise errors.SettingInvalid(
            "There is nothing to listen by: `gateway.http.enabled` is false, and nothing else is set up. "
            "Write `[gateway.loopback]`, or take that line out."
        )
    return ways


def tokens_of(settings: config.Settings) -> dict[str, str]:
    """Whose token each is. Raises SettingInvalid where a variable is not set, or two have the same token."""
    found = dict[str, str]()
    for owner, variable in settings.gateway.http.tokens.items():
        token = _secret(settings, f"The token of {owner}", variable)
        if token in found:
            raise errors.SettingInvalid(f"{owner} and {found[token]} have the same token: each has their own.")
        found[token] = owner
    return found


def hooks_of(settings: config.Settings) -> dict[str, webhooks.Hook]:
    """The webhooks with their secrets. Raises SettingInvalid where a variable is not set, or two have one secret:
    what was signed for one of them would be good for the other."""
    found, owners = dict[str, webhooks.Hook](), dict[str, str]()
    for name, wanted in settings.gateway.hooks.items():
        secret = _secret(settings, f"The secret of the hook {name}", wanted.secret_env)
        if secret in owners:
            raise errors.SettingInvalid(
                f"The hooks {owners[secret]} and {name} have the same secret: each has its own."
            )
        owners[secret] = name
        found[name] = webhooks.Hook(secret, wanted)
    return found


def nowhere(hooks: Mapping[str, webhooks.Hook], platforms: Set[str]) -> list[str]:
    """What there is to say of hooks whose replies have nowhere to go. Pure."""
    told = ((name, hook.place) for name, hook in hooks.items())
    return [
        f"gateway.hooks.{name}.to: {place[0]} is not set up here, so its replies wait until it is."
        for name, place in told
        if place is not None and place[0] not in platforms
    ]


def _secret(settings: config.Settings, whose: str, variable: str) -> str:
    found = settings.secrets.get(variable)
    if found is None:
        raise errors.SettingInvalid(
            f"{whose} should be in {variable}, which is not set. "
            f"Set it, for example by: export {variable}=$(openssl rand -hex 24)"
        )
    return found


def may(wanted: bool | said.Senders, owner: str) -> bool:
    """Whether settings give something to an owner. A group that is shared is named as a whole or not at all. Pure."""
    if isinstance(wanted, bool):
        return wanted
    named = ((platform, sender) for platform, each in said.ids(wanted).items() for sender in each)
    return owner in {f"{route_keys.quoted(platform)}:{route_keys.quoted(sender)}" for platform, sender in named}


class _Desks(NamedTuple):
    """What the desks of all owners have in common."""

    settings: config.Settings
    database: str
    store: async_db.AsyncSessionDB
    models: models.Models
    model: str
    summarizer: list[summary.ModelSummarizer] | None
    processes: background.Processes
    added: list[tools_port.Tool]
    others: servers.Servers | None
    meters: dict[str, tokens.Meter]
    notices: tuple[str, ...]
    ended: list[Callable[[], object]]
    """Called when a process has ended that an agent started."""

    @asynccontextmanager
    async def at(self, owner: str) -> AsyncIterator[runtime.Runtime]:
        """A runtime for an owner."""
        folder = folder_of(self.settings, owner)
        await asyncio.to_thread(_made, folder)
        law = rules.Law(self.settings.permissions, os.path.realpath(folder), os.path.expanduser("~"))
        permissions = approvals.Approvals(self.store.permissions, law=law, owner=owner)
        wanted = self.settings.gateway
        others = self.others if may(wanted.tools, owner) else None
        making = compose.Making(
            settings=self.settings,
            store=self.store,
            models=self.models,
            summarizer=self.summarizer,
            permissions=permissions,
            project=partial(toolset.of_project, folder, toolset.off_limits(self.settings, self.database, folder)),
            tools=[
                *toolset.of_past(self.store),
                *(toolset.of_machine(self.processes, self.settings, [folder]) if may(wanted.shell, owner) else ()),
                *(self.added if may(wanted.tools, owner) else ()),
            ],
            others=others.offered if others else None,
            meters=self.meters,
            folder=folder,
            # Made for them by this program, and nothing they know of.
            keep_folder=False,
            source=unquote(owner.partition(":")[0]),
            reviews=True,
            owner=owner,
        )
        async with runtime.Runtime(
            self.store, making.agent, owner=owner, words=others, models=self.models, approvals=permissions
        ) as door:
            yield door


def folder_of(settings: config.Settings, owner: str) -> str:
    """The folder of an owner, whose name cannot lead out of the one they all are in."""
    root = settings.gateway.folder or os.path.join(settings.home, "gateway")
    # On some systems two names are one where only the size of letters differs.
    apart = "" if owner == owner.lower() else f"-{blake2b(owner.encode(), digest_size=8).hexdigest()}"
    return os.path.join(root, f"{owner}{apart}")


def _made(folder: str) -> None:
    for each in (os.path.dirname(folder), folder):
        os.makedirs(each, 0o700, exist_ok=True)


@asynccontextmanager
async def _desks(settings: config.Settings, database: str, model: str | None) -> AsyncIterator[_Desks]:
    async with AsyncExitStack() as stack:
        wrap = stack.enter_context(tracing.traced())
        chosen = await models.choose(settings, model)
        chosen = models.Chosen(wrap(chosen.model), chosen.notice)
        answering = models.Models(settings, chosen.model, wrap)
        stack.push_async_callback(answering.close)
        summarizer = await compose.summarizer_of(stack, settings, chosen)
        store = await stack.enter_async_context(async_db.AsyncSessionDB(db.SessionDB(database)))
        await store.run(partial(app.refuse_unfinished, store.db))
        late = await compose.late_backups(store, settings.backup)
        stack.push_async_callback(compose.stopped, asyncio.create_task(compose.looking_after(store, settings.backup)))
        ended = list[Callable[[], object]]()

        def came_in(_: str) -> None:
            for each in ended:
                each()

        known = compose.known_processes(settings, store, came_in)
        here = os.path.join(settings.home, "gateway")
        common = [
            *toolset.of_project(here, [], object),
            *toolset.of_past(store),
            *toolset.of_machine(known, settings, [here]),
        ]
        added = await toolset.of_others(settings.plugins, common)
        others = await stack.enter_async_context(servers.Servers(settings.servers, here)) if settings.servers else None
        yield _Desks(
            settings=settings,
            database=database,
            store=store,
            models=answering,
            model=chosen.model.name,
            summarizer=summarizer,
            processes=known,
            added=list(added.tools),
            others=others,
            meters={},
            notices=tuple(line for line in (chosen.notice, late, *added.problems) if line),
            ended=ended,
        )
