"""Risk hints: one sentence about why a person should look twice before a command line runs.

Hints help people; they are not a security boundary. A line without a hint is asked for like any other unless a rule
allows it, and a line with a hint is asked for every time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from holdfast.tools.permissions import sensitive_paths, shell_parse

UNKNOWN_PROGRAM = "Which program it runs is known only when it runs."
_UNCOMMITTED = "It discards uncommitted changes."
_HISTORY = "It rewrites or removes commits."
_PRIVILEGES = "It runs with other privileges."
_SYSTEM = "It changes the whole system."
_CONTAINER = "The container can reach the whole machine."
_OTHER_PROGRAMS = "It can run other programs, or write files."
_REMOTE = "It overwrites remote commits."
_TEXT = "It runs a program that is given as text."

_VARIABLES = re.compile(
    r"LD_\w+|DYLD_\w+|PATH|GIT_\w+|BASH_\w+|ENV|SHELLOPTS|BASHOPTS|IFS|PS4|PROMPT_COMMAND|SHELL|HOME|CDPATH"
    r"|PYTHON\w+|PERL5?\w*|RUBY\w+|NODE_\w+|NPM_\w+|npm_\w+|PAGER|EDITOR|VISUAL|BROWSER|LESSOPEN|LESSCLOSE|MANPAGER"
    r"|SSH_\w+|CC|CXX|LD|MAKEFLAGS|MAKE|CARGO_\w+|RUSTC\w*|GOFLAGS|JAVA_TOOL_OPTIONS|CLASSPATH|GCONV_PATH"
    r"|HOLDFAST_\w+|(?i:https?_proxy|all_proxy)|\w*(?:API_KEY|TOKEN|SECRET|PASSWORD)\w*"
)
_SETTERS = shell_parse.names("export declare typeset readonly local printf read mapfile readarray env")
_READERS = shell_parse.names("cat ls grep head tail wc diff file stat less more echo cd test [ pwd")
_FORK_BOMB = re.compile(r"([\w:.+@-]{1,64}) ?\( ?\)\s{0,9}\{[^}]{0,999}?\1 ?\| ?\1")
_RUNNING_OPTION = re.compile(
    r"--(?:\w+-)*(?:exec\w*|command|cmd|pager|prog\w*|pac|pack|shell|rsh|pre|vettool|action|act|script|eval|askpass|extcmd"
    r"|diff-cmd|config-env|hostname-bin)(?:-path|-batch)?(?:=.*)?|-(?:toolexec|vettool)(?:=.*)?", re.DOTALL
)  # fmt: skip
_RUNNING_LETTERS = {"tar": "IF", "rsync": "e", "fd": "xX", "ssh": "oFS", "scp": "oSF", "sftp": "oSFb", "make": "E",
                    "vim": "cS", "vi": "cS", "nvim": "cS", "emacs": "l", "man": "PH", "curl": "K", "wget": "e",
                    "tcpdump": "z"}  # fmt: skip
# The letters of options that are followed by a program.
_TEXT_LETTERS = {**dict.fromkeys(("python", "pypy", "ipython"), "c"), **dict.fromkeys(("perl", "julia"), "eE"),
                 **dict.fromkeys(("node", "nodejs", "bun"), "ep"), "php": "rBRE"}  # fmt: skip
_TEXT_OPTION = re.compile(r"--(?:eval|print|run|require|import|loader)")
_SED_SCRIPT = re.compile(
    r"(?:(?:\d+|\$)(?:,(?:\d+|\$))?[pdq=]|(?:(?:\d+|\$)(?:,(?:\d+|\$))?)?s([/|#,:@!])(?:(?!\1)[^\\\n]|\\.)*\1"
    r"(?:(?!\1)[^\\\n]|\\.)*\1[gpiI0-9]*|/[^/\\\n]*/[pd]|[pdq=])"
)

_DOCKER = r"(?:docker|podman) (?:run|exec|create|container) (?:.* )?"
_SHOWING_SERVICES = "status|show|list-units|list-timers|is-active|is-enabled|cat|list-unit-files"
_GIT_VERBS = "rebase|bisect|submodule|difftool|clone|fetch|pull|diff|log|show|grep"
_GIT_OPTIONS = "exec|upload-pack|config|template|extcmd|ext-diff|output"
_GIT = r"git (?:(?:-C|--git-dir|--work-tree|--namespace) \S+ |-\S+ )*"
_RULES = (
    (r"sudo|doas|su|pkexec|run0", _PRIVILEGES),
    (r"shutdown|reboot|halt|poweroff|telinit|mkswap|swapo(?:n|ff)|[sgc]?f?disk|parted|wipefs|blkdiscard", _SYSTEM),
    (r"shred|cryptsetup|[lvp][vg]remove|zpool|mdadm|u?mount|insmod|rmmod|modprobe|ip6?tables|nft|ufw", _SYSTEM),
    (r"groupadd|passwd|chpasswd|visudo|chsh|chfn|setenforce|grub-install|efibootmgr|diskutil|kexec|losetup", _SYSTEM),
    (r"user(?:add|del|mod)|dmsetup|setcap|format|killall5|mkfs\S*|init [06]", _SYSTEM),
    (r"dd .*of=\S*", "It overwrites what `of=` names."),
    (r"kill .*-1", "It ends every process."),
    (r"(?:crontab|at|batch|launchctl|schtasks)(?! -l$)", "It schedules programs to run later."),
    (r"(?:tmux|screen|xdotool|ydotool|wtype)(?! -?ls$)", "It can type into other programs, or start some."),
    (r"npx|bunx|uvx|pipx|(?:npm|pnpm|yarn) (?:exec|dlx|x)", "It may download the program that it runs."),
    (r"ch(?:mod|own|grp) (?:.* )?(?:-[^-\s]*R\S*|--recursive)", "It changes permissions recursively."),
    (r"ch(?:mod|own|grp) (?:-\S+ )*(?:[ugoa]*\+[rwxX]*s\w*|[2467]\d{3})", _PRIVILEGES),
    (r"find .*-delete", "It removes everything that it finds."),
    (_DOCKER + r"--(?:privileged|pid|cap-add|device|userns|ipc|security-opt)", _CONTAINER),
    (_DOCKER + r"(?:\S*docker\.sock\S*|(?:\S*=)?/(?:[:,]\S*)?)", _CONTAINER),
    (r"(?:docker|podman) (?:\S+ )?prune", "It removes what no container uses now."),
    (rf"(?:systemctl|service)(?: -\S+)* (?!{_SHOWING_SERVICES})\S+", "It starts, stops or changes services."),
    (r"(?:curl|wget) (?:.* )?(?:(?:-[dF])?@\S*|\S*=@\S*|-T|--(?:upload|post|body)-file)", "It uploads a file."),
    (r"nc|ncat|socat|telnet", "It opens a network connection that can carry anything."),
    (r"gpg .*secret\S*|security|pass|secret-tool", "It may show stored passwords or secret keys."),
    (r"gh (?:auth (?:token|login)|secret set)", "It shows or changes credentials."),
    (r"history", "It shows what was typed before."),
    (r"(?:npm|cargo) (?:publish|unpublish|yank|login|token)|twine upload|gem (?:push|yank)", "It publishes a package."),
    (r"holdfast", "It works on Holdfast's own conversations and permissions."),
    (_GIT + r"(?:-c\S*|--config-env|--exec-path)|git .*ext::\S*", "It changes git settings that can run programs."),
    (_GIT + r"push (?:.* )?(?:-[^-\s]*[fd]\S*|--(?:force\S*|mirror|delete|prune)|[+:]\S*)", _REMOTE),
    (_GIT + r"reset (?:.* )?--(?:hard|merge|keep)", _UNCOMMITTED),
    (_GIT + r"clean (?:.* )?(?:-[^-\s]*f\S*|--force)", "It removes untracked files."),
    (_GIT + r"(?:checkout|restore) (?:.* )?(?:-[^-\s]*f\S*|--force|\.|:/|\*)", _UNCOMMITTED),
    (_GIT + r"switch (?:.* )?(?:-[^-\s]*f\S*|--force|--discard-changes)", _UNCOMMITTED),
    (_GIT + r"stash (?:drop|clear)", _UNCOMMITTED),
    (_GIT + r"(?:branch|tag) (?:.* )?(?:-[^-\s]*[dDMf]\S*|--delete|--force)", _HISTORY),
    (_GIT + r"(?:filter-\w+|update-ref|prune|reflog (?:expire|delete)|worktree (?:remove|prune))", _HISTORY),
    (_GIT + r"gc (?:.* )?--(?:prune|aggressive)", _HISTORY),
    (_GIT + r"config (?!.*(?:--get|--list|-l\b)|get |list)\S+ \S+", "It changes git settings that can run programs."),
    (_GIT + r"credential", "It shows stored passwords."),
    (_GIT + rf"(?:{_GIT_VERBS}) (?:run|foreach|(?:.* )?(?:-[^-\s]*[xuc]\S*|--(?:{_GIT_OPTIONS})))", _OTHER_PROGRAMS),
    (r"(?:[gmn]?awk) .*(?:system|getline|[|>@]|(?:^| )-[filE]|(?:^| )--).*", _TEXT),
)  # fmt: skip
"""Matched at the start of "program words …", for a command and for everything that a wrapper may run."""
_HINTS = [(re.compile(rf"(?:{pattern})(?=[ =]|$)", re.DOTALL), hint) for pattern, hint in _RULES]


def describe(text: str) -> tuple[tuple[shell_parse.Command, ...], str]:
    """Return the commands that a line may run, for deny rules, and its risk hint; empty if there is none."""
    commands = tuple(shell_parse.find_commands(text))
    if len(text) <= shell_parse.MAX_LENGTH and _FORK_BOMB.search(text):
        return commands, "It starts itself again and again (a fork bomb)."
    return commands, find_risk(commands)


def find_risk(commands: Sequence[shell_parse.Command]) -> str:
    """Return the first risk hint for these commands; empty if there is none."""
    folder, unknown = "", ""
    for words in commands:
        program = shell_parse.strip_assignments(words)
        if risk := _check_variables(words, program) or _check_files(words, program, folder) or _check(program, folder):
            return risk
        if program and (not shell_parse.is_known(program[0]) or program[0].startswith("-")):
            unknown = UNKNOWN_PROGRAM
        if program and program[0] in ("cd", "pushd"):
            to = next((word for word in program[1:] if word != "--"), "~")
            folder = sensitive_paths.path(folder, shell_parse.source(to))
    return unknown


def _check(words: shell_parse.Command, folder: str) -> str:
    """Check a command, and everything that could be the command which a wrapper runs."""
    for each in _suffixes(words):
        program, rest = shell_parse.program_name(each), [shell_parse.source(word) for word in each[1:]]
        text = " ".join([program, *(re.sub(r"\s", "_", word) for word in rest)])
        if program == "rm" and (risk := _check_rm(each[1:], folder)):
            return risk
        if risk := next((hint for pattern, hint in _HINTS if pattern.match(text)), ""):
            return risk
        if risk := _check_options(program, rest) or _check_script(program, each[1:]):
            return risk
    return ""


def _suffixes(words: shell_parse.Command) -> Iterator[shell_parse.Command]:
    if words:
        yield words
    if len(words) <= shell_parse.MAX_WRAPPED_WORDS and shell_parse.runs_others(words):
        yield from (words[at:] for at in range(1, len(words)) if not words[at].startswith("-"))


def _check_variables(words: shell_parse.Command, program: shell_parse.Command) -> str:
    given = program[1:] if program and program[0] in _SETTERS else ()
    for word in (*words[: len(words) - len(program)], *given):
        name = re.split(r"[+=\[]", shell_parse.source(word))[0]
        if _VARIABLES.fullmatch(name):
            return f"It sets {name}, which changes what other programs do."
    return ""


def _check_files(words: shell_parse.Command, program: shell_parse.Command, folder: str) -> str:
    paths = list[str]()
    for word in words[1:] if "=" not in words[0] else words:
        text = shell_parse.source(word)
        paths += [text] if not text.startswith("-") else re.findall(r"^-\w([/~.].*)", text)
        paths += [piece for piece in re.split(r"[=@:]", text)[1:] if piece]
    if words[0] == ">" and sensitive_paths.steers(
        sensitive_paths.path(folder, paths[0] if paths else ""), written=True
    ):
        return f"It writes to {paths[0]}."
    for path in paths:
        if sensitive_paths.shows_secrets(sensitive_paths.path(folder, path)):
            return f"It reads or passes on {path}, which may hold secrets."
    if words[0] in (">", "<") or shell_parse.program_name(program) in _READERS:
        return ""
    changed = next((path for path in paths if sensitive_paths.steers(sensitive_paths.path(folder, path))), "")
    return f"It may change {changed}." if changed else ""


def _check_rm(words: shell_parse.Command, folder: str) -> str:
    if "--no-preserve-root" in words:
        return "It removes everything."
    if not any(re.match(r"-[^-]*[rRf]|--recursive|--force", word) for word in words):
        return ""
    for word in words:
        path = shell_parse.source(word)
        is_broad = not path.startswith("-") and sensitive_paths.broad(sensitive_paths.path(folder, path))
        if is_broad or not shell_parse.is_known(word):
            return f"It removes {path or 'what it is given'} without asking."
    return ""


def _check_options(program: str, words: Sequence[str]) -> str:
    letters = set(_RUNNING_LETTERS.get(program, ""))
    for word in words:
        is_short = word[:1] == "-" and word[1:2] != "-" and set(word.partition("/")[0][1:]) & letters
        if is_short or _RUNNING_OPTION.fullmatch(word):
            return f"`{program} {word.partition('=')[0]}` can run other programs, or write files."
    return ""


def _check_script(program: str, words: shell_parse.Command) -> str:
    """Return a hint if a shell or an interpreter is not given the name of a script, or a text that can be read."""
    if program in ("sed", "gsed"):
        return "" if _is_safe_sed(words) else _TEXT
    if program not in shell_parse.SHELLS and program not in shell_parse.INTERPRETERS:
        return ""
    is_shell, before = program in shell_parse.SHELLS, ""
    for at, word in enumerate(words):
        if word in ("--version", "-V", "-v", "--help", "-h") or (word == "-m" and program in ("python", "pypy")):
            return ""
        if is_shell and re.fullmatch(r"-[a-z]*c[a-z]*", word) and program not in ("fish", "csh", "tcsh", "pwsh"):
            return "" if all(map(shell_parse.is_known, words[at + 1 : at + 2] or (shell_parse.UNKNOWN,))) else _TEXT
        if word.startswith("-") and word != "-":
            letters = set(_TEXT_LETTERS.get(program, "e"))
            is_text = _TEXT_OPTION.match(word) or (word[1] != "-" and set(word[1:]) & letters)
            if not re.fullmatch(r"-[euxvln]+", word) if is_shell else is_text:
                return _TEXT
        elif before not in ("-W", "-X", "-I", "-r", "-C"):
            is_script = shell_parse.is_known(word) and not re.match(r"[-+]|eval$|repl$|/dev/|/proc/", word)
            return "" if is_script else _TEXT
        before = word
    return _TEXT


def _is_safe_sed(words: shell_parse.Command) -> bool:
    """Return whether a sed script certainly writes no files and runs no programs."""
    scripts, operands, at = list[str](), list[str](), 0
    while at < len(words):
        if words[at] in ("-e", "--expression"):
            scripts += words[at + 1 : at + 2]
            at += 1
        elif not words[at].startswith("-"):
            operands.append(words[at])
        elif not re.fullmatch(r"-[nErsuz]*i?|-i\.?\w*|--(?:quiet|silent|posix|regexp-extended|in-place)", words[at]):
            return False
        at += 1
    parts = (part.strip() for script in scripts or operands[:1]
             for part in ([script] if _SED_SCRIPT.fullmatch(script) else script.split(";")))  # fmt: skip
    return all(_SED_SCRIPT.fullmatch(part) for part in parts)
