"""The platform port: the values that a chat platform exchanges with the gateway, and the protocols it implements.

A platform is any object with the members of `Platform`; optional abilities are further protocols below. Inbound
messages are stored before the platform acknowledges them, and outbound messages are stored before they are sent, so a
platform keeps no state that has to survive a crash. Other packages add platforms by the entry point group
`holdfast.platforms`: see `platforms/plugins.py`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from holdfast import errors, events, types
from holdfast.agent import commands
from holdfast.model import base as models

ChatKind = Literal["dm", "group", "thread"]
"""A direct message, a group, or a thread within either."""
T = TypeVar("T", bound=msgspec.Struct)
MAX_KEY = 150
DELETION = "delete:"
"""The prefix of the keys of deletions, which the store does not count as messages of a chat or sender."""
MAX_QUOTE = 500
"""The longest quoted text that is stored, in characters."""
MAX_RETRY_AFTER = 3600.0
"""The longest pause in seconds that a platform may ask for."""
SEND_SECONDS = 60.0
"""The time limit of a send, after which the gateway cancels it and repeats it later. The gateway gives up files that
take longer, so the time limits of a platform's own requests are longer, except to connect."""

# --- inbound values ------------------------------------------------------------------------------------------


class Attachment(msgspec.Struct, frozen=True):
    """A file that is part of an inbound message."""

    data: bytes
    media_type: str = "application/octet-stream"
    name: str = ""


class Terms(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="terms"):
    """Conditions that a client sets for the answer to one message. They are stored with it, not in the log."""

    instructions: str = ""
    """An addition to the system prompt."""
    max_output: int | None = None
    """The longest reply in tokens."""
    conversation_id: str | None = None
    """The conversation of the message, existing or new; None: the current one of the chat."""


class Quote(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="quote"):
    """The message that an inbound message replies to."""

    key: str
    """The platform's id of the quoted message."""
    text: str = ""
    """Its text, if the platform knows it; else the gateway looks it up among the inbound messages."""
    name: str = ""
    """The display name of its sender."""


class MessageEdit(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="edit"):
    """Marks an inbound message as the new text of an earlier one."""

    key: str


class MessageDeletion(msgspec.Struct, frozen=True, tag_field="type", tag="deletion"):
    """Marks an inbound message as the deletion of an earlier one, stored so that every process learns of it."""

    key: str


_EXTRAS = frozenset({"terms", "quote", "edit", "deletion"})
"""The types of message parts that describe the message and are not content."""


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """An inbound message as the platform received it. Everything but the ids is text that a user controls."""

    platform: str
    key: str
    """The platform's id of the message. A repeated delivery has the same key."""
    kind: ChatKind = "dm"
    chat: tuple[str, ...]
    """The ids of the chat, the widest first: a group, or a group and its thread."""
    sender: str
    """The platform's id of the sender, never a display name."""
    name: str = ""
    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    complete: Callable[[], Awaitable[Incoming]] | None = None
    """Downloads the attachments, and returns the message with them. Called if the sender is admitted."""
    stated_bytes: int = 0
    """The size of the attachments that `complete` downloads, if the platform states it."""
    address: dict[str, Any] = {}
    """The data that the platform needs to send a reply. It is returned unchanged with every `Delivery`. JSON."""
    home: str | None = None
    """The platform that sends the replies, if it is another one; `home_chat` is then the chat there."""
    home_chat: str = ""
    terms: Terms = Terms()
    mentioned: bool = True
    """Whether the agent is addressed. Other messages of a group are ignored."""
    reply_to: Quote | None = None
    edits: str = ""
    """The key of the message that this one replaces."""

    def extras(self) -> list[dict[str, Any]]:
        """Return the message parts that store `terms`, `reply_to` and `edits`."""
        found: list[msgspec.Struct] = [self.terms] if self.terms != Terms() else []
        if (quote := self.reply_to) is not None:
            found.append(Quote(storable_key(quote.key), quote.text[:MAX_QUOTE], quote.name[:MAX_QUOTE]))
        found += [MessageEdit(storable_key(self.edits))] if self.edits else []
        return [msgspec.to_builtins(each) for each in found]


def storable_key(key: str) -> str:
    """Return a platform's id of a message, or its digest if the id cannot be its key in the store."""
    fits = 0 < len(key) <= MAX_KEY and key.isprintable() and not key.startswith(DELETION)
    return key if fits else f"={_digest(key)}"


def deletion_key(key: str) -> str:
    """Return the key of the deletion of a message."""
    return f"{DELETION}{_digest(key)}"


def _digest(key: str) -> str:
    return blake2b(key.encode(errors="surrogatepass"), digest_size=20).hexdigest()


