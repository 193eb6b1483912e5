"""Sensitive paths: files that hold secrets, and files that control programs or agents.

The functions return a sentence, or nothing. File tools and risk hints share the tables. Case is ignored, as some file
systems do; links are not followed.
"""

from __future__ import annotations

import fnmatch
import itertools
import posixpath
import re
from collections.abc import Callable, Sequence

from holdfast.tools.permissions import secret_names

# The system cannot open a longer path.
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
# The names by which git recognises a repository, and the files that control it.
_REPOSITORY = ("HEAD", "objects", "refs", "commondir")
_IN_REPOSITORY = frozenset(
    {"head", "objects", "refs", "commondir", "config", "config.worktree", "hooks", "packed-refs"}
)
# Nested folders whose files can run programs.
_RUNS_BELOW = ((".github", "workflows"), (".local", "bin"), (".config", "systemd"), (".config", "fish"),
               (".config", "git"), (".config", "holdfast"), ("share", "holdfast"),
               ("application support", "holdfast"))  # fmt: skip
# Sensitive names that a wildcard with a leading dot may match.
_DOTTED = (".env", ".envrc", ".ssh", ".aws", ".gnupg", ".kube", ".netrc", ".npmrc", ".git", ".bashrc", ".zshrc",
           ".profile", ".bash_history", ".git-credentials")  # fmt: skip
_HOME = re.compile(r"(?:~[\w.-]*|\$HOME|\$\{HOME\})(?=/|$)")
_SYSTEM = re.compile(r"/(?:etc|boot|dev|sys|proc|var/spool/cron)(?:/.*)?", re.IGNORECASE)
_INSTALLED = re.compile(r"/(?:usr|bin|sbin|lib\w*|opt|System|Library|Applications|root|var)(?:/.*)?", re.IGNORECASE)


def secret(parts: Sequence[str]) -> str:
    """Return why reading this file needs an approval; empty if it does not."""
    known = secret_names.is_secret_file(parts)
    return "It may hold keys or passwords, which the model would see." if known else ""


def forbidden(parts: Sequence[str]) -> str:
    """Return why this file is never written; empty if it may be."""
    lowered = [part.casefold() for part in parts]
    if ".git" not in lowered:
        return ""
    below = lowered[lowered.index(".git") + 1 :]
    if not below:
        return "`.git` controls which programs git runs. This tool does not write it."
    if "hooks" in below or below[-1].startswith("config"):
        return "Git's hooks and settings can run programs. This tool does not write them."
    return ""


def steering(parts: Sequence[str]) -> str:
    """Return the risk hint for writing this file; empty if there is none."""
    *folders, name = [part.casefold() for part in parts] or [""]
    if ".git" in folders:
        return "It is one of git's internal files: a mistake can lose work."
    if name in _STEERS or {".cursor", ".claude"} & set(folders):
        return "This file instructs agents."
    if _SHELL.fullmatch(name):
        return "This file controls how programs start."
    below = any(pair in itertools.pairwise(folders) for pair in _RUNS_BELOW)
    if _RUNS.fullmatch(name) or _RUNS_FOLDERS & set(folders) or below:
        return "This file can run programs."
    return secret(parts) and "It may hold keys or passwords."


def repository(parts: Sequence[str], exists: Callable[[str], bool]) -> str:
    """Return the risk hint for a file that would turn its folder into a bare git repository.

    `exists` returns whether a path exists, relative to where the parts begin.
    """
    for at, part in enumerate(parts):
        if part.casefold() in _IN_REPOSITORY:
            present = {name.casefold() for name in _REPOSITORY if exists("/".join((*parts[:at], name)))}
            known = present | ({part.casefold()} & {name.casefold() for name in _REPOSITORY})
            if "head" in known or len(known) > 1:
                return "Git may use its folder as a repository, whose settings can run programs."
    return ""


# --- paths in command lines -----------------------------------------------------------------------------


def path(place: str, text: str) -> str:
    """Return a normalised path relative to a folder; `~` is the home folder."""
    home = _HOME.match(text)
    text = "~" + text[home.end() :] if home else text
    if place and not text.startswith(("/", "~")):
        text = f"{place}/{text}"
    plain = posixpath.normpath(text) if text else ""
    return "/" + plain.lstrip("/") if plain.startswith("/") else plain


def shows_secrets(where: str) -> bool:
    """Return whether a path, or a match of its wildcards, may hold secrets."""
    if len(where) > LONGEST:
        return False
    parts = where.split("/")
    gives_access = ".config/gh/" in where or ".config/gcloud/" in where or where.endswith("/environ")
    # A folder counts like the files in it.
    return bool(secret(parts) or secret([*parts, ""])) or gives_access or _wild(parts)


def steers(where: str, *, written: bool = False) -> bool:
    """Return whether a path controls other programs; `written`: also the folders of installed programs."""
    if len(where) > LONGEST:
        return False
    parts = where.split("/")
    system = _SYSTEM.fullmatch(where) or (written and _INSTALLED.fullmatch(where))
    return bool(system or forbidden(parts) or steering(parts) or steering([*parts, ""])) or _wild(parts)


def broad(where: str) -> bool:
    """Return whether a path stands for many files: a root, a home, a whole project, a wildcard."""
    if re.search(r"[*?]", where) or where in ("", ".", "..", "~", "/", ".git") or where.startswith("../"):
        return True
    steps = where.strip("/").split("/")
    if where.startswith("/"):
        return len(steps) <= 1 or (len(steps) == 2 and steps[0] in ("home", "Users", "usr", "var", "mnt", "media"))
    return where.endswith("/.git")


def _wild(parts: Sequence[str]) -> bool:
    """Return whether a wildcard may match a sensitive name."""
    wild = [part for part in parts if part.startswith((".", "?", "[")) and re.search(r"[*?\[]", part)]
    return any(fnmatch.fnmatchcase(name, part) for part in wild[:8] for name in _DOTTED)
