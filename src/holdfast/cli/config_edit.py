"""A file of settings, changed by a person: on a copy, which is put in its place only when nothing is wrong with it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from holdfast import errors
from holdfast.cli import config_check

USUAL = ("nano", "vim", "vi")
NEW = """\
# Settings of Holdfast. What is not set here has a default; `holdfast config show` lists everything.

# model = "anthropic/claude-sonnet-4-5"
# fallback = ["offline"]

# [limits]
# steps = 50

# [profiles.careful]
# limits = { steps = 10, cost = 0.5 }
"""


class Done(NamedTuple):
    """What became of an attempt."""

    told: str
    put_back: bool = False
    unchanged: bool = False
    mistakes: tuple[config_check.Mistake, ...] = ()


def command(named: str | None) -> list[str]:
    """The editor with its options, as words: no shell ever reads them. Raises SettingInvalid."""
    try:
        words = shlex.split(named or "")
    except ValueError as error:
        raise errors.SettingInvalid(f"The editor {errors.shown(named)} cannot be read: {error}.") from None
    usual = next((name for name in USUAL if shutil.which(name)), None)
    words = words or ([usual] if usual else [])
    if not words:
        raise errors.SettingInvalid("No editor was found: set EDITOR, or change what `holdfast config path` names.")
    return words


def edited(path: str, editor: Sequence[str]) -> Done:
    """Let a person change the file. A copy that is wrong stays where it is, so that nothing typed is lost."""
    path = os.path.realpath(path)  # Where it is a link, what it leads to is changed.
    before = _read(path)
    folder = tempfile.mkdtemp(prefix="holdfast-config-")
    copy = os.path.join(folder, os.path.basename(path))
    begun = NEW.encode() if before is None else before
    _write(copy, begun, 0o600)
    stays = False
    try:
        told = _opened(editor, copy)
        after = _read(copy)
        if told is None and (after is None or after == begun):
            return Done("Nothing was changed.", unchanged=True)
        stays = after is not None and after != begun
        kept = f" What you wrote is in {copy}." if stays else ""
        if told is not None:
            return Done(f"{told} {path} is as it was.{kept}")
        if wrong := config_check.found(copy):
            return Done(f"{path} is as it was.{kept}", mistakes=tuple(wrong))
        if _read(path) != before:
            return Done(f"Somebody else changed {path} meanwhile; it is left alone.{kept}")
        _put_back(path, after or b"", kept)
        stays = False
        return Done(f"{path} is changed.", put_back=True)
    finally:
        if not stays:
            shutil.rmtree(folder, ignore_errors=True)


def _opened(editor: Sequence[str], copy: str) -> str | None:
    """What went wrong with the editor, if something did."""
    try:
        code = subprocess.run([*editor, copy], check=False).returncode
    except OSError as error:
        return f"The editor {errors.shown(editor[0])} cannot be started: {error.strerror or error}."
    return f"The editor ended with {code}." if code else None


def _put_back(path: str, data: bytes, kept: str) -> None:
    """All of it or nothing, whatever happens meanwhile."""
    beside = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        _write(beside, data, os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o600)
        os.replace(beside, path)
    except OSError as error:
        raise errors.SettingInvalid(f"{path} cannot be written: {error.strerror or error}.{kept}") from None


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise errors.SettingInvalid(f"{path} cannot be read: {error.strerror or error}.") from None


def _write(path: str, data: bytes, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
