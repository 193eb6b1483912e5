"""Where a store may live: local, one's own, and closed to others from the first moment."""

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
44 22 0:43 / /mnt/remote rw,nosuid - fuse.sshfs me@host:/ rw,user_id=0
45 22 0:44 / /mnt/ntfs rw - fuseblk /dev/sdc1 rw
46 22 0:45 / /over rw - ext4 /dev/sdd rw
47 46 0:46 / /over rw - nfs server:/over rw
48 22 0:47 / /mnt/plan9 rw - 9p host rw
a line of something else
"""

MOUNT = """
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
devfs on /dev (devfs, local, nobrowse)
/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled, nobrowse)
map auto_home on /System/Volumes/Data/home (autofs, automounted, nobrowse)
//me@server/share on /Volumes/share (smbfs, nodev, nosuid, mounted by me)
server:/export on /Volumes/on tour (nfs)
"""


@pytest.fixture(autouse=True)
def lax_umask() -> Iterator[None]:
    """The modes must be right whatever the umask is."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


# --- file systems ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"), ("/srv/data", "ext4"), ("/home", "nfs4"), ("/home/me", "nfs4"), ("/homework", "ext4"),
        ("/home/me/local", "btrfs"), ("/home/me/local/deep", "btrfs"), ("/home/me/locals", "nfs4"),
        ("/mnt/with space\\and\ttab/x", "cifs"), ("/mnt/remote/x", "fuse.sshfs"), ("/mnt/ntfs", "fuseblk"),
        ("/over/x", "nfs"), ("/mnt/plan9", "9p"),
    ],
)  # fmt: skip
def test_mountinfo_tells_what_a_folder_is_on(folder: str, kind: str) -> None:
    assert sqlite_paths.from_mountinfo(MOUNTINFO, folder) == kind


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
def test_output_of_mount_tells_what_a_folder_is_on(folder: str, kind: str) -> None:
    assert sqlite_paths.from_mount(MOUNT, folder) == kind


def test_what_cannot_be_told_is_empty() -> None:
    assert sqlite_paths.from_mountinfo("", "/x") == sqlite_paths.from_mount("nothing", "/x") == ""


@pytest.mark.parametrize(
    "kind",
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "afpfs", "9p", "ceph", "lustre", "glusterfs", "fuse.sshfs", "fuse.s3fs",
     "fuse.rclone", "davfs", "fuse.glusterfs"],
)  # fmt: skip
def test_network_file_system_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_paths, "filesystem", lambda _: kind)
    with pytest.raises(errors.StoreUnusable, match=kind.replace(".", r"\.")):
        SessionDB(tmp_path / "store.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["ext4", "btrfs", "xfs", "zfs", "apfs", "tmpfs", "overlay", "fuseblk", "hfs", ""])
def test_local_file_system_is_accepted(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_paths, "filesystem", lambda _: kind)
    sqlite_paths.check_not_on_network(str(tmp_path))


def test_file_system_of_this_machine_is_known() -> None:
    assert sqlite_paths.filesystem("/") != ""


# --- whose it is -----------------------------------------------------------------------------------------


def test_everything_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two" / "store.db"
    with SessionDB(path) as db:
        db.create_session("talk", source="test")
        made = sorted(path.parent.iterdir())
        assert {file.name for file in made} >= {"store.db", "store.db-wal", "store.db-shm", "store.db.queue"}
        assert {mode(file) for file in made if file.is_file()} == {0o600}
    assert [mode(folder) for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]


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


@pytest.mark.parametrize("open_to", [0o720, 0o702, 0o777, 0o1777])
def test_directory_that_others_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_to: int
) -> None:
    monkeypatch.setattr(file_modes, "_is_private", lambda gid: False)
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(open_to)
    with pytest.raises(errors.StoreUnusable, match="chmod go-w"):
        SessionDB(folder / "store.db")
    assert (list(folder.iterdir()), mode(folder)) == ([], open_to)


def test_directory_that_others_may_only_read_is_accepted(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    SessionDB(tmp_path / "store.db").close()
    assert mode(tmp_path) == 0o755


def test_store_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    SessionDB(path).close()
    path.chmod(0o644)
    with SessionDB(path) as db:
        db.create_session("talk", source="test")
        assert {mode(str(path) + suffix) for suffix in ("", "-wal", "-shm")} == {0o600}


def test_what_is_no_place_for_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path, tmp_path / "file" / "store.db", tmp_path / "pipe", tmp_path / ("x" * 300)):
        with pytest.raises(errors.StoreUnusable):
            SessionDB(target)


@pytest.mark.parametrize("target", ["", "a\0b", None, 5, b"store.db", ["store.db"], object()])
def test_target_that_is_no_path_is_refused(target: object) -> None:
    with pytest.raises(errors.StoreUnusable):
        SessionDB(target)


@pytest.mark.parametrize(
    "bad", [{"durability": "none"}, {"durability": []}, {"write_timeout": -1}, {"write_timeout": "1"}]
)
def test_options_that_are_none_are_refused(tmp_path: Path, bad: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidArgument):
        SessionDB(tmp_path / "store.db", **bad)
