"""What a command wrote, in parts of any size: nothing is lost between two, and no byte makes it unreadable."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from holdfast import errors
from holdfast.tools.shell import supervisor_client

PRINTABLE = st.text(st.characters(exclude_categories=("Cs", "Cc")))


def spool(folder: Path, data: bytes, size: int = 10, keep: int | None = None) -> None:
    begins = range(0, len(data), size)
    for begin in begins if keep is None else begins[-keep:]:
        (folder / f"out.{begin}").write_bytes(data[begin : begin + size])


@hypothesis.given(text=PRINTABLE, size=st.integers(1, 12), length=st.integers(4, 20))
def test_for_any_text_what_is_read_piece_by_piece_is_the_whole(text: str, size: int, length: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spool(Path(folder), text.encode(), size)
        read, at = "", 0
        while at < len(text.encode()):
            piece = supervisor_client.read(folder, at, length)
            assert piece.end > at
            read, at = read + piece.text, piece.end
        assert read == text


@hypothesis.given(data=st.binary(max_size=200), begin=st.integers(0, 250), length=st.integers(1, 60))
def test_for_any_bytes_every_piece_is_text_within_its_bounds(data: bytes, begin: int, length: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spool(Path(folder), data, 40, keep=2)
        piece = supervisor_client.read(folder, begin, length)
        assert piece.text.encode().decode() == piece.text
        assert 0 <= piece.begin <= piece.end <= piece.total <= len(data)
        assert len(piece.text) <= length


def test_what_is_not_kept_any_more_is_passed_over(tmp_path: Path) -> None:
    spool(tmp_path, b"0123456789" * 5, 10, keep=2)
    assert supervisor_client.read(str(tmp_path)) == supervisor_client.OutputRange("0123456789" * 2, 30, 50, 50)
    assert supervisor_client.read(str(tmp_path), 45, 3) == supervisor_client.OutputRange("567", 45, 48, 50)
    assert supervisor_client.tail(str(tmp_path), 0, 4) == supervisor_client.OutputRange("6789", 46, 50, 50)
    assert supervisor_client.tail(str(tmp_path), 48, 4) == supervisor_client.OutputRange("89", 48, 50, 50)
    assert supervisor_client.read(str(tmp_path), 99) == supervisor_client.OutputRange("", 50, 50, 50)


def test_a_character_that_is_not_whole_yet_comes_with_its_rest(tmp_path: Path) -> None:
    (tmp_path / "out.0").write_bytes("aé".encode()[:2])
    assert supervisor_client.read(str(tmp_path)) == supervisor_client.OutputRange("a", 0, 1, 2)
    (tmp_path / "out.0").write_bytes("aé".encode())
    assert supervisor_client.read(str(tmp_path), 1) == supervisor_client.OutputRange("é", 1, 3, 3)


def test_the_rest_of_a_character_that_began_before_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "out.0").write_bytes("aéb".encode())
    assert supervisor_client.read(str(tmp_path), 2) == supervisor_client.OutputRange("b", 2, 4, 4)


def test_of_one_that_ended_half_a_character_is_shown_as_such(tmp_path: Path) -> None:
    (tmp_path / "out.0").write_bytes("aé".encode()[:2])
    status = '{"code":0,"signal":0,"why":"","left":0,"stuck":0,"bytes":2,"lost":0,"at":1.0}'
    (tmp_path / "status").write_text(status)
    assert supervisor_client.read(str(tmp_path)) == supervisor_client.OutputRange("a\ufffd", 0, 2, 2)


def test_a_folder_that_is_not_there_is_an_output_of_nothing(tmp_path: Path) -> None:
    assert supervisor_client.read(str(tmp_path / "none")) == supervisor_client.OutputRange("", 0, 0, 0)
    assert supervisor_client.tail(str(tmp_path / "none")) == supervisor_client.OutputRange("", 0, 0, 0)
    assert supervisor_client.status(str(tmp_path / "none")) is None
    assert not supervisor_client.send(str(tmp_path / "none"), b"k")


@pytest.mark.parametrize("damaged", ["", "{", '{"code":"x"}', "[]", "\xff"])
def test_a_status_nobody_can_read_is_none(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "status").write_text(damaged, encoding="latin-1")
    assert supervisor_client.status(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("10%\r20%\r100%\ndone\r\n", "100%\ndone\n"),
        ("a\0b\x08c\x7fd\x9be", "abcde"),
        ("tab\tstays", "tab\tstays"),
        ("\x1b[", "["),
        ("é ü 密", "é ü 密"),
    ],
)
def test_output_is_shown_without_what_moves_a_cursor(raw: str, shown: str) -> None:
    assert supervisor_client.clean(raw) == shown


@hypothesis.given(st.text())
def test_for_any_output_what_is_shown_holds_no_control_characters(text: str) -> None:
    assert not {char for char in supervisor_client.clean(text) if ord(char) < 32 and char not in "\n\t"}


@pytest.mark.parametrize("command", ["", "  \n", "a\0b", "\ud800", "x" * 100_001, "ü" * 50_001])
def test_what_no_system_would_run_is_refused(command: str) -> None:
    with pytest.raises(errors.ToolFailed):
        supervisor_client.check_command(command)


def test_commands_run_below_the_roots_only(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "rooted").mkdir()
    (root / "out").symlink_to(tmp_path)
    (root / "file").write_text("")
    roots = [str(root)]
    assert supervisor_client.working_folder("", roots) == str(root)
    assert supervisor_client.working_folder("sub/../sub", roots) == str(root / "sub")
    for wrong in ("..", "/", "out", "out/rooted", "../rooted", "file", "none", "a\0b", "\ud800"):
        with pytest.raises(errors.ToolFailed):
            supervisor_client.working_folder(wrong, roots)


def test_the_command_is_one_word_for_the_warden() -> None:
    command = "echo '$(x)'; \"y\" \\\n z"
    line = supervisor_client.argv("tied", "/f", command, size=1)
    assert line[-1] == command
    assert line[:4] == [sys.executable, "-I", "-S", supervisor_client.SUPERVISOR]
    assert os.path.isfile(supervisor_client.SUPERVISOR)
