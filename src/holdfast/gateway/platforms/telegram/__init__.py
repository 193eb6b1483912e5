"""Telegram: a bot, by long polling or a webhook. `create` is the entry point; it needs the extra `telegram`."""

from __future__ import annotations

from holdfast import errors, installation
from holdfast.gateway import platform

try:
    from holdfast.gateway.platforms.telegram import bot
except ModuleNotFoundError as error:
    if error.name != "telegram":
        raise
    why = f"the support for Telegram is not installed. Run: {installation.install_command('telegram')}"
    raise errors.SettingInvalid(why) from None


def create(context: platform.PlatformContext) -> bot.TelegramPlatform:
    """Return the platform of the table `[gateway.telegram]`. Raises SettingInvalid."""
    return bot.create(context)
