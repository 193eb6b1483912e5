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

SETUP = platform.SetupGuide(
    [
        platform.SetupField(
            "token_env", "Token", "BotFather shows the token of a new bot; /token shows it again.", "TELEGRAM_TOKEN"
        )
    ],
    intro="Write /newbot to https://t.me/BotFather to create a bot, then open the chat with it and choose Start.",
    sender="Your numeric user id; https://t.me/userinfobot shows it. A user name is not an id.",
    sender_pattern=r"[0-9]+",
)


def create(context: platform.PlatformContext) -> bot.TelegramPlatform:
    """Return the platform of the table `[gateway.telegram]`. Raises SettingInvalid."""
    return bot.create(context)
