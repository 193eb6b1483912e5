"""Recognise what a message asks the offline model for, by its form alone. Pure.

Only an unambiguous request becomes an action; every other message is a question or a statement.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Kind = Literal["empty", "greet", "thank", "explain", "run", "read", "list", "write", "generate", "ask", "tell"]


class Intent(NamedTuple):
    """The intent of a message: `text` is the question, command or path, `content` the text of a file to write."""

    kind: Kind
    text: str = ""
    content: str = ""


MAX_LENGTH = 2_000
"""Longer messages contain no request, except for a question at the end."""

_POLITE = r"(?is)(?:(?:please|now|ok|okay|so|and|then|hey)[,!]?\s+)*(?:(?:can|could|would|will) you\s+(?:please\s+)?)?"
_RUN = re.compile(_POLITE + r"(?:run|execute)\b:?\s+(?P<rest>\S.*)")
_READ = re.compile(
    rf"{_POLITE}(?:read|open|cat|show(?: me)?|print|display|view|what(?:'s| is) in|what does)\s+(?:the )?(?:file )?"
    r"(?P<path>`[^`\n]+`|\"[^\"\n]+\"|'[^'\n]+'|[^\s`\"'?!,;]+)"
)
_LIST = re.compile(
    rf"{_POLITE}(?:list|show(?: me)?|what are)\s+(?:(?:me|all|the|my|of|these)\s+)*files(?:\s+(?:here|there|in "
    r"(?:this|the|my)(?: current)? (?:folder|directory|project)))?"
)
_WRITE = re.compile(
    rf"{_POLITE}(?:create|write|make|save)\s+(?:me\s+)?(?:(?:a|the)\s+)?(?:new\s+)?(?P<file>(?:text\s+)?file\s+)?"
    r"(?:(?:called|named)\s+)?(?P<path>`[^`\n]+`|\"[^\"\n]+\"|'[^'\n]+'|[^\s`\"'?!,;:]+)\s+"
    r"(?:with|containing|that says)\s+(?:the\s+(?:text|content|words)\s+)?(?P<content>\S.*)"
)
# Work that needs a language model.
_GENERATE = re.compile(
    rf"{_POLITE}(?:write|explain|translate|summari[sz]e|draw|draft|compose|generate|implement|refactor|rewrite|improve"
    r"|review|debug|fix|build|create|design|calculate|convert)\s+(?:me\s+)?(?:an?|the|my|this|that|these|it|some)\b.*"
)
_GENERATE_QUESTION = re.compile(r"(?i)(?:please |hey,? )*(?:can|could|would|will) you ")
_PATH = re.compile(r"[`/~]|.*\S/\S|.*[^/\\]\.[A-Za-z][A-Za-z0-9]{0,9}[\"']?$|(?i:makefile|readme|license|notes)$")
_FILE_NAME = re.compile(r"[`\"']|.*[^/\\]\.[A-Za-z][A-Za-z0-9]{0,9}$")
# "run the tests", "run out of milk": no command is given.
_NO_COMMAND = re.compile(r"(?i)(?:the|a|an|my|our|your|it|this|that|all|some|away|out|into|through|for|over|again)\b")
_GREETING = re.compile(
    r"(?i)(?:hi|hello|hey|hallo|hola|bonjour|good (?:morning|afternoon|evening|day)|guten (?:morgen|tag|abend)"
    r"|привет|你好)(?:,?\s+(?:there|holdfast|again|all))?"
)
_THANKS = re.compile(
    r"(?i)(?:ok(?:ay)?,? |great,? |perfect,? )?(?:thanks?(?: you)?|danke|merci|gracias|спасибо|谢谢)"
    r"(?: (?:so|very) much| a lot| again)?(?:,? holdfast)?"
)
_ABOUT_SELF = re.compile(
    r"(?i)(?:who|what|which model) are you|what(?:'s| is) your name|what can (?:you|i) do|help(?: me)?|wer bist du"
    r"|how do(?:es)? (?:you|this) work|are you (?:an? )?(?:ai|llm|bot|model|human|real|there)|was kannst du|你是谁"
)
_PHRASES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("greet", _GREETING),
    ("thank", _THANKS),
    ("explain", _ABOUT_SELF),
    ("list", _LIST),
)
# Without a question mark, a question begins with these words. "When I was young" is not a question.
_QUESTION = re.compile(
    r"(?i)(?:(?:who|whom|whose|what|when|where|why|how)(?:'s| is| are| was| were| do| does| did| can| could| will"
    r"| would| should| has| have| had| many| much| old| long| far| often| come)|(?:whose|which) \w+"
    r"|what \w+ (?:is|are|was|were|do|did)|(?:do|does|did|is|are|was|were|am|can|could|has|have|should|would|will)"
    r" (?:i|you|we|he|she|it|they|the|my|your|there|this)|tell me|remind me"
    r"|wer|wen|wem|was (?:ist|sind|war|hat|habe|kann|macht|weißt)|wann|wo|wohin|welche[rsnm]?|warum|wieso|wie|weißt du"
    r"|quel(?:le)?s?|qui|quand|où|pourquoi|combien|qué|cuál|cuándo|quién|dónde|cómo|cuánto|кто|что|где|когда|как)\b"
)
_ASIAN_QUESTION = re.compile(
    "什么|什麼|谁|誰|哪|多少|怎么|怎麼|[吗嗎呢]$|何|どこ|いつ|なぜ|ですか|ますか|무엇|누구|어디|언제"
)
_ENDS = ".!?\u3002\uff01\uff1f "
_QUESTION_MARKS = ("?", "\uff1f", "\u061f", "\u037e")


def parse(text: str) -> Intent:
    """Return what a message asks for."""
    text = text.strip()
    if not re.search(r"\w", text):
        return Intent("empty")
    if len(text) > MAX_LENGTH:
        return Intent("ask", text[-MAX_LENGTH:]) if text.endswith(_QUESTION_MARKS) else Intent("tell")
    for kind, pattern in _PHRASES:
        if pattern.fullmatch(text.rstrip(_ENDS)):
            return Intent(kind)
    if run := _RUN.match(text):
        return Intent("run", _find_command(run["rest"]))
    if (read := _READ.match(text)) and _PATH.match(path := read["path"].rstrip(".:")):
        return Intent("read", path.strip("`\"'"))
    if (write := _WRITE.fullmatch(text)) and (_FILE_NAME.match(path := write["path"]) or write["file"]):
        return Intent("write", path.strip("`\"'"), _unquote(write["content"]))
    if is_question(text) and not _GENERATE_QUESTION.match(text):
        return Intent("ask", text)
    return Intent("generate" if _GENERATE.fullmatch(text) else "tell")


def is_question(text: str) -> bool:
    """Whether a sentence is a question."""
    is_asian = _ASIAN_QUESTION.search(text.rstrip(_ENDS))
    return text.endswith(_QUESTION_MARKS) or bool(_QUESTION.match(text)) or bool(is_asian)


def _unquote(content: str) -> str:
    """Return the text between quotes or backticks, else the text."""
    quoted = re.fullmatch(r"```[a-z]*\n(.*?)\n?```|[`\"'“]([^`\"“”]*)[`\"'”][.!]?", content, re.DOTALL)
    return next(filter(None, quoted.groups()), content) if quoted else content


def _find_command(rest: str) -> str:
    """Return the command: the text between backticks, else the line; empty if it is prose."""
    fenced = re.search(r"```[a-z]*\n(.+?)```|`([^`\n]+)`", rest, re.DOTALL)
    if fenced:
        return (fenced[1] or fenced[2]).strip()
    line = re.sub(r"(?i)^(?:the )?(?:shell )?command:?\s+", "", rest.split("\n", 1)[0])
    return "" if _NO_COMMAND.match(line) or line.rstrip().endswith("?") else line.strip()
