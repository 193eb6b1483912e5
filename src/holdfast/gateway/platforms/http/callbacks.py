"""Replies that are posted to an address somebody named in the settings: signed, and to nowhere else.

The name is looked up once and that very address is spoken to, so that it cannot be another by then. No redirect is
followed, no proxy asked, and the answer's body is not read.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx2

from holdfast import errors
from holdfast.gateway.platforms.http import requests

TIMEOUT = 20.0
_AGAIN = frozenset({408, 425, 429})


def checked(url: str, allow_private: bool) -> str:
    """An address that replies may be posted to; SettingInvalid where it is none."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise errors.SettingInvalid(f"{errors.shown(url)} is no address.") from None
    if not host or parts.username is not None or parts.password is not None or not url.isascii() or " " in url:
        raise errors.SettingInvalid(f"{errors.shown(url)} is no address that replies can be posted to.")
    if parts.scheme != "https" and not (parts.scheme == "http" and requests.is_here(host)):
        raise errors.SettingInvalid("Replies are posted by https; by http only to this machine.")
    if _is_number(host) and not requests.is_here(host) and not may_reach(host, allow_private):
        raise errors.SettingInvalid(
            f"{host} is an address of a private network. Set allow_private where that is what you want."
        )
    return url


def may_reach(address: str, allow_private: bool) -> bool:
    """Whether what a name stands for may be spoken to. Pure."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        # Other addresses can be written within these.
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is not None:
            return may_reach(str(inner), allow_private)
        if found in _TRANSLATED:
            return may_reach(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)), allow_private)
    if found.is_multicast or found.is_unspecified or found.is_reserved or found.is_link_local:
        return False
    return allow_private or found.is_global


_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")


class Callbacks:
    """Posts replies. `lookup` finds the addresses of a name."""

    def __init__(self, lookup: Callable[[str, int], list[str]] | None = None) -> None:
        self._lookup = lookup or _addresses

    async def post(self, url: str, headers: dict[str, str], body: bytes, allow_private: bool) -> None:
        """SendRefused: never; SendFailed: later."""
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        address = await self._address(host, port, allow_private)
        target = httpx2.URL(url).copy_with(host=address, fragment=None)
        sent = {"host": parts.netloc, "content-type": "application/json", "user-agent": "holdfast", **headers}
        try:
            async with (
                httpx2.AsyncClient(timeout=TIMEOUT, follow_redirects=False, trust_env=False) as client,
                client.stream("POST", target, content=body, headers=sent, extensions={"sni_hostname": host}) as answer,
            ):
                _judged(answer.status_code, answer.headers.get("retry-after", ""))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise errors.SendFailed(f"The callback was not reached: {type(error).__name__}.") from None

    async def _address(self, host: str, port: int, allow_private: bool) -> str:
        try:
            found = [host] if _is_number(host) else await asyncio.to_thread(self._lookup, host, port)
        except OSError:
            raise errors.SendFailed("The name of the callback is not known now.") from None
        for address in found:
            here = requests.is_here(host) and requests.is_here(address)
            if not here and not may_reach(address, allow_private):
                raise errors.SendRefused("The callback leads into a private network, where nothing is posted.")
        if not found:
            raise errors.SendFailed("The name of the callback is not known now.")
        return found[0]


def _judged(status: int, retry_after: str) -> None:
    if 200 <= status < 300:
        return
    if status >= 500 or status in _AGAIN:
        waits = min(float(retry_after), 3600.0) if retry_after.isascii() and retry_after.isdigit() else None
        raise errors.SendFailed(f"The callback answered {status}.", retry_after=waits)
    raise errors.SendRefused(f"The callback answered {status}.")


def _addresses(host: str, port: int) -> list[str]:
    return [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
