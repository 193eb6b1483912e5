"""Words by which people show what a sentence is: an ask, a decision, a limit, something done, something failed.

Tables, not understanding. Each table has a few languages; what a language lacks here is still ranked by its words.
A word counts by its first six letters, as sentences are compared.
"""

from __future__ import annotations

_WORDS = {
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
# Scripts without spaces: parts of a text.
_SIGNS = {
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
_QUESTION = ("?", "？", "؟", "か。", "吗")

_BY_WORD: dict[str, set[str]] = {}
for _cue, _listed in _WORDS.items():
    for _word in _listed.split():
        _BY_WORD.setdefault(_word.casefold()[:6], set()).add(_cue)
_KNOWN = frozenset(_BY_WORD)


def found(text: str, words: frozenset[str]) -> frozenset[str]:
    """What a sentence shows itself to be, by its words; `words` are the sentence's terms."""
    shown = {cue for word in words & _KNOWN for cue in _BY_WORD[word]}
    if not text.isascii():
        shown.update(cue for cue, signs in _SIGNS.items() if any(sign in text for sign in signs))
    if text.rstrip(" \"')*_").endswith(_QUESTION):
        shown.add("question")
    return frozenset(shown)
