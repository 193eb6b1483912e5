"""Compose the gateway of this program: store, runtimes and platforms from the settings.

Each owner has separate conversations, notes, permissions and a working folder, and no other access to this machine
unless the settings grant it: an owner who may approve a command in a chat may run it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import unquote

from holdfast import config, errors
from holdfast.agent import approvals
from holdfast.app import compose, telemetry, toolset
from holdfast.gateway import access, gateway, limits, metrics, routes
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import settings as gateway_settings
from holdfast.gateway.platforms import loopback, plugins
from holdfast.gateway.platforms.http import http_platform, webhooks
from holdfast.runtime import runtime
from holdfast.store import async_db
from holdfast.tools.files import workspace
from holdfast.tools.mcp import servers

SOCKET = 'Listening at {path}: write {{"text": "Hello"}} to the socket, one line for each message.'
LOCAL = (
    "Listening at {address}, for this machine only: point an OpenAI client at {address}/v1, or run: "
    "curl {address}/v1/chat/completions -H 'Content-Type: application/json' "
    """-d '{{"model": "holdfast", "messages": [{{"role": "user", "content": "Hello"}}]}}'"""
)
WITH_TOKENS = "Listening at {address}: point an OpenAI client at {address}/v1, with a token as its API key."

RECEIVED = "inbox"
"""The folder of received files in the working folder of an owner."""
MAX_FILE_NAME = 60
"""In characters; file systems limit names to 255 bytes."""
_UNSAFE = re.compile(r"[^\w.-]+")

# Python's default is 700. A busy gateway has thousands of tasks, and each collection visits the young ones again.
GC_THRESHOLD = 10_000


class RunningGateway(NamedTuple):
    """A running gateway."""

    db: async_db.AsyncSessionDB
    gateway: gateway.Gateway
    model: str
    notice: str | None
    """A message about the start."""
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

    def came_in(_conversation_id: str) -> None:
        opened.router.wake()

    async with AsyncExitStack() as stack:
        folder = os.path.join(settings.home, "gateway")
        services = await stack.enter_async_context(
            compose.open_services(
                settings,
                came_in,
                database=database,
                model=model,
                folder=folder,
                wrap=stack.enter_context(telemetry.install()),
                expire_days=settings.gateway.remember,
            )
        )
        others = None
        if settings.servers:
            others = await stack.enter_async_context(servers.McpServers(settings.servers, folder))
        wanted, store = settings.gateway, services.store
        meter, addresses = metrics.GatewayMetrics(), list[str]()
        if platforms is None:
            platforms = await _open_platforms(stack, settings, store, meter, addresses)
        known = access.Access(store, access.build_rules(wanted))
        opened = gateway.Gateway(
            store,
            partial(_open_runtime, services, others),
            platforms,
            settings=wanted,
            checks=[known, limits.RateLimits(store, wanted.limits)],
            is_admin=known.is_admin,
            may_speak=known.may_speak,
            is_shared=partial(is_shared, gateway_settings.ids(wanted.shared)),
            meter=meter,
            save_file=partial(save_file, settings, store),
        )
        stack.push_async_callback(compose.cancel, await compose.watch_processes(services.processes))
        await stack.enter_async_context(opened)
        yield RunningGateway(store, opened, services.model, services.notice, tuple(addresses))


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
    if wanted.loopback is not None:
        loopback.check_path(wanted.loopback.socket)
        platforms.append(loopback.LoopbackSocket(wanted.loopback.socket))
        addresses.append(SOCKET.format(path=wanted.loopback.socket))
    if wanted.has_http:
        hooks = None
        if wanted.hooks:
            secrets = _read_secrets(settings, "secret", {name: each.secret_env for name, each in wanted.hooks.items()})
            configured = {name: webhooks.HookConfig(secrets[name], each) for name, each in wanted.hooks.items()}
            platforms.append(hooks := webhooks.Webhooks(store, configured))
            addresses.extend(missing_platforms(configured, {each.name for each in platforms}))
        tokens = _read_secrets(settings, "token", wanted.http.tokens)
        http = http_platform.HttpPlatform(
            store,
            wanted.http,
            tokens={token: owner for owner, token in tokens.items()},
            hooks=hooks,
            attachments=wanted.limits.attachments,
            meter=meter,
            profile=wanted.profile,
            poll_seconds=wanted.poll,
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


def _read_secrets(settings: config.Settings, kind: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return secrets by name, from these environment variables.

    Raises SettingInvalid if a variable is not set, or if two secrets are equal: what is meant for one of them would be
    valid for the other.
    """
    found, owners = dict[str, str](), dict[str, str]()
    for name, variable in variables.items():
        secret = settings.secrets.get(variable)
        if secret is None:
            raise errors.SettingInvalid(
                f"The {kind} of {name} must be in the environment variable {variable}, which is not set. "
                f"Set it, for example: export {variable}=$(openssl rand -hex 24)"
            )
        if secret in owners:
            raise errors.SettingInvalid(f"{owners[secret]} and {name} must not have the same {kind}.")
        found[name] = secret
        owners[secret] = name
    return found


