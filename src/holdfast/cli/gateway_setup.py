"""`holdfast gateway setup`: ask for the settings of a platform, check them with the service, and store them.

The questions are those of the platform's `SETUP` guide. Nothing is written before the last question is answered.
"""

from __future__ import annotations

import asyncio
import copy
import os
import pathlib
import secrets as random_secrets
import stat
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import click
import msgspec

from holdfast import config, errors, safe_text
from holdfast.cli import config_commands, console, gateway_access, lazy_group, settings_edit
from holdfast.gateway import platform
from holdfast.gateway import settings as gateway
from holdfast.gateway.platforms import plugins
from holdfast.gateway.platforms.http import requests

CHECK_SECONDS = 25.0
"""The time limit of a check. The servers of a mailbox may take 10 seconds each to connect."""
REMEDY = "Enter the value again, or correct it in the settings file."
CLEAR = "-"
"""The answer that removes an optional setting."""
SENDER = "{sender}"
"""The default of a field that is asked for after the sender id, which is then its default."""
TEST_MESSAGE = "This is a test message of Holdfast. The setup works."
CHECKING = "Checking {} …"
NOT_STARTED = "Correct the id, or write to the bot first and enter the id again."
Table = dict[str, Any]


@click.command()
@click.argument("name", metavar="[PLATFORM]", required=False)
@click.option("--check", is_flag=True, help="Only check what is configured. Exits with 1 if there is a problem.")
@lazy_group.as_json
@click.pass_obj
def setup(out: console.Console, name: str | None, check: bool, as_json: bool) -> int:
    """Set up a PLATFORM: ask for its credentials, check them, and write the settings.

    The settings are written to your settings file, and secrets to gateway.env next to it, with mode 0600. --check
    checks the credentials and rights of PLATFORM, or of all configured platforms, and changes nothing.
    """
    if as_json and not check:
        raise click.UsageError("--json needs --check.")
    listed = plugins.list_platforms()
    if name is not None and name not in listed:
        raise errors.SettingInvalid(f"There is no platform {errors.quote(name)}. Platforms: {', '.join(listed)}.")
    if check:
        return _check_configured(out, name, as_json)
    if name is None:
        configured = _configured(out.settings)
        status = {each: "configured" if each in configured else "not configured" for each in listed}
        out.table([(each, f"install with: {install}" if install else status[each]) for each, install in listed.items()])
    if not console.is_tty(sys.stdin):
        advice = _manual_steps(out.settings, name, plugins.load_guide(name)) if name else "Name a platform."
        for line in f"`holdfast gateway setup` asks questions, which needs a terminal. {advice}".splitlines():
            out.note(line)
        return 2
    out.out.flush()
    chosen = name or str(click.prompt("Platform", type=click.Choice(list(listed)), show_choices=False, err=True))
    return Wizard(out, chosen, plugins.load_guide(chosen)).run()


def _manual_steps(settings: config.Settings, name: str, guide: platform.SetupGuide) -> str:
    values = {
        ("gateway", name, *each.setting.split(".")): ["..."] if each.is_list else each.variable or each.default or "..."
        for each in guide.fields
    }
    variables = " and ".join(each.variable for each in guide.fields if each.variable)
    secrets = f"Put the value of {variables} into the environment or {_secrets_file(settings)}. " if variables else ""
    added = settings_edit.set_values("", values)
    return f"Add this to {settings.user_file}:\n\n{added}\n{secrets}Then run: holdfast gateway setup --check"


def _secrets_file(settings: config.Settings) -> pathlib.Path:
    return pathlib.Path(settings.user_file).with_name(config.SECRETS_FILE)


def _configured(settings: config.Settings) -> dict[str, Table]:
    """Return the tables of the platforms that run, without HTTP if it runs only because nothing is configured."""
    wanted = settings.gateway
    has_http = wanted.http != gateway.Http() or wanted.hooks
    return {name: table for name, table in wanted.tables.items() if name != "http" or has_http}


# --- checks ----------------------------------------------------------------------------------------------


