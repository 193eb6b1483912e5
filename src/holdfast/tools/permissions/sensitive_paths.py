"""Names that need care wherever they lie: files that hold secrets, and files that make programs or agents do things.

Pure: a path as its parts in, a sentence for people out, or nothing. One set of tables serves files and command lines;
the names of secrets are in secret_names.
Names are compared without regard to case, since some file systems do the same; links are not followed here.
"""

from __future__ import annotations

import fnmatch
import itertools
import posixpath
import re
from collections.abc import Callable, Sequence

from holdfast.tools.permissions import secret_names

# A longer path cannot be opened.
LONGEST = 4096

_STEERS = frozenset(
    {"agents.md", "claude.md", "gemini.md", ".cursorrules", ".holdfast.toml", ".mcp.json", "copilot-instructions.md"}
)
_SHELL = re.compile(
    r"\.(?:bash|zsh|csh|tcsh|ksh)(?:rc|env)|\.(?:bash_|z)?(?:profile|login|logout|aliases)|\.(?:x|xsession|xinit)rc"
    r"|\.(?:envrc|inputrc|vimrc|exrc|nanorc|emacs|tmux\.conf|screenrc|pythonrc|pythonstartup|gdbinit|curlrc|wgetrc)"
    r"|config\.fish|crontab|authorized_keys"
)
_RUNS = re.compile(
    r"\.git(?:attributes|modules|config)|\.pre-commit-config\.ya?ml|sitecustomize\.py|usercustomize\.py|.+\.pth"
    r"|pip\.conf|\.npmrc|\.yarnrc(?:\.yml)?|\.pypirc|\.gitlab-ci\.yml|jenkinsfile|.+\.(?:desktop|service|timer)"
)
_RUNS_FOLDERS = frozenset(
    {".husky", ".githooks", ".vscode", ".idea", ".devcontainer", "autostart", "launchagents", "launchdaemons", ".ssh"}
)
# What git takes a folder for a repository by, and what it then goes by.
_REPOSITORY = ("HEAD", "objects", "refs", "commondir")
_IN_REPOSITORY = frozenset(
    {"head", "objects", "refs", "commondir", "config", "config.worktree", "hooks", "packed-refs"}
)
# Two folders in each other that make what is below them one of these.
_RUNS_BELOW = ((".github", "workflows"), (".local", "bin"), (".config", "systemd"), (".config", "fish"),
               (".config", "git"), (".config", "holdfast"), ("share", "holdfast"),
               ("application support", "holdfast"))  # fmt: skip
# What a wildcard may turn out to be, where it begins with a dot.
_DOTTED = (".env", ".envrc", ".ssh", ".aws", ".gnupg", ".kube", ".netrc", ".npmrc", ".git", ".bashrc", ".zshrc",
           ".profile", ".bash_history", ".git-credentials")  # fmt: skip
_HOME = re.compile(r"(?:~[\w.-]*|\$HOME|\$\{HOME\})(?=/|$)")
_SYSTEM = re.compile(r"/(?:etc|boot|dev|sys|proc|var/spool/cron)(?:/.*)?", re.IGNORECASE)
_INSTALLED = re.compile(r"/(?:usr|bin|sbin|lib\w*|opt|System|Library|Applications|root|var)(?:/.*)?", re.IGNORECASE)


def secret(parts: Sequence[str]) -> str:
    """Why reading this file should be asked for; empty where it need not be."""
    known = secret_names.is_secret_file(parts)
    return "It may hold keys or passwords, and the model would be shown them." if known else ""


def forbidden(parts: Sequence[str]) -> str:
    """Why this file is never written, whoever permits it; empty where it may be."""
    lowered = [part.casefold() for part in parts]
    if ".git" not in lowered:
        return ""
    below = lowered[lowered.index(".git") + 1 :]
    if not below:
        return "`.git` says where git finds what it runs, and is not written by this tool."
    if "hooks" in below or below[-1].startswith("config"):
        return "Git's hooks and settings make programs run, and are not written by this tool."
    return ""


def steering(parts: Sequence[str]) -> str:
    """Why a person should look twice before this file is written; empty where there is no reason."""
    *folders, name = [part.casefold() for part in parts] or [""]
    if ".git" in folders:
        return "It belongs to git's own files: a mistake there can lose work."
    if name in _STEERS or {".cursor", ".claude"} & set(folders):
        return "Agents do what this file says."
    if _SHELL.fullmatch(name):
        return "Programs start by what this file says."
    below = any(pair in itertools.pairwise(folders) for pair in _RUNS_BELOW)
    if _RUNS.fullmatch(name) or _RUNS_FOLDERS & set(folders) or below:
        return "This file makes programs run."
    return secret(parts) and "It may hold keys or passwords."


def repository(parts: Sequence[str], exists: Callable[[str], bool]) -> str:
    """Why a person should look twice before this file is written: a folder would look like a bare repository to git.

    `exists` returns whether a path exists, relative to where the parts begin.
    """
    for at, part in enumerate(parts):
        if part.casefold() in _IN_REPOSITORY:
            beside = {name.casefold() for name in _REPOSITORY if exists("/".join((*parts[:at], name)))}
            known = beside | ({part.casefold()} & {name.casefold() for name in _REPOSITORY})
            if "head" in known or len(known) > 1:
                return "Git may take its folder for a repository, whose settings can run programs."
    return ""


# --- as a command line names them ----------------------------------------------------------------------


def path(place: str, text: str) -> str:
    """A path from a place, plain; `~` is the home folder."""
    home = _HOME.match(text)
    text = "~" + text[home.end() :] if home else text
    if place and not text.startswith(("/", "~")):
        text = f"{place}/{text}"
    plain = posixpath.normpath(text) if text else ""
    return "/" + plain.lstrip("/") if plain.startswith("/") else plain


def shows_secrets(where: str) -> bool:
    """Whether keys, passwords or what was typed may be at this path, or at what its wildcards stand for."""
    if len(where) > LONGEST:
        return False
    parts = where.split("/")
    gives_access = ".config/gh/" in where or ".config/gcloud/" in where or where.endswith("/environ")
    # The folder itself stands for all that is in it.
    return bool(secret(parts) or secret([*parts, ""])) or gives_access or _wild(parts)


def steers(where: str, *, written: bool = False) -> bool:
    """Whether other programs run by what is at this path; `written`: also where programs themselves are."""
    if len(where) > LONGEST:
        return False
    parts = where.split("/")
    system = _SYSTEM.fullmatch(where) or (written and _INSTALLED.fullmatch(where))
    return bool(system or forbidden(parts) or steering(parts) or steering([*parts, ""])) or _wild(parts)


def broad(where: str) -> bool:
    """Whether nearly everything is below: a root, a home, a whole project, all that fits a wildcard."""
    if re.search(r"[*?]", where) or where in ("", ".", "..", "~", "/", ".git") or where.startswith("../"):
        return True
    steps = where.strip("/").split("/")
    if where.startswith("/"):
        return len(steps) <= 1 or (len(steps) == 2 and steps[0] in ("home", "Users", "usr", "var", "mnt", "media"))
    return where.endswith("/.git")


def _wild(parts: Sequence[str]) -> bool:
    """Whether a wildcard may stand for a name that would be known."""
    wild = [part for part in parts if part.startswith((".", "?", "[")) and re.search(r"[*?\[]", part)]
    return any(fnmatch.fnmatchcase(name, part) for part in wild[:8] for name in _DOTTED)
