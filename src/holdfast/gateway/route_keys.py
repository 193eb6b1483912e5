"""Route keys and owners: which chat is which conversation, and whose. Pure.

`agent:<profile>:<platform>:<dm|group|thread>:<ids>`. Every part is quoted, so that no id, however it is spelled, makes
the key of another chat. In groups and threads each person has a conversation of their own, marked by `@`, which no
quoted id begins with; in those that are shared there is one for all.
"""

from __future__ import annotations

from hashlib import blake2b
from urllib.parse import quote, unquote

from holdfast.gateway import platform as gateway_platform

LONGEST = 60
"""Characters of one part. What is longer stands there as its digest, so that a key is never too long for the store."""


def route(profile: str, came: gateway_platform.Came, shared: bool = False) -> str:
    """The key of the chat that something came from."""
    ids = [*map(quoted, came.chat)]
    if came.kind != "dm" and not shared:
        ids.append(f"@{quoted(came.sender)}")
    return ":".join(["agent", quoted(profile), quoted(came.platform), came.kind, *ids])


def is_of(profile: str, route: str) -> bool:
    """Whether a route is one of this profile."""
    return route.startswith(f"agent:{quoted(profile)}:")


def owner(route: str, platform: str, sender: str) -> str:
    """Whose conversation a route leads to: the sender's, or that of the group where it is shared."""
    if is_shared(route):
        return f"{quoted(platform)}:group:{route.split(':')[4]}"
    return f"{quoted(platform)}:{quoted(sender)}"


def is_shared(route: str) -> bool:
    """Whether several people are in one conversation there."""
    _, _, _, kind, *ids = route.split(":")
    return kind != "dm" and not ids[-1].startswith("@")


def chat(came: gateway_platform.Came) -> str:
    """The name of the chat among those of its platform: what is sent to one chat keeps its order."""
    return ":".join([came.kind, *map(quoted, came.chat)])


def platform(route: str) -> str:
    """The platform a route belongs to."""
    return unquote(route.split(":")[2])


def quoted(part: str) -> str:
    """A part as it stands in a key: nothing in it can be taken for the border of one."""
    # No id is empty or begins with these, so neither of them can be made by one.
    plain = quote(part, safe="", errors="surrogatepass") or "%"
    return plain if len(plain) <= LONGEST else f"={blake2b(plain.encode(), digest_size=20).hexdigest()}"
