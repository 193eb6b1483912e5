"""A store must be on a local file system, in a folder that only its owner may write to."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import SessionDB, errors, file_modes
from holdfast.store.sqlite import paths as sqlite_paths

MOUNTINFO = r"""
22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /proc rw,nosuid - proc proc rw
41 22 0:40 / /home rw,relatime shared:2 master:3 - nfs4 server:/home rw,vers=4.2
42 41 0:41 / /home/me/local rw - btrfs /dev/sdb rw
43 22 0:42 / /mnt/with\040space\134and\011tab rw - cifs //server/share rw
46 22 0:45 / /over rw - ext4 /dev/sdd rw
47 46 0:46 / /over rw - nfs server:/over rw
a line of something else
"""


@pytest.fixture(autouse=True)
def lax_umask() -> Iterator[None]:
    """The modes must be right whatever the umask is."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"), ("/home", "nfs4"), ("/home/me", "nfs4"), ("/homework", "ext4"), ("/home/me/local/x", "btrfs"),
        ("/home/me/locals", "nfs4"), ("/mnt/with space\\and\ttab/x", "cifs"), ("/over/x", "nfs"),
    ],
)  # fmt: skip
def test_file_system_is_found_in_mountinfo(folder: str, kind: str) -> None:
    assert sqlite_paths.from_mountinfo(MOUNTINFO, folder) == kind
    assert sqlite_paths.from_mountinfo("", folder) == ""


MOUNT = """
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
devfs on /dev (devfs, local, nobrowse)
//me@server/share on /Volumes/share (smbfs, nodev, nosuid, mounted by me)
server:/export on /Volumes/on tour (nfs)
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "apfs"),
        ("/Users/me", "apfs"),
        ("/Volumes/share/x", "smbfs"),
        ("/Volumes/on tour/x", "nfs"),
        ("/dev", "devfs"),
    ],
)
def test_file_system_is_found_in_the_output_of_mount(folder: str, kind: str) -> None:
    assert sqlite_paths.from_mount(MOUNT, folder) == kind


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "smbfs", "9p", "ceph", "fuse.sshfs", "fuse.rclone", "davfs"])
def test_only_local_file_systems_are_accepted(kind: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sqlite_paths.filesystem("/") != ""
    monkeypatch.setattr(sqlite_paths, "filesystem", lambda _: kind)
    with pytest.raises(errors.StoreUnusable, match=kind.replace(".", r"\.")):
        SessionDB(path)
    assert list(path.parent.iterdir()) == []
    for local in ("ext4", "zfs", "apfs", "tmpfs", "overlay", "fuseblk", ""):
        monkeypatch.setattr(sqlite_paths, "filesystem", lambda _, local=local: local)
        sqlite_paths.check_not_on_network(str(path.parent))


def test_all_files_are_private_to_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two" / "store.db"
    for _ in range(2):
        with SessionDB(path) as db:
            db.create_session("talk", source="test")
            db.blobs.put(b"a picture")
            made = [*path.parent.rglob("*")]
            assert {file.name for file in made} >= {"store.db", "store.db-wal", "store.db-shm", "store.db.queue"}
            assert {mode(file) for file in made if file.is_file()} == {0o600}
            assert [mode(folder) for folder in made if folder.is_dir()] == [0o700] * 2
        assert [mode(folder) for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]
        path.chmod(0o644)  # the next open restricts it
    tmp_path.chmod(0o755)  # others may read the folder
    SessionDB(tmp_path / "store.db").close()
    assert mode(tmp_path) == 0o755


@pytest.mark.parametrize(
    ("mode", "gid", "group", "shared"),
    [
        (0o664, 7, ("ann", []), False),
        (0o2775, 7, ("ann", ["ann"]), False),
        (0o664, 7, ("ann", ["ann", "ben"]), True),
        (0o664, 7, ("staff", []), True),
        (0o664, 8, ("ann", []), True),
        (0o666, 7, ("ann", []), True),
        (0o644, 8, ("staff", ["ben"]), False),
    ],
)
def test_only_the_private_group_of_a_user_may_write(
    monkeypatch: pytest.MonkeyPatch, mode: int, gid: int, group: tuple[str, list[str]], shared: bool
) -> None:
    """Distributions with such groups have the umask 002; Debian's ssh accepts the files made so, too."""
    name, members = group
    monkeypatch.setattr(
        pwd, "getpwuid", lambda uid: pwd.struct_passwd(("ann", "x", uid, 7, "", "/home/ann", "/bin/sh"))
    )
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((name, "x", gid, members)))
    assert file_modes.is_writable_by_others(os.stat_result((mode, 0, 0, 1, 7, gid, 0, 0, 0, 0))) is shared


@pytest.mark.parametrize("open_to", [0o720, 0o702, 0o1777])
def test_directory_writable_by_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_to: int) -> None:
    monkeypatch.setattr(file_modes, "_is_private", lambda gid: False)
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(open_to)
    with pytest.raises(errors.StoreUnusable, match="chmod go-w"):
        SessionDB(folder / "store.db")
    assert (list(folder.iterdir()), mode(folder)) == ([], open_to)


def test_unusable_target_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    paths = (tmp_path, tmp_path / "file" / "store.db", tmp_path / "pipe", tmp_path / ("x" * 300))
    for target in (*paths, "", "a\0b", None, b"store.db"):
        with pytest.raises(errors.StoreUnusable):
            SessionDB(target)


@pytest.mark.parametrize(
    "bad", [{"durability": "none"}, {"durability": []}, {"write_timeout": -1}, {"write_timeout": "1"}]
)
def test_invalid_option_is_refused(tmp_path: Path, bad: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidArgument):
        SessionDB(tmp_path / "store.db", **bad)