def read_extra(inbound: types.InboundMessage, kind: type[T]) -> T | None:
    """Return the stored `Terms`, `Quote`, `MessageEdit` or `MessageDeletion` of a message; None if it has none."""
    tag = kind.__struct_config__.tag
    found = next((part for part in inbound.parts if part.get("type") == tag), None)
    return None if found is None else msgspec.convert(found, kind)


def deleted_key(inbound: types.InboundMessage) -> str | None:
    """Return the key of the message that this one deletes; None if it is an ordinary message."""
    deletion = read_extra(inbound, MessageDeletion) if inbound.parts else None
    return None if deletion is None else deletion.key


def edited_key(inbound: types.InboundMessage) -> str | None:
    """Return the key of the message whose new text this one is; None if it is an ordinary message."""
    edit = read_extra(inbound, MessageEdit) if inbound.parts else None
    return None if edit is None else edit.key


def without_deleted(waiting: Sequence[types.InboundMessage]) -> list[types.InboundMessage]:
    """Return the waiting messages without deletions and the messages that they delete."""
    deleted = {deleted_key(each) for each in waiting}
    return [each for each in waiting if deleted_key(each) is None and each.key not in deleted]


def read_terms(inbound: types.InboundMessage) -> Terms:
    """Return the terms of a message, or the default ones."""
    return read_extra(inbound, Terms) or Terms()


def content_parts_of(inbound: types.InboundMessage) -> list[dict[str, Any]]:
    """Return the parts of a message that are content, such as images."""
    return [part for part in inbound.parts if part.get("type") not in _EXTRAS]


# --- admission -----------------------------------------------------------------------------------------------

RejectionReason = Literal["person", "limit", "size", "empty"]
"""The sender has no access, exceeds a rate limit, or the message is too large or empty."""


class AdmissionResult(msgspec.Struct, frozen=True):
    """Whether a message is accepted, and the answer to its sender if it is not; none if `message` is empty."""

    allowed: bool
    reason: RejectionReason = "person"
    message: str = ""
    retry_after: float = 0.0
    """Seconds after which the message may be sent again; 0: unknown."""
    with_code: bool = False
    """Whether `message` has a placeholder for a pairing code, which is filled in when it is sent."""


class AdmissionCheck(Protocol):
    """Decides whether an inbound message is accepted, before it is stored: access and rate limits."""

    async def __call__(self, incoming: Incoming, route: str) -> AdmissionResult: ...


SenderCheck = Callable[[str, str], Awaitable[bool]]
"""A predicate on a platform and a sender."""


class Handler(Protocol):
    """The gateway's inbound handler, as platforms see it."""

    async def receive(self, incoming: Incoming) -> types.InboundMessage | None:
        """Store a message; the platform acknowledges it after that. None: it was rejected.

        A rejected sender is notified through the outbox. Raises StoreError if the message could not be stored: the
        platform must not acknowledge it and delivers it again.
        """

    async def submit(self, incoming: Incoming) -> types.InboundMessage | AdmissionResult:
        """Like `receive`, for a platform that reports a rejection to its client itself."""

    async def check(self, incoming: Incoming) -> AdmissionResult:
        """Return whether a message would be accepted, without storing anything."""

    async def ask_model(self, incoming: Incoming, request: models.Request) -> models.Reply | AdmissionResult:
        """Let the model answer a request outside any conversation. Nothing is stored."""

    async def newest_messages(self, name: str) -> list[types.InboundMessage]:
        """Return the newest message of each chat of the platform `name`, to read those that were sent after it.

        Every later message that was stored is still known by its key, so it is not answered again; one that was refused
        was not stored. Messages whose keys have a colon, such as edits, are left out: a message of which only an edit
        was stored is known by the key of that edit.
        """

    async def delete(self, name: str, key: str) -> bool:
        """Withdraw a message of the platform `name` that its sender deleted; return whether it was still open.

        Its turn is not begun, or is interrupted in whichever process it runs. A message that was answered stays in the
        conversation.
        """


# --- outbound values -----------------------------------------------------------------------------------------


class OutgoingFile(NamedTuple):
    """An attachment of an outbound message."""

    name: str
    media_type: str
    size: int
    digest: str
    read: Callable[[], Awaitable[bytes]]
    """Reads the content. Raises SendRefused if it is missing or damaged."""


class QuestionChoice(msgspec.Struct, frozen=True):
    """One possible answer to a question. A platform that shows it as a button sends `text` as the user's message."""

    label: str
    text: str


class ApprovalQuestion(msgspec.Struct, frozen=True):
    """A question of a turn, such as the approval of a command."""

    id: str
    number: int
    """The number that users see."""
    choices: tuple[QuestionChoice, ...]