def _check_configured(out: console.Console, name: str | None, as_json: bool) -> int:
    settings = out.settings
    tables = {each: table for each, table in _configured(settings).items() if name in (None, each)}
    if not tables:
        what, command = (f"{name} is not", f"setup {name}") if name else ("Nothing is", "setup")
        raise errors.SettingInvalid(f"{what} configured. Run: holdfast gateway {command}")
    remedy = "Correct the settings, or run: holdfast gateway setup {}"
    reports = dict[str, platform.AccessReport]()

    def add(name: str, report: platform.AccessReport) -> None:
        reports[name] = report
        if not as_json:
            _print_report(out, name, report)

    for each, table in tables.items():
        if not as_json:
            out.note(CHECKING.format(each))
        report = _check(each, table, settings.secrets, remedy.format(each))
        if each == "http":
            report = platform.AccessReport("", [*report.problems, *_check_variables(settings)])
        add(each, report)
    if problems := _check_secrets_file(settings):
        add(config.SECRETS_FILE, platform.AccessReport("", problems))
    is_ok = not any(report.problems for report in reports.values())
    if as_json:
        found = {
            each: {"account": report.account, "problems": [problem._asdict() for problem in report.problems]}
            for each, report in reports.items()
        }
        out.json({"ok": is_ok, "platforms": found})
    return 0 if is_ok else 1


def _check_variables(settings: config.Settings) -> list[platform.AccessProblem]:
    """Return the missing variables of tokens and webhooks; platform plug-ins report theirs."""
    wanted, path = settings.gateway, _secrets_file(settings)
    named = {*wanted.http.tokens.values(), *(hook.secret_env for hook in wanted.hooks.values())}
    remedy = f"Set it in the environment of the gateway, or add {{}}=VALUE to {path}."
    missing = sorted(named - settings.secrets.keys())
    return [platform.AccessProblem(f"{each} is not set.", remedy.format(each)) for each in missing]


def _check_secrets_file(settings: config.Settings) -> list[platform.AccessProblem]:
    path = _secrets_file(settings)
    if os.name == "posix" and path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
        return [platform.AccessProblem(f"Other users can read {path}.", f"Run: chmod 600 {path}")]
    return []


def _check(name: str, table: Table, secrets: Mapping[str, str], remedy: str) -> platform.AccessReport:
    """Return the report of a platform, or one about the error that prevented it; `remedy` is for invalid settings."""

    async def check() -> platform.AccessReport:
        if name in plugins.BUILT_IN:
            owners = {secrets[each]: owner for owner, each in table.get("tokens", {}).items() if each in secrets}
            requests.Tokens(owners)
            return platform.AccessReport()
        async with _open(name, table, secrets) as opened, asyncio.timeout(CHECK_SECONDS):
            return await opened.check_access() if isinstance(opened, platform.ChecksAccess) else platform.AccessReport()

    try:
        found = asyncio.run(check())
    except errors.SettingInvalid as error:
        found = platform.failed_access(str(error), remedy)
    except Exception as error:  # noqa: BLE001 -- the border to client libraries and code of other packages
        found = platform.unreachable(name, error)
    problems = [platform.AccessProblem(*(_hide(text, secrets) for text in each)) for each in found.problems]
    return platform.AccessReport(found.account, problems)


def _hide(text: str, secrets: Mapping[str, str]) -> str:
    """Return a text without the secrets, which an error of another package may contain."""
    for each in filter(None, secrets.values()):
        text = text.replace(each, "***")
    return text


@asynccontextmanager
async def _open(name: str, table: Table, secrets: Mapping[str, str]) -> AsyncIterator[platform.Platform]:
    (opened,) = plugins.load({name: table}, secrets)
    try:
        yield opened
    finally:
        if isinstance(opened, platform.HasConnections):
            await opened.close()


def _print_report(out: console.Console, name: str, report: platform.AccessReport) -> None:
    state = safe_text.count(len(report.problems), "problem") if report.problems else "the settings are valid"
    out.prose(f"{name}: connected as {report.account}" if report.account else f"{name}: {state}")
    for problem in report.problems:
        out.prose(f"   problem: {problem.what}", "red")
        out.prose(f"   next: {problem.remedy}")
    out.out.flush()


