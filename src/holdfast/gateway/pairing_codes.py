"""The code for a stranger is made when it is told, and at no time before: what waits to be sent has none.

A platform as its sender sees it: what greets a stranger is given its code on the way out. Who is told twice, as nobody
knew whether it came, is told another code, and the one before is void.
"""

from __future__ import annotations

import msgspec

from holdfast import errors, types
from holdfast.gateway import platform as gateway_platform
from holdfast.store import async_db

STRANGER = "stranger"
"""In the address of such a message: whom the code is for."""
CODE = "{code}"
VOID = "The code ran out, or was used or taken back, before it was told."


class Telling:
    """A platform that tells strangers their codes."""

    def __init__(self, db: async_db.AsyncSessionDB, platform: gateway_platform.Platform) -> None:
        self._db, self._platform = db, platform

    @property
    def name(self) -> str:
        return self._platform.name

    @property
    def limit(self) -> int:
        return self._platform.limit

    async def run(self, door: gateway_platform.Door) -> None:
        await self._platform.run(door)

    async def send(self, outgoing: types.Outgoing) -> str:
        return await self._platform.send(await self._filled(outgoing))

    async def _filled(self, outgoing: types.Outgoing) -> types.Outgoing:
        stranger = outgoing.address.get(STRANGER)
        if not isinstance(stranger, str):
            return outgoing
        code = await self._db.contacts.renew_pairing_code(outgoing.platform, stranger)
        if code is None:
            raise errors.SendRefused(VOID)
        address = {name: value for name, value in outgoing.address.items() if name != STRANGER}
        return msgspec.structs.replace(outgoing, address=address, text=outgoing.text.replace(CODE, code))


def telling(db: async_db.AsyncSessionDB, platform: gateway_platform.Platform) -> gateway_platform.Platform:
    """The same platform where it only answers who is known already: it then has the connections, and no strangers."""
    return platform if isinstance(platform, gateway_platform.Owns) else Telling(db, platform)