class Delivery(types.Outgoing, frozen=True, kw_only=True):
    """An outbound message, complete for sending: the text is rendered for the platform."""

    files: tuple[OutgoingFile, ...] = ()
    question: ApprovalQuestion | None = None
    """Set on the last part of a question, for platforms that can show choices."""
    draft: str | None = None
    """The platform's id of the draft that this message replaces."""
    is_draft: bool = False
    """Whether the message is a draft, to be edited while the turn runs."""


# --- platforms -----------------------------------------------------------------------------------------------


class Platform(Protocol):
    """A chat platform: receives messages and sends replies."""

    @property
    def name(self) -> str:
        """Letters, digits and dashes. It is part of every route."""

    @property
    def limit(self) -> int:
        """The longest message, in characters, or in the units of `FormatsText.measure`."""

    async def run(self, handler: Handler) -> None:
        """Receive messages until cancelled. After an error it is called again, with a growing delay."""

    async def send(self, delivery: Delivery) -> str:
        """Send a message and return the platform's id of it. Raises SendRefused (final) or SendFailed (retried).

        SendRefused means that nothing of the delivery was sent: the gateway may then send its text without the files.

        It is called again with the same `delivery.id` if the outcome of an earlier call is unknown; a platform that
        can deduplicate by that id sends the message once.
        """


# Optional abilities. The gateway checks them with isinstance, once for each platform.


@runtime_checkable
class ReportsReady(Protocol):
    """Knows when it receives messages; the gateway is ready after that."""

    async def wait_ready(self) -> None: ...


@runtime_checkable
class ShowsTyping(Protocol):
    """Shows that a reply is being written."""

    async def send_typing(self, address: dict[str, Any]) -> None: ...


@runtime_checkable
class ShowsProgress(Protocol):
    """Follows the events of a turn, for example to stream the reply. The reply is sent by `send` all the same."""

    def on_event(self, inbound: types.InboundMessage, event: events.AnyEvent) -> None:
        """Handle an event of the turn of a message. It must not block; errors are logged and ignored."""


@runtime_checkable
class EditsDrafts(Protocol):
    """Shows the reply while it is written, by editing a message.

    The draft is sent by `send` (`delivery.is_draft`), and its id is stored. The final reply has that id as
    `delivery.draft`, also if another process took over the turn: `send` then edits the draft instead of sending a new
    message. If there is no reply, `delete_draft` is called.
    """

    @property
    def draft_seconds(self) -> float:
        """The interval between two edits."""

    async def edit_draft(self, address: dict[str, Any], draft: str, text: str) -> None:
        """Replace the text of the draft. After SendFailed it is called again, with the newest text."""

    async def delete_draft(self, address: dict[str, Any], draft: str) -> None: ...


@runtime_checkable
class ShowsChoices(Protocol):
    """Shows the choices of a question, for example as buttons; the text then does not explain how to answer."""

    async def send_question(self, delivery: Delivery, question: ApprovalQuestion) -> str:
        """Send a question and return the platform's id of the message, like `send`."""


@runtime_checkable
class FormatsText(Protocol):
    """Has its own text format or length unit."""

    def render(self, text: str) -> str:
        """Convert Markdown to the platform's format."""

    def measure(self, text: str) -> int:
        """Return the length of a Markdown text after `render`, in the unit of `limit`.

        It must not decrease when the text gets longer.
        """


@runtime_checkable
class SeparatesFiles(Protocol):
    """Cannot send a text and several files as one message; each file is then a `Delivery` of its own, without a text.

    So a file that is refused or fails does not affect the others, and none that was accepted is sent again.
    """

    @property
    def separate_files(self) -> bool: ...


class Rate(NamedTuple):
    """A rate limit of this many messages per `seconds`."""

    messages: int
    seconds: float


class Pace(NamedTuple):
    """The rate limits of a platform."""

    total: Rate | None = None
    per_chat: Rate | None = None


@runtime_checkable
class Paced(Protocol):
    """Has rate limits, which the gateway keeps to instead of provoking errors."""

    @property
    def pace(self) -> Pace: ...


@runtime_checkable
class OwnsConnections(Protocol):
    """Has client connections, so that only the process with the connection can send a message."""

    @property
    def exclusive(self) -> bool:
        """Whether at most one live process owns a message; then sending needs no lease."""

    def owns(self, outgoing: types.Outgoing) -> bool:
        """Return whether this process is the one to send a message."""


@runtime_checkable
class ShowsCommands(Protocol):
    """Shows the list of commands natively."""

    async def show_commands(self, listed: Sequence[commands.CommandInfo]) -> None: ...


@runtime_checkable
class NonInteractive(Protocol):
    """Its clients cannot answer questions in the middle of a turn; the gateway denies them immediately."""

    @property
    def non_interactive(self) -> bool: ...


@runtime_checkable
class HasConnections(Protocol):
    """Keeps connections open for `send` that do not end with `run`."""

    async def close(self) -> None:
        """Close them. It is called once, after the last message was sent; errors are logged and ignored."""


