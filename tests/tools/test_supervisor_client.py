"""Output is read in ranges of any size, and commands and folders are checked before a supervisor starts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from holdfast import errors
from holdfast.tools.shell import supervisor_client

PRINTABLE = st.text(st.characters(exclude_categories=("Cs", "Cc")))
Range = supervisor_client.OutputRange


def store_output(folder: Path, data: bytes, size: int = 10, keep: int | None = None) -> None:
    begins = range(0, len(data), size)
    for begin in begins if keep is None else begins[-keep:]:
        (folder / f"out.{begin}").write_bytes(data[begin : begin + size])


@hypothesis.given(text=PRINTABLE, size=st.integers(1, 12), length=st.integers(4, 20))
def test_any_text_is_read_completely_in_ranges(text: str, size: int, length: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store_output(Path(folder), text.encode(), size)
        read, at = "", 0
        while at < len(text.encode()):
            piece = supervisor_client.read(folder, at, length)
            assert piece.end > at
            read, at = read + piece.text, piece.end
        assert read == text


def test_dropped_output_is_skipped(tmp_path: Path) -> None:
    store_output(tmp_path, b"0123456789" * 5, 10, keep=2)
    assert supervisor_client.read(str(tmp_path)) == Range("0123456789" * 2, 30, 50, 50)
    assert supervisor_client.read(str(tmp_path), 45, 3) == Range("567", 45, 48, 50)
    assert supervisor_client.tail(str(tmp_path), 0, 4) == Range("6789", 46, 50, 50)
    assert supervisor_client.tail(str(tmp_path), 48, 4) == Range("89", 48, 50, 50)
    assert supervisor_client.read(str(tmp_path), 99) == Range("", 50, 50, 50)


def test_half_a_character_is_left_for_the_next_read_until_the_command_has_ended(tmp_path: Path) -> None:
    (tmp_path / "out.0").write_bytes("aéb".encode())
    assert supervisor_client.read(str(tmp_path), 1) == Range("éb", 1, 4, 4)
    assert supervisor_client.read(str(tmp_path), 2) == Range("b", 2, 4, 4)
    (tmp_path / "out.0").write_bytes("aé".encode()[:2])
    assert supervisor_client.read(str(tmp_path)) == Range("a", 0, 1, 2)
    status = '{"code":0,"signal":0,"why":"","left":0,"stuck":0,"bytes":2,"lost":0,"at":1.0}'
    (tmp_path / "status").write_text(status)
    assert supervisor_client.read(str(tmp_path)) == Range("a\ufffd", 0, 2, 2)


@pytest.mark.parametrize("damaged", [None, "", '{"code":"x"}', "\xff"])
def test_missing_or_damaged_folder_has_no_output_and_no_status(tmp_path: Path, damaged: str | None) -> None:
    folder = tmp_path / "none"
    if damaged is not None:
        folder.mkdir()
        (folder / "status").write_text(damaged, encoding="latin-1")
    assert supervisor_client.read(str(folder)) == supervisor_client.tail(str(folder)) == Range("", 0, 0, 0)
    assert supervisor_client.status(str(folder)) is None
    assert not supervisor_client.send(str(folder), b"k")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("10%\r20%\r100%\ndone\r\n", "100%\ndone\n"),
        ("a\0b\x08c\x7fd\x9be\té 密", "abcde\té 密"),
        ("\x1b[", "["),
    ],
)
def test_escape_sequences_and_control_characters_are_removed(raw: str, shown: str) -> None:
    assert supervisor_client.clean(raw) == shown


@pytest.mark.parametrize("command", ["  \n", "a\0b", "\ud800", "x" * 100_001, "ü" * 50_001])
def test_invalid_command_is_refused(command: str) -> None:
    with pytest.raises(errors.ToolFailed):
        supervisor_client.check_command(command)


def test_working_folder_must_be_inside_a_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "rooted").mkdir()
    (root / "out").symlink_to(tmp_path)
    (root / "file").write_text("")
    assert supervisor_client.working_folder("", [str(root)]) == str(root)
    assert supervisor_client.working_folder("sub/../sub", [str(root)]) == str(root / "sub")
    for wrong in ("..", "/", "out/rooted", "../rooted", "file", "none", "a\0b", "\ud800"):
        with pytest.raises(errors.ToolFailed):
            supervisor_client.working_folder(wrong, [str(root)])
