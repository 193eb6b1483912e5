"""Compose the gateway of this program: store, runtimes and platforms from the settings.

Each owner has separate conversations, notes, permissions and a working folder, and no other access to this machine
unless the settings grant it: an owner who may approve a command in a chat may run it.
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

from holdfast import config, errors
from holdfast.agent import approvals
from holdfast.app import compose, models, open_store, telemetry, toolset
from holdfast.compaction import summary
from holdfast.gateway import access, gateway, gateway_context, limits, metrics, routes
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import settings as gateway_settings
from holdfast.gateway.platforms import loopback, plugins
from holdfast.gateway.platforms.http import platform as http_platform
from holdfast.gateway.platforms.http import webhooks
from holdfast.model import tokens
from holdfast.runtime import runtime
from holdfast.store import async_db, db
from holdfast.tools import base as tools_port
from holdfast.tools.mcp import servers
from holdfast.tools.permissions import rules
from holdfast.tools.shell import background

SOCKET = 'Listening at {path}: write {{"text": "Hello"}} to the socket, one line for each message.'
LOCAL = (
    "Listening at {address}, for this machine only: point an OpenAI client at {address}/v1, or run: "
    "curl {address}/v1/chat/completions -H 'Content-Type: application/json' "
    """-d '{{"model": "holdfast", "messages": [{{"role": "user", "content": "Hello"}}]}}'"""
)
WITH_TOKENS = "Listening at {address}: point an OpenAI client at {address}/v1, with a token as its API key."
PLUGIN = "Receiving messages from {name}."

# Python's default is 700. A busy gateway has thousands of tasks, and each collection visits the young ones again.
GC_THRESHOLD = 10_000


class RunningGateway(NamedTuple):
    """A running gateway."""

    db: async_db.AsyncSessionDB
    gateway: gateway.Gateway
    model: str
    notices: tuple[str, ...]
    """Messages about the start."""
    addresses: tuple[str, ...]
    """How to reach the gateway: a line for each platform."""


def tune_garbage_collector() -> None:
    """Collect garbage less often, in a process that only runs a gateway."""
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 100)


@asynccontextmanager
async def serve(
    settings: config.Settings,
    *,
    platforms: Sequence[gateway_platform.Platform] | None = None,
    database: str | None = None,
    model: str | None = None,
) -> AsyncIterator[RunningGateway]:
    """Run a gateway with these platforms, or those of the settings, until the end of the block."""
    async with AsyncExitStack() as stack:
        factory = await stack.enter_async_context(_open_factory(settings, database or settings.database, model))
        wanted, store = settings.gateway, factory.store
        meter, addresses = metrics.GatewayMetrics(), list[str]()
        if platforms is None:
            platforms = await _open_platforms(stack, settings, store, meter, addresses)
        known = access.Access(store, access.build_rules(wanted))
        opened = gateway.Gateway(
            store,
            factory.open,
            platforms,
            settings=gateway_context.TurnSettings(
                busy=wanted.busy, reset=wanted.reset, answer_within=wanted.answer_within, max_chats=wanted.chats
            ),
            profile=wanted.profile,
            checks=[known, limits.RateLimits(store, wanted.limits)],
            is_admin=known.is_admin,
            may_speak=known.may_speak,
            is_shared=partial(is_shared, gateway_settings.ids(wanted.shared)),
            grace=wanted.grace,
            meter=meter,
        )
        factory.on_process_end.append(opened.router.wake)
        stack.push_async_callback(compose.cancel, await compose.watch_processes(factory.processes))
        await stack.enter_async_context(opened)
        yield RunningGateway(store, opened, factory.model, factory.notices, tuple(addresses))


def is_shared(groups: dict[str, frozenset[str]], incoming: gateway_platform.Incoming) -> bool:
    """Return whether all members of a group share one conversation. Pure."""
    return incoming.kind != "dm" and bool(incoming.chat) and incoming.chat[0] in groups.get(incoming.platform, ())


async def _open_platforms(
    stack: AsyncExitStack,
    settings: config.Settings,
    store: async_db.AsyncSessionDB,
    meter: metrics.GatewayMetrics,
    addresses: list[str],
) -> list[gateway_platform.Platform]:
    """Open the platforms of the settings before the gateway: their servers stop after it, so that it can answer."""
    wanted = settings.gateway
    platforms = plugins.load(wanted.platforms, settings.secrets)
    addresses.extend(PLUGIN.format(name=each.name) for each in platforms)
    if wanted.loopback is not None:
        loopback.check_path(wanted.loopback.socket)
        platforms.append(loopback.LoopbackSocket(wanted.loopback.socket))
        addresses.append(SOCKET.format(path=wanted.loopback.socket))
    if wanted.has_http:
        hooks = webhooks.Webhooks(store, configured := hooks_of(settings)) if wanted.hooks else None
        if hooks is not None:
            platforms.append(hooks)
            addresses.extend(missing_platforms(configured, {each.name for each in platforms}))
        tokens = tokens_of(settings)
        http = http_platform.HttpPlatform(
            store,
            wanted.http,
            tokens=tokens,
            hooks=hooks,
            attachments=wanted.limits.attachments,
            meter=meter,
            profile=wanted.profile,
        )
        address = await stack.enter_async_context(http.serve())
        platforms.append(http)
        addresses.append((WITH_TOKENS if tokens else LOCAL).format(address=address))
    if not platforms:
        raise errors.SettingInvalid(
            "The gateway has no platform: `gateway.http.enabled` is false, and no other platform is configured. "
            "Add `[gateway.loopback]`, or remove that line."
        )
    return platforms


def tokens_of(settings: config.Settings) -> dict[str, str]:
    """Return the owner of each token. Raises SettingInvalid if a variable is not set or two tokens are equal."""
    found = dict[str, str]()
    for owner, variable in settings.gateway.http.tokens.items():
        token = _secret(settings, f"The token of {owner}", variable)
        if token in found:
            raise errors.SettingInvalid(
                f"{owner} and {found[token]} have the same token. Each owner needs a separate one."
            )
        found[token] = owner
    return found


def hooks_of(settings: config.Settings) -> dict[str, webhooks.HookConfig]:
    """Return the webhooks with their secrets.

    Raises SettingInvalid if a variable is not set, or if two hooks have the same secret: a delivery that is signed for
    one of them would be valid for the other.
    """
    found, owners = dict[str, webhooks.HookConfig](), dict[str, str]()
    for name, wanted in settings.gateway.hooks.items():
        secret = _secret(settings, f"The secret of the hook {name}", wanted.secret_env)
        if secret in owners:
            raise errors.SettingInvalid(f"The hooks {owners[secret]} and {name} must not have the same secret.")
        owners[secret] = name
        found[name] = webhooks.HookConfig(secret, wanted)
    return found


def missing_platforms(hooks: Mapping[str, webhooks.HookConfig], platforms: Set[str]) -> list[str]:
    """Return a warning for each hook whose replies go to a platform that does not run. Pure."""
    return [
        f"gateway.hooks.{name}.to: the platform {hook.chat[0]} is not configured; replies wait until it is."
        for name, hook in hooks.items()
        if hook.chat is not None and hook.chat[0] not in platforms
    ]


def _secret(settings: config.Settings, whose: str, variable: str) -> str:
    found = settings.secrets.get(variable)
    if found is None:
        raise errors.SettingInvalid(
            f"{whose} must be in the environment variable {variable}, which is not set. "
            f"Set it, for example: export {variable}=$(openssl rand -hex 24)"
        )
    return found


def is_granted(wanted: bool | gateway_settings.Senders, owner: str) -> bool:
    """Return whether the settings grant something to an owner; a list never includes a shared group. Pure."""
    if isinstance(wanted, bool):
        return wanted
    named = ((platform, sender) for platform, each in gateway_settings.ids(wanted).items() for sender in each)
    return owner in {f"{routes.quote_part(platform)}:{routes.quote_part(sender)}" for platform, sender in named}


class _RuntimeFactory(NamedTuple):
    """What the runtimes of all owners share."""

    settings: config.Settings
    database: str
    store: async_db.AsyncSessionDB
    models: models.ConversationModels
    model: str
    summarizer: list[summary.ModelSummarizer] | None
    processes: background.Processes
    added: list[tools_port.Tool]
    others: servers.Servers | None
    meters: dict[str, tokens.Meter]
    notices: tuple[str, ...]
    on_process_end: list[Callable[[], object]]
    """Called when a background process of an agent has ended."""

    @asynccontextmanager
    async def open(self, owner: str) -> AsyncIterator[runtime.Runtime]:
        """Open the runtime of an owner."""
        folder = folder_of(self.settings, owner)
        await asyncio.to_thread(_create_folder, folder)
        law = rules.Law(self.settings.permissions, os.path.realpath(folder), os.path.expanduser("~"))
        permissions = approvals.Approvals(self.store.permissions, law=law, owner=owner)
        wanted = self.settings.gateway
        others = self.others if is_granted(wanted.tools, owner) else None
        has_shell = is_granted(wanted.shell, owner)
        making = compose.AgentFactory(
            settings=self.settings,
            store=self.store,
            models=self.models,
            summarizer=self.summarizer,
            permissions=permissions,
            project=partial(
                toolset.build_file_tools, folder, toolset.protected_paths(self.settings, self.database, folder)
            ),
            tools=[
                *toolset.build_recall_tools(self.store),
                *(toolset.build_shell_tools(self.processes, self.settings, [folder]) if has_shell else ()),
                *(self.added if is_granted(wanted.tools, owner) else ()),
            ],
            others=others.offered if others else None,
            meters=self.meters,
            folder=folder,
            # The folder is an internal detail and not part of the conversation.
            keep_folder=False,
            source=unquote(owner.partition(":")[0]),
            reviews=True,
            owner=owner,
        )
        async with runtime.Runtime(
            self.store, making.agent, owner=owner, prompt_commands=others, models=self.models, approvals=permissions
        ) as opened:
            yield opened


def folder_of(settings: config.Settings, owner: str) -> str:
    """Return the working folder of an owner. Owners are quoted, so the folder is always inside the common one."""
    root = settings.gateway.folder or os.path.join(settings.home, "gateway")
    # On some file systems names that differ only in case are equal.
    suffix = "" if owner == owner.lower() else f"-{blake2b(owner.encode(), digest_size=8).hexdigest()}"
    return os.path.join(root, f"{owner}{suffix}")


def _create_folder(folder: str) -> None:
    for each in (os.path.dirname(folder), folder):
        os.makedirs(each, 0o700, exist_ok=True)


@asynccontextmanager
async def _open_factory(settings: config.Settings, database: str, model: str | None) -> AsyncIterator[_RuntimeFactory]:
    async with AsyncExitStack() as stack:
        wrap = stack.enter_context(telemetry.install())
        chosen = await models.choose(settings, model)
        chosen = models.ModelChoice(wrap(chosen.model), chosen.notice)
        answering = models.ConversationModels(settings, chosen.model, wrap)
        stack.push_async_callback(answering.close)
        summarizer = await compose.build_summarizers(stack, settings, chosen)
        store = await stack.enter_async_context(async_db.AsyncSessionDB(db.SessionDB(database)))
        await store.run(partial(open_store.refuse_unfinished_copy, store.db))
        late = await compose.backup_warning(store, settings.backup)
        maintenance = compose.run_maintenance(store, settings.backup, settings.gateway.remember)
        stack.push_async_callback(compose.cancel, asyncio.create_task(maintenance))
        on_process_end = list[Callable[[], object]]()

        def notify(_: str) -> None:
            for callback in on_process_end:
                callback()

        known = compose.build_process_manager(settings, store, notify)
        here = os.path.join(settings.home, "gateway")
        common = [
            *toolset.build_file_tools(here, [], object),
            *toolset.build_recall_tools(store),
            *toolset.build_shell_tools(known, settings, [here]),
        ]
        added = await toolset.load_plugin_tools(settings.plugins, common)
        others = await stack.enter_async_context(servers.Servers(settings.servers, here)) if settings.servers else None
        yield _RuntimeFactory(
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
            on_process_end=on_process_end,
        )