def missing_platforms(hooks: Mapping[str, webhooks.HookConfig], platforms: Set[str]) -> list[str]:
    """Return a warning for each hook whose replies go to a platform that does not run. Pure."""
    return [
        f"gateway.hooks.{name}.to: the platform {hook.chat[0]} is not configured; replies wait until it is."
        for name, hook in hooks.items()
        if hook.chat is not None and hook.chat[0] not in platforms
    ]


def is_granted(wanted: bool | gateway_settings.Senders, identity: str) -> bool:
    """Return whether the settings grant something to a sender; a list never includes a shared group. Pure."""
    if isinstance(wanted, bool):
        return wanted
    named = ((platform, sender) for platform, each in gateway_settings.ids(wanted).items() for sender in each)
    return identity in {f"{routes.quote_part(platform)}:{routes.quote_part(sender)}" for platform, sender in named}


@asynccontextmanager
async def _open_runtime(
    services: compose.Services, others: servers.McpServers | None, principal: routes.Principal
) -> AsyncIterator[runtime.Runtime]:
    """Open the runtime of a principal. `others` are the MCP servers, which all of them share.

    Linked chats share the folder of their owner, which contains the files that their messages mention. A sender who is
    linked to the terminal has the conversations of the terminal, but neither its folder nor its rights.
    """
    settings, store, identity, owner = services.settings, services.store, principal.identity, principal.owner
    folder = folder_of(settings, owner or identity)
    await asyncio.to_thread(_create_folder, folder)
    permissions = approvals.Approvals(store.permissions, law=compose.permission_law(settings, folder), owner=identity)
    if not is_granted(settings.gateway.tools, identity):
        others, services = None, services._replace(added=[])
    has_shell = is_granted(settings.gateway.shell, identity)
    protected = toolset.protected_paths(settings, services.database, folder)
    factory = services.agent_factory(
        permissions,
        [*toolset.build_file_tools(folder, protected), toolset.build_send_tool(store, folder, protected)],
        toolset.build_shell_tools(services.processes, settings, [folder]) if has_shell else [],
        others,
        folder=folder,
        source=unquote(identity.partition(":")[0]),
        reviews=True,
    )
    # The folder is an internal detail and not part of the conversation.
    agent = factory._replace(owner=owner, keep_folder=False).agent
    async with runtime.Runtime(
        store, agent, owner=owner, prompt_commands=others, models=services.models, approvals=permissions
    ) as opened:
        yield opened


def folder_of(settings: config.Settings, owner: str) -> str:
    """Return the working folder of an owner. Owners are quoted, so the folder is always inside the common one."""
    root = settings.gateway.folder or os.path.join(settings.home, "gateway")
    # On some file systems names that differ only in case are equal.
    suffix = "" if owner == owner.lower() else f"-{blake2b(owner.encode(), digest_size=8).hexdigest()}"
    return os.path.join(root, f"{owner}{suffix}")


async def save_file(
    settings: config.Settings, store: async_db.AsyncSessionDB, principal: routes.Principal, digest: str, name: str
) -> str:
    """Save a received file in the working folder of a principal, once, and return its path there."""
    folder = folder_of(settings, principal.owner or principal.identity)
    safe_name = _UNSAFE.sub("_", name)[-MAX_FILE_NAME:].lstrip("._") or "file"
    path = f"{RECEIVED}/{digest[:12]}-{safe_name}"

    def save() -> None:
        _create_folder(folder)
        space = workspace.Workspace([folder])
        target = space.resolve(path)
        if not os.path.lexists(target.path):
            with store.db.blobs.open(digest) as content:
                space.write(target, content.read(), None)

    await store.run(save)
    return path


def _create_folder(folder: str) -> None:
    for each in (os.path.dirname(folder), folder):
        os.makedirs(each, 0o700, exist_ok=True)