# --- questions -------------------------------------------------------------------------------------------


class Wizard:
    """The setup of one platform."""

    def __init__(self, out: console.Console, name: str, guide: platform.SetupGuide) -> None:
        self._out, self._name, self._guide, self._settings = out, name, guide, out.settings
        file = config.read_user_file(self._settings.user_file) or {}
        self._table: Table = copy.deepcopy(file.get("gateway", {}).get(name, {}))
        self._values: dict[settings_edit.Place, Any] = {}
        """The settings to write; None removes one."""
        self._secrets = dict[str, str](self._settings.secrets)
        self._entered: dict[str, str] = {}
        """The secrets that were entered, by variable."""

    def run(self) -> int:
        """Ask, check and save; return the exit code."""
        self._print(self._guide.intro)
        action, actions = "retry", click.Choice(["save", "retry", "quit"])
        while action == "retry":
            for field in self._guide.fields:
                if field.default != SENDER:
                    self._ask(field)
            self._out.note(CHECKING.format(self._name))
            report = _check(self._name, self._table, self._secrets, REMEDY)
            _print_report(self._out, self._name, report)
            action = "save"
            if report.problems:
                self._print("Enter retry to answer again, save to save the settings anyway, quit to change nothing.")
                action = click.prompt("Next", "retry", type=actions, show_choices=False, err=True)
        if action == "quit":
            self._out.note("Nothing was changed.")
            return 1
        sender = self._ask_sender() if self._guide.sender else ""
        for field in self._guide.fields:
            if field.default == SENDER:
                self._ask(msgspec.structs.replace(field, default=sender))
        self._save(sender)
        if not sender and self._guide.sender:
            self._print("A stranger who writes to the agent receives a code. Allow them: holdfast gateway pair CODE")
        self._print(f"Start the gateway with `holdfast gateway`. {self._guide.last_step}")
        return 0

    def _print(self, text: str) -> None:
        if text:
            self._out.prose(text)
            self._out.out.flush()

    def _ask(self, field: platform.SetupField) -> None:
        self._out.print()
        self._print(field.help)
        *parents, key = field.setting.split(".")
        table = self._table
        for each in parents:
            table = table.setdefault(each, {})
        value = self._ask_secret(field, table.get(key)) if field.variable else self._ask_value(field, table.get(key))
        if value == CLEAR and not field.required:
            table.pop(key, None)
            self._values["gateway", self._name, *parents, key] = None
        elif value:
            table[key] = self._values["gateway", self._name, *parents, key] = value

    def _ask_secret(self, field: platform.SetupField, named: object) -> str:
        """Ask for a secret without echo, and return its variable; empty if it is left out, or CLEAR."""
        # A secret in place of the name of its variable is replaced.
        variable = named if isinstance(named, str) and gateway.VARIABLE.fullmatch(named) else field.variable
        current = self._secrets.get(variable) or config.environment().get(variable, "").strip()
        hint = " (Enter creates one)" if field.generated else "" if field.required else " (optional)"
        is_required = not current and field.required and not field.generated
        keep = f" (Enter keeps the current value{'' if field.required else f', {CLEAR} removes it'})"
        answer = _prompt(f"{field.label}{keep if current else hint}", None if is_required else "", hide_input=True)
        if answer == CLEAR and not field.required:
            self._entered.pop(variable, None)
            self._secrets.pop(variable, None)
            return CLEAR
        if not answer and not current and field.generated:
            answer = random_secrets.token_urlsafe(32)
        if answer:
            self._entered[variable] = answer
        self._secrets[variable] = answer or current
        return variable if answer or current else ""

    def _ask_value(self, field: platform.SetupField, known: Any) -> Any:
        """Ask for a value that is not secret, and return it or CLEAR; the current one is the default."""
        shown = ", ".join(map(str, known)) if isinstance(known, list) else str(known or field.default)
        optional = "" if field.required else f" (optional, {CLEAR} removes it)" if shown else " (optional)"
        answer = _prompt(f"{field.label}{optional}", shown or (None if field.required else ""))
        if answer == shown and known is not None:
            return known
        if answer == CLEAR and not field.required:
            return CLEAR
        return [each.strip() for each in answer.split(",") if each.strip()] if field.is_list else answer

    def _ask_sender(self) -> str:
        """Return a sender id whose test message was not refused; empty if the sender is to be paired later."""
        self._out.print()
        self._print(f"Who may use the agent? {self._guide.sender}")
        while answer := _prompt("Sender id (empty: pair later)", ""):
            try:
                answer = gateway_access.check_sender(self._settings, self._name, answer)
                gateway_access.refuse_denied(self._settings, self._name, answer)
                if self._guide.test_message:
                    self._out.note("Sending a test message …")
                    self._print(asyncio.run(self._send(answer)))
                return answer
            except (errors.SettingInvalid, errors.SendRefused, click.BadParameter) as error:
                self._out.note(_hide(str(error), self._secrets))
        return ""

    # --- effects -----------------------------------------------------------------------------------------

    def _save(self, sender: str) -> None:
        """Write the secrets, then the settings that name them."""
        values, allowed = dict(self._values), self._settings.gateway.allow.get(self._name, [])
        if sender and sender not in map(str, allowed):
            values["gateway", "allow", self._name] = [*allowed, sender]
        file, secrets_file = pathlib.Path(self._settings.user_file).resolve(), _secrets_file(self._settings).resolve()
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            changed = settings_edit.set_values(file.read_bytes().decode() if file.exists() else "", values)
            if self._entered:
                before = secrets_file.read_bytes().decode() if secrets_file.exists() else ""
                config_commands.write_private(secrets_file, settings_edit.set_variables(before, self._entered).encode())
                self._print(f"Saved {' and '.join(self._entered)} in {secrets_file}.")
            config_commands.write_private(file, changed.encode())
        except errors.SettingInvalid as error:
            for line in settings_edit.set_values("", values).splitlines():
                self._out.print(safe_text.safe(line))
            raise errors.SettingInvalid(f"{file} was not changed: {error} Add the settings above.") from None
        except OSError as error:
            raise errors.SettingInvalid(f"{file} was not changed: {error.strerror or error}.") from None
        self._print(f"Saved the settings in {file}.")
        for each in self._entered:
            if config.environment().get(each, self._entered[each]) != self._entered[each]:
                self._print(f"{each} has another value in your environment, which has precedence. Run: unset {each}")

    async def _send(self, sender: str) -> str:
        """Send a test message; return a sentence about the outcome. Raises SendRefused."""
        delivery = platform.Delivery(
            id=0,
            platform=self._name,
            chat=f"dm:{sender}",
            address={"chat": sender},
            text=TEST_MESSAGE,
            attachments=[],
            kind="notice",
            at=time.time(),
        )
        try:
            async with _open(self._name, self._table, self._secrets) as opened, asyncio.timeout(CHECK_SECONDS):
                await opened.send(delivery)
        except errors.SendRefused as error:
            raise errors.SendRefused(
                f"The test message was not sent: {str(error).rstrip('.')}. {NOT_STARTED}"
            ) from None
        except Exception as error:  # noqa: BLE001 -- the border to code of other packages
            why = str(error) if isinstance(error, errors.HoldfastError) else platform.describe_failure(error)
            return f"The test message was not sent: {_hide(why, self._secrets)}"
        return f"A test message was sent to {safe_text.safe(sender)}."


def _prompt(label: str, default: str | None, **options: Any) -> str:
    """Ask until the answer is printable, and not empty if there is no default."""

    def clean(text: str) -> str:
        if not text.isprintable() or (default is None and not text.strip()):
            raise click.UsageError("a value of printable characters is required.")
        return text.strip()

    answer: str = click.prompt(label, default, value_proc=clean, show_default=bool(default), err=True, **options)
    return answer
