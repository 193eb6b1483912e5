"""What in a command line should make a person look twice, in one sentence. It is told from the commands a line runs,
word by word, not from how the line is spelled.

This is a help for people, not what holds the line: what is on no list is asked for like anything else, but not marked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from holdfast.tools.permissions import sensitive_paths, shell_parse, wrapper_commands

Words = shell_parse.Command
VAGUE = "What it runs is known only when it runs."

_VARIABLES = re.compile(
    r"LD_\w+|DYLD_\w+|PATH|GIT_\w+|BASH_\w+|ENV|SHELLOPTS|BASHOPTS|IFS|PS4|PROMPT_COMMAND|SHELL|HOME|CDPATH"
    r"|PYTHON\w+|PERL5?\w*|RUBY\w+|NODE_\w+|NPM_\w+|npm_\w+|PAGER|EDITOR|VISUAL|BROWSER|LESSOPEN|LESSCLOSE|MANPAGER"
    r"|SSH_\w+|CC|CXX|LD|MAKEFLAGS|MAKE|CARGO_\w+|RUSTC\w*|GOFLAGS|JAVA_TOOL_OPTIONS|CLASSPATH|GCONV_PATH"
    r"|HOLDFAST_\w+|(?i:https?_proxy|all_proxy)|\w*(?:API_KEY|TOKEN|SECRET|PASSWORD)\w*"
)
_SETTERS = shell_parse.names("export declare typeset readonly local printf read mapfile readarray env")
_SYSTEM = shell_parse.names(
    """
    shutdown reboot halt poweroff telinit mkswap swapoff fdisk sfdisk gdisk cfdisk parted wipefs blkdiscard shred
    cryptsetup lvremove vgremove pvremove zpool mdadm mount umount insmod rmmod modprobe iptables ip6tables nft ufw
    useradd userdel usermod groupadd passwd chpasswd visudo chsh chfn setenforce swapon grub-install efibootmgr
    diskutil kexec losetup dmsetup setcap format killall5
    """
)
_LATER = frozenset({"crontab", "at", "batch", "launchctl", "schtasks"})
_ROOT = frozenset({"sudo", "doas", "su", "pkexec", "run0"})
_FETCHED = frozenset({"npx", "bunx", "uvx", "pipx"})
_TYPES = frozenset({"tmux", "screen", "xdotool", "ydotool", "wtype"})
# Options with which a program runs another, or writes where its name does not tell.
_RUNNING = re.compile(
    r"--(?:\w+-)*(?:exec\w*|command|cmd|pager|prog\w*|pac|pack|shell|rsh|pre|vettool|action|act|script|eval|askpass|extcmd"
    r"|diff-cmd|config-env|hostname-bin)(?:-path|-batch)?(?:=.*)?|-(?:toolexec|vettool)(?:=.*)?"
)
_LETTERS = {"tar": "IF", "rsync": "e", "fd": "xX", "ssh": "oFS", "scp": "oSF", "sftp": "oSFb", "make": "E", "vim": "cS",
            "vi": "cS", "nvim": "cS", "emacs": "l", "man": "PH", "curl": "K", "wget": "e", "tcpdump": "z"}  # fmt: skip
_LOOKERS = shell_parse.names("cat ls grep head tail wc diff file stat less more echo cd test [ pwd")
_BOMB = re.compile(r"([\w:.+@-]{1,64}) ?\( ?\)\s{0,9}\{[^}]{0,999}?\1 ?\| ?\1")


def described(text: str) -> tuple[tuple[tuple[str, ...], ...], str]:
    """The commands found in a line by words, for rules that forbid, and why to look twice."""
    commands = tuple(wrapper_commands.opened(text))
    bomb = len(text) <= shell_parse.LONGEST and _BOMB.search(text)
    return commands, "It starts itself again and again (a fork bomb)." if bomb else of(commands)


def of(commands: Sequence[shell_parse.Command]) -> str:
    """Why a person should look twice; empty where nothing is known to be dangerous."""
    place, unread = "", ""
    for words in commands:
        if said := _danger(words, place):
            return said
        program = shell_parse.program_first(words)
        if program and not shell_parse.known(program[0]):
            unread = VAGUE
        if program and program[0] in ("cd", "pushd"):
            to = next((word for word in program[1:] if word != "--"), "~")
            place = sensitive_paths.path(place, shell_parse.text_of(to))
    return unread


def _danger(words: shell_parse.Command, place: str) -> str:
    program = shell_parse.program_first(words)
    said = _variables(words, program) or _files(words, program, place) or wrapper_commands.text_run(program)
    for each in (program, *wrapper_commands.suffixes(program)):
        said = said or (_program(each, place) if each else "")
    return said


# --- whatever the program is ---------------------------------------------------------------------------


def _variables(words: Words, program: Words) -> str:
    given = program[1:] if program and program[0] in _SETTERS else ()
    names = [
        re.split(r"[+=\[]", shell_parse.text_of(word))[0] for word in (*words[: len(words) - len(program)], *given)
    ]
    found = next((name for name in names if _VARIABLES.fullmatch(name)), "")
    return f"It sets {found}, which changes what other programs do." if found else ""


def _files(words: Words, program: Words, place: str) -> str:
    values = _values(words)
    if words[0] == ">" and sensitive_paths.steers(
        sensitive_paths.path(place, shell_parse.text_of(words[1])), written=True
    ):
        return f"It writes to {shell_parse.text_of(words[1])}."
    for value in values:
        if sensitive_paths.shows_secrets(sensitive_paths.path(place, value)):
            return f"It reads or passes on {value}, which may hold secrets."
    if words[0] in (">", "<") or wrapper_commands.name(program) in _LOOKERS:
        return ""
    for value in values:
        if sensitive_paths.steers(sensitive_paths.path(place, value)):
            return f"It may change {value}."
    return ""


def _values(words: Words) -> list[str]:
    """What may be a path in these words: a word, what stands behind a = an @ or a : in it, or behind an option."""
    found = list[str]()
    for word in words[1:] if "=" not in words[0] else words:
        text = shell_parse.text_of(word)
        found += [text] if not text.startswith("-") else re.findall(r"^-\w([/~.].*)", text)
        found += [piece for piece in re.split(r"[=@:]", text)[1:] if piece]
    return found


def _program(words: Words, place: str) -> str:
    name, rest = wrapper_commands.name(words), words[1:]
    if name in _ROOT:
        return f"It runs with other rights ({name})."
    if name in _SYSTEM or name.startswith("mkfs"):
        return f"`{name}` changes the whole system."
    if name in _LATER and rest != ("-l",):
        return f"`{name}` has programs run later."
    if name in _TYPES and rest not in (("ls",), ("-ls",)):
        return f"`{name}` can type into other programs, or start some."
    if name in _FETCHED or (name in ("npm", "pnpm", "yarn") and {"exec", "dlx", "x"} & set(rest[:1])):
        return "It runs a program that is downloaded if it is not there."
    letters_ = _LETTERS.get(name, "")
    for word in rest:
        text = shell_parse.text_of(word)
        short = text[:1] == "-" and text[1:2] != "-" and set(text.partition("/")[0][1:]) & set(letters_)
        if short or _RUNNING.fullmatch(text):
            return f"`{name} {text.partition('=')[0]}` can run other programs, or write files."
    handler = _PROGRAMS.get(name)
    return handler(rest, place) if handler is not None else ""


# --- by program ----------------------------------------------------------------------------------------


def letters(words: Words) -> set[str]:
    """The options of a command: letters one by one, long ones by name."""
    found = set[str]()
    for word in words:
        if word == "--":
            break
        if word.startswith("--"):
            found.add(word.partition("=")[0])
        elif word.startswith("-"):
            found.update(word[1:])
    return found


def operands(words: Words) -> list[str]:
    """What is no option."""
    end = words.index("--") if "--" in words else len(words)
    return [word for word in words[:end] if not word.startswith("-")] + list(words[end + 1 :])


def _rm(words: Words, place: str) -> str:
    given = letters(words)
    recursive = bool({"r", "R", "--recursive"} & given)
    if "--no-preserve-root" in given:
        return "It removes everything."
    if not recursive and not {"f", "--force"} & given:
        return ""
    for word in operands(words):
        where = sensitive_paths.path(place, shell_parse.text_of(word))
        if sensitive_paths.broad(where) or not shell_parse.known(word):
            return f"It removes {shell_parse.text_of(word) or 'whatever it is given'} without asking."
    return ""


def _rights(words: Words, place: str) -> str:
    modes = [word for word in operands(words)[:1] if re.fullmatch(r"[ugoa]*\+[rwxX]*s\w*|[2467]\d{3}", word)]
    if modes:
        return "It lets a program run with the rights of its owner."
    if {"R", "--recursive"} & letters(words) and any(
        sensitive_paths.broad(sensitive_paths.path(place, shell_parse.text_of(word))) or not shell_parse.known(word)
        for word in operands(words)[1:]
    ):
        return "It changes the rights of everything below."
    return ""


def _git(words: Words, _: str) -> str:
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at].startswith(("-c", "--config-env", "--exec-path")):
            return "It changes settings of git that can run programs."
        at += 2 if words[at] in ("-C", "--git-dir", "--work-tree", "--namespace") else 1
    if any(shell_parse.text_of(word).startswith("ext::") for word in words):
        return "The address it names runs a program."
    name, rest = (words[at], words[at + 1 :]) if at < len(words) else ("", ())
    handler = _GIT.get(name)
    return handler(rest, letters(rest)) if handler is not None else ""


def _git_push(rest: Words, given: set[str]) -> str:
    forced = {"f", "d", "--force", "--force-with-lease", "--mirror", "--delete", "--prune"} & given
    forced_ref = any(shell_parse.text_of(word).startswith(("+", ":")) for word in operands(rest))
    return "It overwrites or removes what others may have." if forced or forced_ref else ""


def _git_checkout(rest: Words, given: set[str]) -> str:
    everything = {"f", "--force"} & given or {".", ":/", "*", shell_parse.UNKNOWN + "*"} & set(rest)
    return "It throws away changes that are not committed." if everything else ""


def _git_runs(rest: Words, given: set[str]) -> str:
    runs = {"x", "--exec", "u", "--upload-pack", "c", "--config", "--template", "--extcmd", "--ext-diff", "--output"}
    inner = rest[:1] in (("run",), ("foreach",))
    return "It can run other programs, or write files." if runs & given or inner else ""


def _git_config(rest: Words, given: set[str]) -> str:
    looks = {"--get", "--get-all", "--get-regexp", "--list", "l"} & given or rest[:1] in (("get",), ("list",))
    return "" if looks or len(operands(rest)) < 2 else "It changes settings of git, which can run programs."


def _says(sentence: str, *wanted: str) -> Callable[[Words, set[str]], str]:
    """A sentence for these options, or first words; for all where none is named."""
    return lambda rest, given: sentence if not wanted or given & set(wanted) or set(rest[:1]) & set(wanted) else ""


_LOST = "It throws away changes that are not committed."
_PAST = "It rewrites or removes what was committed."
_GIT: dict[str, Callable[[Words, set[str]], str]] = {
    "push": _git_push,
    "reset": _says(_LOST, "--hard", "--merge", "--keep"),
    "clean": _says("It removes files git does not know.", "f", "--force"),
    "checkout": _git_checkout,
    "restore": _git_checkout,
    "switch": _says(_LOST, "f", "--force", "--discard-changes"),
    "stash": _says(_LOST, "drop", "clear"),
    "branch": _says(_PAST, "D", "d", "--delete", "M", "f", "--force"),
    "tag": _says(_PAST, "d", "--delete", "f", "--force"),
    "filter-branch": _says(_PAST),
    "filter-repo": _says(_PAST),
    "update-ref": _says(_PAST),
    "reflog": _says(_PAST, "expire", "delete"),
    "gc": _says(_PAST, "--prune", "--aggressive"),
    "prune": _says(_PAST),
    "worktree": _says(_PAST, "remove", "prune"),
    "config": _git_config,
    "credential": _says("It shows stored passwords."),
    **dict.fromkeys(
        ("rebase", "bisect", "submodule", "difftool", "clone", "fetch", "pull", "diff", "log", "show", "grep"),
        _git_runs,
    ),
}


def _kill(words: Words, _: str) -> str:
    return "It ends every process there is." if words[-1:] == ("-1",) else ""


def _docker(words: Words, _: str) -> str:
    wide = re.compile(
        r"--privileged|--pid(?:=host)?|--(?:cap-add|device|userns|ipc|security-opt)(?:=.*)?"
        r"|(?:-v|--volume|--mount)?=?(?:type=bind,)?(?:source=|src=)?/(?::.*|,.*)?|.*docker\.sock.*"
    )
    if words[:1] and words[0] in ("run", "exec", "create", "container") and any(map(wide.fullmatch, words[1:])):
        return "What runs in that container can reach the whole machine."
    pruned = len(words) > 1 and "prune" in words[:2]
    return "It removes what no container uses now." if pruned else ""


def _systemctl(words: Words, _: str) -> str:
    looks = {"status", "show", "list-units", "list-timers", "is-active", "is-enabled", "cat", "list-unit-files"}
    named = operands(words)
    return "" if not named or named[0] in looks else "It starts, stops or changes services."


def _sends(words: Words, _: str) -> str:
    for at, word in enumerate(words):
        file = shell_parse.text_of(word).startswith(("@", "-d@", "-F@")) or "=@" in word
        if file or word in ("-T", "--upload-file", "--post-file", "--body-file") or word.startswith("--post-file="):
            return f"It sends a file elsewhere ({shell_parse.text_of(words[at])})."
    return ""


def _always(sentence: str) -> Callable[[Words, str], str]:
    return lambda _words, _place: sentence


def _publishes(*first: str) -> Callable[[Words, str], str]:
    return lambda words, _: "It publishes something." if words[:1] and words[0] in first else ""


def _dd(words: Words, _: str) -> str:
    return "It writes over whatever `of=` names." if any(word.startswith("of=") for word in words) else ""


def _finds(words: Words, _: str) -> str:
    return "It removes all it finds." if "-delete" in words else ""


def _init(words: Words, _: str) -> str:
    return "It stops the machine." if words[:1] and words[0] in ("0", "6") else ""


def _gpg(words: Words, _: str) -> str:
    return "It hands out secret keys." if any("secret" in word for word in words) else ""


def _gh(words: Words, _: str) -> str:
    said = " ".join(words[:2])
    return "It shows or changes what gives access." if said in ("auth token", "auth login", "secret set") else ""


_PROGRAMS: dict[str, Callable[[Words, str], str]] = {
    "rm": _rm,
    "chmod": _rights,
    "chown": _rights,
    "chgrp": _rights,
    "git": _git,
    "kill": _kill,
    "docker": _docker,
    "podman": _docker,
    "systemctl": _systemctl,
    "service": _systemctl,
    "curl": _sends,
    "wget": _sends,
    "dd": _dd,
    "find": _finds,
    "init": _init,
    "gpg": _gpg,
    "gh": _gh,
    "history": _always("It shows what was typed before."),
    "security": _always("It may show stored passwords."),
    "pass": _always("It may show stored passwords."),
    "secret-tool": _always("It may show stored passwords."),
    "nc": _always("It opens a connection that can carry anything."),
    "ncat": _always("It opens a connection that can carry anything."),
    "socat": _always("It opens a connection that can carry anything."),
    "telnet": _always("It opens a connection that can carry anything."),
    "npm": _publishes("publish", "unpublish", "login", "token"),
    "cargo": _publishes("publish", "yank", "login"),
    "twine": _publishes("upload"),
    "gem": _publishes("push", "yank"),
    "holdfast": _always("It works on Holdfast's own conversations and permissions."),
}
