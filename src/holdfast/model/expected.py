"""What an answer to a question has in it, told by how the question begins: a time, a number, a name, a place. Pure.

It only says which of two sentences is the likelier answer. A question whose form says nothing expects nothing.
"""

from __future__ import annotations

import re

_MONTHS = "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"  # noqa: E501 -- names of one kind
_DAYS = "(?:mon|tues|wednes|thurs|fri|satur|sun)days?"
_NUMBERS = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|hundred|half"
)
TIME = re.compile(
    rf"(?i)\b(?:\d{{1,2}}(?:st|nd|rd|th)? (?:of )?(?:{_MONTHS})|(?:{_MONTHS}) \d|{_DAYS}|\d{{1,2}}:\d\d|\d{{4}}-\d\d"
    rf"|\d{{1,2}} ?(?:am|pm)|(?:week|day|year|since|until|from|in|at|by|before|after|past) (?:\d+|{_NUMBERS}|{_MONTHS})"
    r"|noon|midnight|tomorrow|tonight|(?:spring|summer|autumn|winter|morning|evening|weekend)s?)\b"
)
NUMBER = re.compile(rf"(?i)\d|\b(?:{_NUMBERS})\b")
_NO_NAME = "The|This|That|These|There|My|Our|We|It|He|She|They|You|In|On|At|For|If|And|But|What|Who|Which"
NAME = re.compile(
    rf"\w[,:]? (?!I\b)[A-Z]\w+|[a-z]\. [A-Z]\w+|^(?!(?:{_NO_NAME})\b)[A-Z]\w+ (?:is|was|will|has|from|and|[a-z]+s)\b"
)
PLACE = re.compile(r"(?i)\b(?:in|at|on|under|behind|near|beside|inside|above|below|to|from|into|next to)\b|/")
PATH = re.compile(r"\S/\S|(?:^|\s)[~/.]+\S*/|[A-Za-z]:\\\\|\w\.[a-z]{2,5}\b")

_ASKED: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (re.compile(rf"(?i)\b(?:{form})\b"), wanted)
    for form, wanted in (
        (r"folder|directory|path|files?|url|link|web ?site|bucket|repository", PATH),
        (
            r"when|(?:what|which) (?:time|day|date|week|month|year|weekday|evening)|date|deadline|wann|quand|cuándo",
            TIME,
        ),
        (
            r"how (?:much|many|long|often|old|high|tall|wide|big|large|far|heavy|deep)|combien|cuánto|wie ?viele?",
            NUMBER,
        ),
        (r"(?:what|which) (?:\w+ )?(?:number|size|port|price|amount|code|percentage|digits|version|share)", NUMBER),
        (r"price|cost|amount|digits", NUMBER),
        (r"who|whom|whose|name|called|wer|wen|wem|qui|quién", NAME),
        (r"where|which (?:city|town|village|country|room|street)|wohin|wo|où|dónde", PLACE),
    )
)


def of(question: str) -> re.Pattern[str] | None:
    """What to look for in an answer; None: the form does not say."""
    return next((wanted for form, wanted in _ASKED if form.search(question)), None)
