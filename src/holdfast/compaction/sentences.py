"""Split messages into sentences, and recognise what a sentence is: a request, a decision, a limit … Pure.

A sentence is one line: white space is folded, control characters are dropped and secrets are redacted. A quoted
sentence therefore cannot be a heading of a summary, nor end the data that it is part of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast import content_parts, redaction, types
from holdfast.compaction import speaker

MESSAGE_ENDS = {"user": (6_000, 2_000), "assistant": (4_000, 2_000), "tool": (1_000, 1_000), "system": (1_000, 0)}
"""How many characters are read at the beginning and at the end of a long message, by role."""
MIN_LENGTH, MAX_LENGTH = 3, 320
# A long text is redacted in chunks. Around a cut, MAX_SECRET characters are checked, more than a key has.
CHUNK, MAX_SECRET = 16_384, 4_096
MAX_KEY_BLOCK = 65_536
MAX_SENTENCES = 1_500
"""How many sentences are ranked; the least promising ones above that are skipped."""

_BREAK = re.compile(r"(?<=[.!?…][\s\"')\]])|(?<=[。！？])|[\r\n\v\f\x85\u2028\u2029]+|(?<=;)\s")
# Control, direction and zero-width characters. The zero-width joiner stays: scripts and emoji need it.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_SPACE = re.compile(r"\s+")
# The tags around data in the prompt of a summarizer.
_TAGS = re.compile(r"(?i)<(\s{0,9}/?\s{0,9}(?:record|messages|keep)\s{0,9})>")
_WORD = re.compile(r"\w+")
# Scripts that are written without spaces.
_NO_SPACES = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]+"
)
_CACHE_KEY = "_compaction sentences"
_ROLE_WEIGHTS = {"user": 2.0, "assistant": 1.0, "tool": 0.2, "system": 0.3}


class Sentence(msgspec.Struct, frozen=True, gc=False):
    """One sentence of a message. `words` are cut to six letters, so that inflected forms are equal."""

    seq: int
    role: str
    text: str
    words: frozenset[str]
    cues: frozenset[str] = frozenset()
    section: str = ""
    """The section of the earlier summary that it comes from; empty if it comes from a message."""


def fold(text: str) -> str:
    """Return the text as one line without control characters and without markers of a chat format. Idempotent."""
    line = _SPACE.sub(" ", text)
    printable = _CONTROL.sub("", line)
    # Two spaces may meet where a control character was dropped.
    line = line if printable == line else _SPACE.sub(" ", printable)
    return escape_tags(line).replace("<|", "< |").strip()


def escape_tags(text: str) -> str:
    """Replace the tags that enclose data in the prompt of a summarizer."""
    return _TAGS.sub(r"(\1)", text)


def message_text(message: types.Message) -> str:
    """Return the text of a message, shortened and redacted. Redaction comes first: half a key is not recognised."""
    head, tail = MESSAGE_ENDS[speaker.role_of(message)]
    text = redact(_keep_ends(content_parts.text(message.content), head, tail))
    return f"{text[:head]}\n{text[len(text) - tail :]}" if len(text) > head + tail else text


def redact(text: str) -> str:
    """Redact the secrets in a text of any length, in chunks: other threads cannot run during one search."""
    chunks, begin = [], 0
    while len(text) - begin > CHUNK:
        end = _find_safe_cut(text, begin + CHUNK, MAX_SECRET)
        chunks.append(redaction.redact(text[begin:end]))
        begin = end
    return "".join([*chunks, redaction.redact(text[begin:])])


def _keep_ends(text: str, head: int, tail: int) -> str:
    """Return the two ends of a very long text, with at least `head` and `tail` characters."""
    if len(text) <= CHUNK:
        return text
    first, last = _find_safe_cut(text, head, MAX_SECRET), _find_safe_cut(text, len(text) - tail, -MAX_SECRET)
    return f"{text[:first]}\n{text[last:]}" if first < last else text


def _find_safe_cut(text: str, index: int, step: int) -> int:
    """Return the first index, in steps from `index`, at which a cut splits no secret."""
    while 0 < index < len(text):
        around = text[max(0, index - MAX_SECRET) : index + MAX_SECRET]
        if not _is_within_key_block(text, index) and redaction.redact(around) == around:
            break
        index += step
    return min(max(0, index), len(text))


def _is_within_key_block(text: str, index: int) -> bool:
    begin = text.rfind("-----BEGIN ", max(0, index - MAX_KEY_BLOCK), index)
    return begin >= 0 and text.find("-----END ", begin, index) < 0


def drop_summaries(messages: Iterable[types.Message]) -> list[types.Message]:
    """Return the messages without summaries and without redacted messages."""
    return [message for message in messages if not speaker.is_summary(message) and not message.redacted]


def split_messages(messages: Sequence[types.Message]) -> list[Sentence]:
    """Return the sentences of all messages, in order.

    They are cached in the messages: one compaction needs them for the texts to keep, the extract and the ledger.
    """
    return [sentence for message in messages for sentence in _split_message(message)]


def _split_message(message: types.Message) -> list[Sentence]:
    found: list[Sentence] | None = message.__dict__.get(_CACHE_KEY)
    if found is None:
        role = speaker.role_of(message)
        found = [build_sentence(message.seq, role, line) for line in split_text(message_text(message))]
        message.__dict__[_CACHE_KEY] = found
    return found


def select_informative(sentences: list[Sentence]) -> list[Sentence]:
    """Return the sentences that are worth ranking, in order; all of them if there are at most MAX_SENTENCES."""
    if len(sentences) <= MAX_SENTENCES:
        return sentences
    best = sorted(range(len(sentences)), key=lambda index: (-_glance(sentences[index]), -index))
    return [sentences[index] for index in sorted(best[:MAX_SENTENCES])]


def _glance(sentence: Sentence) -> float:
    """Return a quick score for a sentence."""
    length = 1.0 if 4 <= len(sentence.words) <= 40 else 0.4
    digits = 0.8 if any(map(str.isdigit, sentence.text)) else 0.0
    return length * _ROLE_WEIGHTS[sentence.role] + len(sentence.cues) + digits


def build_sentence(seq: int, role: str, text: str, section: str = "") -> Sentence:
    """Build the sentence of one line."""
    words = terms(text)
    return Sentence(seq, role, text, words, find_cues(text, words), section)


def terms(text: str) -> frozenset[str]:
    """Return the words of a text, cut to six letters; for scripts without spaces, pairs of characters."""
    lowered = text.casefold()
    found = {word[:6] for word in _WORD.findall(lowered)}
    if not lowered.isascii():
        for run in _NO_SPACES.findall(lowered):
            found.update(run[index : index + 2] for index in range(max(1, len(run) - 1)))
    return frozenset(found)


def split_text(text: str) -> Iterator[str]:
    """Yield the sentences of a text, each as one line."""
    for piece in _BREAK.split(text):
        yield from split_long_line(piece)


def split_long_line(text: str) -> Iterator[str]:
    """Yield a line, in parts if it is longer than MAX_LENGTH."""
    line = fold(text)
    while len(line) > MAX_LENGTH:
        part = clip(line)
        yield part
        line = line[len(part) :].lstrip()
    if len(line) >= MIN_LENGTH and any(map(str.isalnum, line)):
        yield line


def clip(text: str, max_length: int = MAX_LENGTH) -> str:
    """Return the beginning of a line, cut between words if possible."""
    if len(text) <= max_length:
        return text
    end = text.rfind(" ", max_length // 2, max_length)
    return text[: end if end > 0 else max_length].rstrip()


# --- cues: words that show what a sentence is ------------------------------------------------------------

# Words are compared by their first six letters. Languages that are missing here are still ranked by their words.
_CUE_WORDS = {
    "ask": "please could can would remind forget todo bitte könntest kannst erinnere vergiss pouvez peux rappelle "
    "podrías puedes recuérdame pode poderia lembre",
    "later": "remind forget todo later tomorrow still pending open outstanding waiting erinnere vergiss später morgen "
    "noch rappelle oublie demain recuérdame olvides mañana lembre amanhã",
    "decision": "decided decide decision agreed agree settled choose chose chosen instead switch switched pick "
    "picked approved beschlossen entschieden entschluss nehmen stattdessen einigten décidé choisi convenu decidido "
    "decidimos elegimos acordado escolhemos",
    "limit": "must never always cannot mustn shouldn don't dont only unless except allergic forbidden deadline budget "
    "limit muss darf nie niemals immer nur keine höchstens mindestens allergisch frist jamais toujours doit "
    "seulement nunca siempre debe solo sempre deve somente",
    "goal": "want goal aim plan build need objective purpose möchte ziel wollen brauche veux objectif besoin quiero "
    "objetivo necesito quero preciso",
    "done": "done fixed finished created wrote added merged passed deployed completed resolved installed renamed "
    "removed updated moved erledigt fertig behoben erstellt abgeschlossen terminé corrigé créé hecho terminado "
    "creado feito pronto criado",
    "doing": "working progress currently running next now continuing started arbeite läuft gerade nächste "
    "travaille cours maintenant trabajando ahora fazendo agora",
    "error": "error exception traceback failed failure fatal panic crash crashed denied refused timeout fehler "
    "fehlgeschlagen erreur échec fallo erro falha",
    "keep": "remember note important called named name names number address code birthday merk wichtig heißt "
    "retiens important appelle recuerda importante llama lembre chama",
}
# For scripts without spaces: parts of a text.
_CUE_PARTS = {
    "ask": ("请", "帮我", "能不能", "ください", "お願い", "해 주세요", "해줘", "ช่วย", "กรุณา"),
    "later": ("提醒", "别忘", "之后", "明天", "忘れない", "あとで", "明日", "잊지", "나중에", "อย่าลืม", "พรุ่งนี้"),
    "decision": ("决定", "選択", "决议", "決定", "決め", "にします", "결정", "ตัดสินใจ", "ตกลง"),
    "limit": ("不要", "不能", "必须", "禁止", "只能", "しない", "だけ", "必ず", "금지", "반드시", "ห้าม", "ต้อง"),
    "goal": ("想要", "目标", "需要", "目標", "したい", "목표", "อยาก", "เป้าหมาย"),
    "done": ("完成", "已经", "修好", "完了", "終わ", "완료", "เสร็จ"),
    "doing": ("正在", "接下来", "中です", "次に", "진행", "กำลัง"),
    "error": ("错误", "失败", "エラー", "失敗", "오류", "실패", "ผิดพลาด"),
    "keep": ("记住", "重要", "叫", "名字", "号码", "覚え", "名前", "番号", "기억", "이름", "จำ", "ชื่อ"),
}
_QUESTION_ENDS = ("?", "？", "؟", "か。", "吗")

_CUES_BY_WORD: dict[str, set[str]] = {}
for _cue, _words in _CUE_WORDS.items():
    for _word in _words.split():
        _CUES_BY_WORD.setdefault(_word.casefold()[:6], set()).add(_cue)
_KNOWN_WORDS = frozenset(_CUES_BY_WORD)


def find_cues(text: str, words: frozenset[str]) -> frozenset[str]:
    """Return the cues of a sentence; `words` are its terms."""
    cues = {cue for word in words & _KNOWN_WORDS for cue in _CUES_BY_WORD[word]}
    if not text.isascii():
        cues.update(cue for cue, parts in _CUE_PARTS.items() if any(part in text for part in parts))
    if text.rstrip(" \"')*_").endswith(_QUESTION_ENDS):
        cues.add("question")
    return frozenset(cues)
