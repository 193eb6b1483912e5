"""What somebody is told who opens a chat for the first time: who answers, why, and where that can be changed.

Nothing is asked: what there is to know is in the environment. That it was told is kept in the store.
"""

from __future__ import annotations

import time

from holdfast import config, errors
from holdfast.store import async_db

TOLD = "welcomed_at"


async def words(store: async_db.AsyncSessionDB, settings: config.Settings, model: str, named: bool) -> str | None:
    """One line, the first time; `named` says that somebody chose the model."""
    try:
        if await store.admin.get_meta(TOLD) is not None:
            return None
        await store.admin.set_meta(TOLD, repr(time.time()))
    except errors.HoldfastError:
        return None  # A store that cannot be written says so where it matters.
    return " ".join(line for line in (None if named else _why(settings, model), _where(settings)) if line)


def _why(settings: config.Settings, model: str) -> str | None:
    provider = settings.providers.get(model.partition("/")[0])
    if provider is None or model.partition("/")[0] not in settings.keys:
        return None  # Who answers on this machine, or offline, is told each time.
    return f"{provider.key_env} is set, so you talk to {model}."


def _where(settings: config.Settings) -> str:
    made = "are" if settings.user_file in settings.files else "would be"
    return f"Your settings {made} in {config.abbreviate_home(settings.user_file)}: `holdfast config edit` opens it."
