"""A Dovecot server with one mailbox, in a folder, without root privileges; mail is delivered into its maildir.

Install it with: apt-get install dovecot-imapd
"""

from __future__ import annotations

import grp
import itertools
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path

from tests.support import polling
from tests.support.email_server import AGENT, PASSWORD

CONFIGURATION = """
protocols = imap
base_dir = {folder}/run
state_dir = {folder}/run
log_path = {folder}/log
listen = 127.0.0.1
ssl = yes
ssl_cert = <{folder}/cert.pem
ssl_key = <{folder}/key.pem
disable_plaintext_auth = no
default_login_user = {user}
default_internal_user = {user}
default_internal_group = {group}
mail_location = maildir:{folder}/maildir
first_valid_uid = 0
mail_uid = {uid}
mail_gid = {gid}
passdb {{
  driver = static
  args = user={address} password={password}
}}
userdb {{
  driver = static
  args = home={folder}/home
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service anvil {{
  chroot =
}}
"""


class Dovecot:
    """A running server. IMAP is at `port` of 127.0.0.1, with STARTTLS."""

    def __init__(self, folder: Path, program: str) -> None:
        self._folder, self._names = folder, itertools.count(1)
        # Dovecot does not serve mail as root.
        self._owner = pwd.getpwnam("nobody") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
        self.port, self._command = 0, [program, "-F", "-c", str(folder / "dovecot.conf")]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if not self.port:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
        user, group = self._owner.pw_name, grp.getgrgid(self._owner.pw_gid).gr_name
        values = {"user": user, "uid": self._owner.pw_uid, "group": group, "gid": self._owner.pw_gid, "port": self.port}
        values |= {"folder": self._folder, "address": AGENT, "password": PASSWORD}
        (self._folder / "dovecot.conf").write_text(CONFIGURATION.format(**values))
        for each in (self._folder, *self._folder.rglob("*")):
            os.chown(each, self._owner.pw_uid, self._owner.pw_gid)
        identity = {"user": user, "group": group, "extra_groups": []} if os.getuid() == 0 else {}
        self._process = subprocess.Popen(self._command, **identity)
        polling.until(self._is_up)

    def _is_up(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text()
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def deliver(self, mail: EmailMessage) -> None:
        """Put a mail into the mailbox as mail servers do: a file that is renamed into `new`."""
        name, maildir = f"{next(self._names)}.mail.test", self._folder / "maildir"
        for each in ("tmp", "new", "cur"):
            (maildir / each).mkdir(parents=True, exist_ok=True)
        (maildir / "tmp" / name).write_bytes(mail.as_bytes())
        for path in (maildir, *maildir.iterdir(), maildir / "tmp" / name):
            os.chown(path, self._owner.pw_uid, self._owner.pw_gid)
        (maildir / "tmp" / name).rename(maildir / "new" / name)

    def seen(self) -> int:
        """Return how many mails are marked as read."""
        return sum("S" in path.name.rpartition(",")[2] for path in (self._folder / "maildir" / "cur").glob("*"))


@contextmanager
def run(folder: Path) -> Iterator[Dovecot]:
    """Run a server until the end of the block. The user `nobody` must reach the folder if the tests run as root."""
    program = shutil.which("dovecot") or shutil.which("dovecot", path="/usr/sbin")
    assert program is not None, "Dovecot is not installed. Run: apt-get install dovecot-imapd"
    server = Dovecot(folder, program)
    try:
        server.start()
        yield server
    finally:
        server.stop()