@runtime_checkable
class KnowsMembers(Protocol):
    """Has direct chats that other people can join. The gateway asks before it copies the turn of another chat there."""

    async def is_direct(self, address: dict[str, Any]) -> bool:
        """Return whether only one person reads the chat now. Raises SendRefused or SendFailed if that is unknown."""


class Abilities(NamedTuple):
    """The optional abilities of a platform. Finding them takes long, so it is done once."""

    progress: ShowsProgress | None = None
    typing: ShowsTyping | None = None
    drafts: EditsDrafts | None = None
    choices: ShowsChoices | None = None
    format: FormatsText | None = None
    interactive: bool = True
    members: KnowsMembers | None = None
    separate_files: bool = True
    """Also for a platform that does not run in this process, because every platform can send single files."""


def find_abilities(platform: Platform) -> Abilities:
    return Abilities(
        platform if isinstance(platform, ShowsProgress) else None,
        platform if isinstance(platform, ShowsTyping) else None,
        platform if isinstance(platform, EditsDrafts) else None,
        platform if isinstance(platform, ShowsChoices) else None,
        platform if isinstance(platform, FormatsText) else None,
        not (isinstance(platform, NonInteractive) and platform.non_interactive),
        platform if isinstance(platform, KnowsMembers) else None,
        isinstance(platform, SeparatesFiles) and platform.separate_files,
    )


# --- setup ---------------------------------------------------------------------------------------------------


class AccessProblem(NamedTuple):
    """A reason why a platform does not work, and what to do about it. Neither contains a secret."""

    what: str
    remedy: str


class AccessReport(NamedTuple):
    """The result of checking the credentials and rights of a platform."""

    account: str = ""
    """The account that the credentials belong to; empty if the service did not accept them."""
    problems: Sequence[AccessProblem] = ()


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of the header Retry-After; None without it. Chat services do not send dates there."""
    given = headers.get("Retry-After", "")
    return float(given) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", given) else None


def requested_pause(error: Exception) -> float:
    """Return the seconds that a platform asked for in an error, up to a limit."""
    return min(error.retry_after or 0.0, MAX_RETRY_AFTER) if isinstance(error, errors.SendFailed) else 0.0


def failed_access(what: str, remedy: str) -> AccessReport:
    """Return the report of credentials that could not be used."""
    return AccessReport("", [AccessProblem(what, remedy)])


def unreachable(service: str, error: BaseException) -> AccessReport:
    """Return the report of a service that did not respond."""
    return failed_access(
        f"{service} cannot be reached: {describe_failure(error)}.", "Check the network and the address in the settings."
    )


def describe_failure(error: BaseException, fallback: str = "") -> str:
    """Return why a connection failed: by default, the class of the error."""
    if isinstance(error, TimeoutError):
        return "the connection timed out"
    # Client libraries raise errors of their own: with the number of the system's error, or caused by it.
    if errno.ECONNREFUSED in (getattr(each, "errno", None) for each in (error, error.__cause__)):
        return "the connection was refused"
    return fallback or type(error).__name__


@runtime_checkable
class ChecksAccess(Protocol):
    """Can check its credentials and rights, for `holdfast gateway setup`."""

    async def check_access(self) -> AccessReport:
        """Ask the service about the account. It must not disturb a gateway that runs with the same credentials."""


class SetupField(msgspec.Struct, frozen=True):
    """A setting that `holdfast gateway setup` asks for."""

    setting: str
    """The setting of `[gateway.NAME]`; a dot separates an inner table."""
    label: str
    help: str
    """The place where the value is found, in one or two sentences."""
    variable: str = ""
    """The environment variable of a secret: the setting names the variable, and the secret is stored elsewhere."""
    default: str = ""
    is_list: bool = False
    """Whether the value is a list; the answers are separated by commas."""
    required: bool = True
    generated: bool = False
    """Whether an empty answer creates a random secret."""


class SetupGuide(msgspec.Struct, frozen=True):
    """The questions of `holdfast gateway setup`: `SETUP` in the module of a platform factory."""

    fields: Sequence[SetupField]
    intro: str = ""
    """The first steps in the service, such as the creation of a bot."""
    sender: str = ""
    """The way to find one's sender id; empty if senders are not allowed by id."""
    sender_pattern: str = ".+"
    """A regular expression that every sender id matches in full."""
    test_message: bool = True
    """Whether `send` with the address `{"chat": SENDER}` can start a chat."""
    last_step: str = "Write to the bot."


class PlatformContext(NamedTuple):
    """The argument of a platform factory: `factory(context) -> Platform`."""

    name: str
    settings: Mapping[str, Any]
    """The table `[gateway.NAME]` of the settings."""
    secrets: Mapping[str, str]
    """The values of the environment variables that settings named `*_env` refer to, by variable."""
