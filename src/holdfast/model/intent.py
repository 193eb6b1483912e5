"""What a plain message asks for, told by its form alone. Pure.

Only requests whose form leaves no doubt become an action; everything else is a question or a statement.
"""

from __future__ import annotations

import re

import msgspec


class Nothing(msgspec.Struct, frozen=True):
    """There are no words in it."""


class Greet(msgspec.Struct, frozen=True):
    """A greeting, or thanks."""


class Explain(msgspec.Struct, frozen=True):
    """Asks who answers here, and what it can do."""


class Run(msgspec.Struct, frozen=True):
    """A command to run; without one, it was not said exactly enough."""

    command: str


class Read(msgspec.Struct, frozen=True):
    """A file to read, and what is to be found in it."""

    path: str
    about: str = ""


class Ask(msgspec.Struct, frozen=True):
    """A question."""

    text: str


class Tell(msgspec.Struct, frozen=True):
    """A statement."""


Intent = Nothing | Greet | Explain | Run | Read | Ask | Tell

# Nobody types a request of this length, and forms are looked for in every place.
_LONGEST = 2_000
_POLITE = r"(?is)(?:(?:please|now|ok|okay|so|and|then|hey)[,!]?\s+)*(?:(?:can|could|would|will) you\s+(?:please\s+)?)?"
_FILE = r"(?:the )?(?:file )?(?P<path>`[^`\n]+`|\"[^\"\n]+\"|'[^'\n]+'|[^\s`\"'?!,;]+)"
_RUN = re.compile(_POLITE + r"(?:run|execute)\b:?\s+(?P<rest>\S.*)")
_READ = (
    re.compile(rf"{_POLITE}what (?:does|do) {_FILE} say(?: (?:about|on) (?P<about>.+))?"),
    re.compile(rf"{_POLITE}what(?:'s| is| stands) in {_FILE}"),
    re.compile(rf"{_POLITE}(?:find|look for|search for) (?P<about>.+?) in {_FILE}"),
    re.compile(rf"{_POLITE}(?:read|open|cat|show(?: me)?|print|display|view)\s+(?:me )?(?:the contents? of )?{_FILE}"),
)
_NAMES = {"makefile", "readme", "license", "licence", "dockerfile", "changelog", "copying", "todo", "notes"}
_EXTENSION = re.compile(r"[^/\\]\.[A-Za-z][A-Za-z0-9]{0,9}$")
# What people run without naming a command: a race, the tests, out of milk.
_VAGUE = re.compile(r"(?i)(?:the|a|an|my|our|your|it|this|that|all|some|away|out|into|through|for|over|again)\b")
_GREETINGS = """hi|hello|hey|hallo|moin|servus|hola|bonjour|salut|ciao|good (?:morning|afternoon|evening|day)
|guten (?:morgen|tag|abend)|thanks?|thanks? you(?: very much)?|danke|merci|gracias|привет|你好|您好
|こんにちは|안녕하세요|नमस्ते|مرحبا"""
_ABOUT_SELF = """(?:who|what|which model) are you|what(?:'s| is) your name|what can you do|help(?: me)?
|how do(?:es)? (?:you|this) work|are you (?:an? )?(?:ai|llm|bot|model|human|real|there)
|wer bist du|was kannst du|qui es-tu|quién eres|你是谁|あなたは誰ですか"""
# Without a question mark, the first words must be those of a question: "when I was young" is none.
_ASKING = """(?:who|whom|whose|what|when|where|why|how)(?:'s| is| are| was| were| do| does| did| can| could| will
| would| should| has| have| had| many| much| old| long| far| often| come)
|(?:whose|which) \\w+|what \\w+ (?:is|are|was|were|do|did)
|(?:do|does|did|is|are|was|were|am|can|could|has|have|should|would|will)
 (?:i|you|we|he|she|it|they|the|my|your|there|this)
|tell me|remind me|wer|wen|wem|was (?:ist|sind|war|hat|habe|kann|macht|weißt)
|wann|wo|wohin|welche[rsnm]?|warum|wieso|wie|weißt du
|quel(?:le)?s?|qui|quand|où|pourquoi|combien|qué|cuál|cuándo|quién|dónde|cómo|cuánto
|кто|что|где|когда|как|какой|почему"""
_ASIAN = """什么|什麼|谁|誰|哪|几[个点]|多少|怎么|怎麼|[吗嗎呢]$
|何|どこ|いつ|なぜ|ですか|ますか|무엇|누구|어디|언제"""


def _one_of(words: str) -> str:
    return f"(?:{words.replace(chr(10), '')})"


_GREETING = re.compile(rf"(?i){_one_of(_GREETINGS)}(?:,?\s+(?:there|holdfast|again|all|everyone))?")
_SELF = re.compile(rf"(?i){_one_of(_ABOUT_SELF)}")
_QUESTION = re.compile(rf"(?i){_one_of(_ASKING)}\b")
_ASIAN_QUESTION = re.compile(_one_of(_ASIAN))
_ENDS = ".!?\u3002\uff01\uff1f "
_MARKS = ("?", "\uff1f", "\u061f", "\u037e")


def of(text: str) -> Intent:
    """What a message asks for."""
    plain = text.strip()
    if not re.search(r"\w", plain):
        return Nothing()
    bare = plain.rstrip(_ENDS)
    if len(plain) > _LONGEST:
        return Ask(plain[-_LONGEST:]) if plain.endswith(_MARKS) else Tell()
    if _GREETING.fullmatch(bare):
        return Greet()
    if _SELF.fullmatch(bare):
        return Explain()
    return _action(plain) or (Ask(plain) if asks(plain) else Tell())


def _action(plain: str) -> Run | Read | None:
    run = _RUN.match(plain)
    if run:
        return Run(_command(run["rest"]))
    for form in _READ:
        read = form.match(plain)
        if read and _is_path(read["path"]):
            about = read.groupdict().get("about") or ""
            return Read(_unquoted(read["path"]), about.strip().rstrip("?!. "))
    return None


def _command(rest: str) -> str:
    """The command itself: what stands between backticks, else the line as it is; empty when it is prose."""
    fenced = re.search(r"```[a-z]*\n(.+?)```|`([^`\n]+)`", rest, re.DOTALL)
    if fenced:
        return (fenced[1] or fenced[2]).strip()
    line = re.sub(r"(?i)^(?:the )?(?:shell )?command:?\s+", "", rest.split("\n", 1)[0])
    return "" if _VAGUE.match(line) or line.rstrip().endswith("?") else line.strip()


def _unquoted(path: str) -> str:
    return path[1:-1] if path[0] in "`\"'" else path.rstrip(".:")


def _is_path(path: str) -> bool:
    bare = _unquoted(path)
    if path[0] == "`" or bare.lower() in _NAMES:
        return bool(bare.strip())
    return "/" in bare.strip("/") or bare.startswith(("/", "~", "./")) or bool(_EXTENSION.search(bare))


def asks(text: str) -> bool:
    """Whether a sentence is a question."""
    return text.endswith(_MARKS) or bool(_QUESTION.match(text)) or bool(_ASIAN_QUESTION.search(text.rstrip(_ENDS)))
