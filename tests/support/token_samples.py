"""Texts of every kind a conversation has, and how many tokens the o200k tables make of each.

The texts were written for this table; the counts are those of js-tiktoken 1.0 with o200k_base.
"""

from __future__ import annotations

SAMPLES: tuple[tuple[str, int, str], ...] = (
    (
        "english",
        116,
        (
            "The harbour was quiet when we came back, and nobody had noticed that the smaller boat was gone. We "
            "walked along the wall as far as the old light, counting the moorings twice, because the first time we "
            "had made a mistake. My brother thought it had come loose during the storm; I was not so sure. A knot "
            "like that does not open by itself, and the rope had been cut very neatly about a metre below the "
            "ring. In the evening we wrote everything down while we still remembered it, so that the owner would "
            "at least have an honest account."
        ),
    ),
    (
        "english chat",
        78,
        (
            "ok so here's what I'd like you to do: look at the config loader first, it's way too slow on startup "
            "(like 2-3 seconds on my laptop!). Don't rewrite it yet, just tell me what's going on. Also, did you "
            "get a chance to check whether Anna's branch is merged? She said it'd be done by Friday but I can't "
            "find it anywhere. Thanks!"
        ),
    ),
    (
        "german",
        99,
        (
            "Die Verwaltung hat gestern beschlossen, dass die Genehmigung erst nach einer zweiten Überprüfung "
            "erteilt werden kann. Für die Anwohner bedeutet das vor allem weitere Wartezeit, denn die Bauarbeiten "
            "an der Brücke verzögern sich dadurch mindestens bis zum Frühjahr. Der zuständige Ausschuss verwies "
            "auf fehlende Unterlagen zum Lärmschutz, die der Auftragnehmer eigentlich schon im Sommer hätte "
            "einreichen sollen. Ob die zusätzlichen Kosten von der Gemeinde übernommen werden, blieb zunächst "
            "offen."
        ),
    ),
    (
        "french",
        88,
        (
            "Nous avons passé l'après-midi à vérifier les comptes de l'association, et il manque toujours deux "
            "factures que personne n'arrive à retrouver. La trésorière pense qu'elles ont été envoyées à "
            "l'ancienne adresse, ce qui expliquerait aussi pourquoi le fournisseur s'est plaint d'un retard de "
            "paiement. Dès que nous aurons reçu une copie, il faudra prévenir le bureau et corriger le bilan avant "
            "l'assemblée générale."
        ),
    ),
    (
        "spanish",
        85,
        (
            "El servidor se reinicia cada noche a las tres, pero desde la semana pasada algunos servicios no "
            "vuelven a levantarse solos. He revisado los registros y parece que la base de datos tarda demasiado "
            "en aceptar conexiones, así que los demás procesos se rinden antes de tiempo. Lo más sencillo sería "
            "aumentar el número de reintentos, aunque también convendría averiguar por qué ahora el arranque es "
            "tan lento."
        ),
    ),
    (
        "polish",
        115,
        (
            "Wczoraj wieczorem sprawdziliśmy wszystkie połączenia w piwnicy i okazało się, że przyczyną zwarcia "
            "był stary przewód przy oświetleniu schodów. Elektryk wymienił go na nowy, ale zalecił również "
            "przegląd całej instalacji, ponieważ niektóre bezpieczniki mają już ponad trzydzieści lat. Koszt "
            "takiej kontroli nie jest wysoki, więc zarząd wspólnoty powinien podjąć decyzję jeszcze w tym miesiącu."
        ),
    ),
    (
        "turkish",
        84,
        (
            "Toplantıda alınan kararlara göre yeni sürümün yayınlanması iki hafta ertelendi. Kullanıcılardan gelen "
            "geri bildirimler, özellikle arama sonuçlarının yavaş yüklendiğini gösteriyor. Ekip önce bu sorunu "
            "çözmek, ardından kalan hataları önem sırasına göre düzeltmek istiyor. Belgelerin güncellenmesi de "
            "aynı süre içinde tamamlanacak."
        ),
    ),
    (
        "russian",
        82,
        (
            "Вчера мы наконец получили ответ от поставщика: оборудование отправят только в начале следующего "
            "месяца. Из-за этого придётся перенести запуск второй линии и заново согласовать график с "
            "подрядчиками. Начальник цеха предложил использовать это время для ремонта старого конвейера, который "
            "давно требует внимания. Если никто не возражает, работы можно начать уже в понедельник."
        ),
    ),
    (
        "chinese",
        93,
        (
            "昨天下午我们重新检查了仓库的温度记录，发现有两台传感器的数据明显不准确。维修人员说，问题可能出在电源线"
            "上，因为每次打雷之后读数都会突然升高。为了不影响下周的发货，我们决定先更换这两台设备，再把旧的送回厂家"
            "检测。如果结果证明是设计上的缺陷，就需要和供应商讨论赔偿的问题。"
        ),
    ),
    (
        "chinese traditional",
        89,
        (
            "這座圖書館是三十年前蓋的，當時附近還是一片稻田。現在每到週末，樓上的閱覽室總是坐滿了準備考試的學生，連"
            "走廊的長椅也找不到空位。館長希望明年能夠擴建，不過經費還沒有著落，只好先延長開放的時間。"
        ),
    ),
    (
        "japanese",
        102,
        (
            "先週の打ち合わせで決まったとおり、新しい画面の試作は来月の初めまでに完成させる予定です。ただし、利用者"
            "からの問い合わせが増えているので、まずは検索の不具合を直すことを優先してください。修正が終わったら、担"
            "当者に連絡して動作を確認してもらい、問題がなければ本番の環境に反映します。"
        ),
    ),
    (
        "korean",
        85,
        (
            "어제 저녁에 서버를 점검하다가 저장 공간이 거의 남지 않았다는 것을 알게 되었습니다. 오래된 기록을 "
            "지우면 당장은 해결되겠지만, 앞으로도 같은 일이 반복될 수 있으니 보관 기간을 줄이는 편이 좋겠습니다. "
            "담당자와 상의한 다음 이번 주 안에 설정을 바꾸려고 합니다. 다른 의견이 있으면 알려 주세요."
        ),
    ),
    (
        "hindi",
        82,
        (
            "कल शाम को गाँव की बैठक में यह तय हुआ कि पुराने कुएँ की मरम्मत बारिश से पहले पूरी कर ली जाएगी। इसके "
            "लिए हर परिवार थोड़ा पैसा देगा और जो लोग पैसा नहीं दे सकते, वे काम में हाथ बँटाएँगे। सरपंच ने कहा कि "
            "सामान की सूची अगले सोमवार तक तैयार हो जानी चाहिए, ताकि ठेकेदार समय पर काम शुरू कर सके।"
        ),
    ),
    (
        "arabic",
        66,
        (
            "اجتمع أعضاء اللجنة مساء أمس لمناقشة خطة العمل الجديدة، واتفقوا على تأجيل افتتاح المكتبة إلى بداية "
            "الشهر القادم. وقال المدير إن السبب الرئيسي هو تأخر وصول الكتب التي طلبتها المدرسة منذ الصيف. وسوف "
            "يحصل الطلاب على نسخة مؤقتة من المواد المطلوبة حتى لا تتأثر الدروس بهذا التأخير."
        ),
    ),
    (
        "hebrew",
        73,
        (
            "אתמול בערב בדקנו שוב את כל החשבונות ומצאנו שתי טעויות קטנות ברשימת ההוצאות. המנהלת ביקשה לתקן אותן "
            "לפני סוף השבוע ולשלוח עותק מעודכן לכל חברי הוועד. אם לא יהיו הערות נוספות, נוכל לסגור את השנה בזמן."
        ),
    ),
    (
        "thai",
        65,
        (
            "เมื่อวานนี้เราได้ตรวจสอบระบบสำรองข้อมูลอีกครั้ง และพบว่าไฟล์บางส่วนไม่ได้ถูกคัดลอกมาตั้งแต่เดือนที่แล้"
            "ว ผู้ดูแลระบบกำลังหาสาเหตุอยู่ ระหว่างนี้ขอให้ทุกคนเก็บงานสำคัญไว้ในเครื่องของตัวเองด้วย"
        ),
    ),
    (
        "bengali",
        55,
        (
            "গতকাল বিকেলে আমরা নতুন স্কুলের জায়গাটা দেখতে গিয়েছিলাম। রাস্তার কাজ এখনো শেষ হয়নি, তাই ভেতরে গাড়ি "
            "নিয়ে যাওয়া যায় না। প্রধান শিক্ষক বললেন, আগামী মাসের মধ্যে সব প্রস্তুত হয়ে যাবে।"
        ),
    ),
    (
        "vietnamese",
        67,
        (
            "Hôm qua chúng tôi đã kiểm tra lại toàn bộ hệ thống và phát hiện một lỗi nhỏ trong phần thanh toán. "
            "Lỗi này chỉ xảy ra khi khách hàng thay đổi địa chỉ sau khi đặt hàng, nên rất khó nhận ra. Nhóm phát "
            "triển sẽ sửa xong trước thứ sáu và thông báo cho mọi người."
        ),
    ),
    (
        "python",
        196,
        (
            "class Ledger:\n"
            '    """Keeps the balance of each account."""\n'
            "\n"
            "    def __init__(self, opening: dict[str, int] | None = None) -> None:\n"
            "        self._balances = defaultdict(int, opening or {})\n"
            "        self._entries: list[Entry] = []\n"
            "\n"
            "    def post(self, entry: Entry) -> None:\n"
            "        if sum(line.amount for line in entry.lines) != 0:\n"
            "            raise UnbalancedEntry(entry.reference)\n"
            "        for line in entry.lines:\n"
            "            self._balances[line.account] += line.amount\n"
            "        self._entries.append(entry)\n"
            "\n"
            "    def balance(self, account: str, *, as_of: date | None = None) -> int:\n"
            "        if as_of is None:\n"
            "            return self._balances[account]\n"
            "        return sum(\n"
            "            line.amount\n"
            "            for entry in self._entries\n"
            "            if entry.posted_on <= as_of\n"
            "            for line in entry.lines\n"
            "            if line.account == account\n"
            "        )\n"
        ),
    ),
    (
        "typescript",
        147,
        (
            "export async function loadProfile(userId: string, signal?: AbortSignal): Promise<Profile> {\n"
            "  const response = await fetch(`/api/users/${encodeURIComponent(userId)}`, { signal });\n"
            "  if (!response.ok) {\n"
            "    throw new HttpError(response.status, await response.text());\n"
            "  }\n"
            "  const { displayName, avatarUrl, roles = [] } = await response.json();\n"
            '  return { id: userId, displayName: displayName ?? "anonymous", avatarUrl, isAdmin: '
            'roles.includes("admin") };\n'
            "}\n"
            "\n"
            "const cache = new Map<string, Promise<Profile>>();\n"
            "export const cachedProfile = (id: string) => cache.get(id) ?? cache.set(id, "
            "loadProfile(id)).get(id)!;\n"
        ),
    ),
    (
        "c",
        138,
        (
            "static int ring_push(struct ring *r, const void *src, size_t len)\n"
            "{\n"
            "\tsize_t head = atomic_load_explicit(&r->head, memory_order_relaxed);\n"
            "\tsize_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);\n"
            "\n"
            "\tif (len > r->size - (head - tail))\n"
            "\t\treturn -EAGAIN;\n"
            "\tfor (size_t i = 0; i < len; i++)\n"
            "\t\tr->buf[(head + i) & r->mask] = ((const uint8_t *)src)[i];\n"
            "\tatomic_store_explicit(&r->head, head + len, memory_order_release);\n"
            "\treturn 0;\n"
            "}\n"
        ),
    ),
    (
        "sql",
        92,
        (
            "SELECT c.id, c.title, count(m.seq) AS messages, max(m.at) AS last_at\n"
            "FROM conversations AS c\n"
            "LEFT JOIN messages AS m ON m.conversation = c.key AND m.redacted_at IS NULL\n"
            "WHERE c.owner = :owner AND c.created_at >= :since\n"
            "GROUP BY c.id, c.title\n"
            "HAVING count(m.seq) > 10\n"
            "ORDER BY last_at DESC\n"
            "LIMIT 50 OFFSET :skip;\n"
        ),
    ),
    (
        "json compact",
        128,
        (
            '{"id":"ord_58213","status":"shipped","customer":{"name":"Mira '
            'Holt","email":"mira.holt@example.org","tags":["wholesale","eu"]},"items":[{"sku":"KT-1'
            '042-B","qty":3,"unit_price":1299,"currency":"EUR"},{"sku":"KT-2201","qty":1,"unit_pric'
            'e":449,"currency":"EUR"}],"shipping":{"method":"express","tracking":"JD014600003RU","e'
            'ta":"2025-03-18T16:00:00Z"},"total":4346,"paid":true,"notes":null}'
        ),
    ),
    (
        "json pretty",
        155,
        (
            "{\n"
            '  "name": "search_files",\n'
            '  "description": "Finds lines that match a pattern in the files below a folder.",\n'
            '  "parameters": {\n'
            '    "type": "object",\n'
            '    "properties": {\n'
            '      "pattern": {\n'
            '        "type": "string",\n'
            '        "description": "A regular expression."\n'
            "      },\n"
            '      "path": {\n'
            '        "type": "string",\n'
            '        "description": "Where to look; the working folder unless given."\n'
            "      },\n"
            '      "limit": {\n'
            '        "type": "integer",\n'
            '        "minimum": 1,\n'
            '        "maximum": 500,\n'
            '        "default": 50\n'
            "      }\n"
            "    },\n"
            '    "required": [\n'
            '      "pattern"\n'
            "    ],\n"
            '    "additionalProperties": false\n'
            "  }\n"
            "}"
        ),
    ),
    (
        "log",
        225,
        (
            "2025-03-14 09:21:07,482 INFO  [worker-3] queue.consumer: picked up job 88213 (attempt 1/5) after "
            "0.042s\n"
            "2025-03-14 09:21:07,519 DEBUG [worker-3] http.client: POST https://api.internal:8443/v2/invoices 201 "
            "in 31.7ms\n"
            "2025-03-14 09:21:08,003 WARN  [worker-1] db.pool: connection 0x7f3a9c01d2e0 was idle for 304s, "
            "reopening\n"
            "2025-03-14 09:21:08,114 ERROR [worker-1] queue.consumer: job 88209 failed: TimeoutError: no answer "
            "from 10.24.7.18:5432 within 5000ms\n"
            "2025-03-14 09:21:08,115 INFO  [worker-1] queue.consumer: job 88209 goes back, next attempt in 16s"
        ),
    ),
    (
        "access log",
        190,
        (
            '203.0.113.77 - - [14/Mar/2025:09:22:41 +0000] "GET /assets/app.3f9c1b.js HTTP/1.1" 200 184213 '
            '"https://shop.example.com/" "Mozilla/5.0 (X11; Linux x86_64; rv:124.0) Gecko/20100101 '
            'Firefox/124.0"\n'
            '198.51.100.9 - mira [14/Mar/2025:09:22:43 +0000] "POST /api/cart/items?ref=mail HTTP/2.0" 422 118 '
            '"-" "okhttp/4.12.0"\n'
            '203.0.113.77 - - [14/Mar/2025:09:22:44 +0000] "GET /favicon.ico HTTP/1.1" 304 0 "-" "-"'
        ),
    ),
    (
        "traceback",
        145,
        (
            "Traceback (most recent call last):\n"
            '  File "/srv/app/billing/run.py", line 214, in <module>\n'
            "    main(sys.argv[1:])\n"
            '  File "/srv/app/billing/run.py", line 187, in main\n'
            "    report = build_report(load_entries(options.source), options.month)\n"
            '  File "/srv/app/billing/entries.py", line 52, in load_entries\n'
            '    return [Entry.parse(row) for row in csv.DictReader(handle, delimiter=";")]\n'
            '  File "/srv/app/billing/entries.py", line 31, in parse\n'
            '    amount=Decimal(row["amount"].replace(",", ".")),\n'
            "decimal.InvalidOperation: [<class 'decimal.ConversionSyntax'>]\n"
        ),
    ),
    (
        "listing",
        220,
        (
            "total 148\n"
            "drwxr-xr-x  9 deploy staff   4096 Mar 14 09:20 .\n"
            "drwxr-xr-x 22 deploy staff   4096 Feb 27 18:03 ..\n"
            "-rw-r--r--  1 deploy staff    812 Mar  2 11:47 .gitignore\n"
            "-rw-r--r--  1 deploy staff  11357 Jan 19 08:12 LICENSE\n"
            "-rw-r--r--  1 deploy staff   2240 Mar 13 22:58 Makefile\n"
            "-rw-r--r--  1 deploy staff   6021 Mar 14 09:01 README.md\n"
            "drwxr-xr-x  4 deploy staff   4096 Mar 11 14:36 docs\n"
            "-rwxr-xr-x  1 deploy staff  70416 Mar 14 09:19 ledger\n"
            "drwxr-xr-x  6 deploy staff   4096 Mar 14 09:18 src"
        ),
    ),
    (
        "diff",
        162,
        (
            "diff --git a/src/pool.py b/src/pool.py\n"
            "index 8b1f0ad..e27c9d4 100644\n"
            "--- a/src/pool.py\n"
            "+++ b/src/pool.py\n"
            "@@ -41,9 +41,12 @@ class Pool:\n"
            "     def take(self, timeout: float = 5.0) -> Connection:\n"
            "-        conn = self._free.get(timeout=timeout)\n"
            "-        if conn.idle > self.max_idle:\n"
            "-            conn.reopen()\n"
            "-        return conn\n"
            "+        deadline = self._clock() + timeout\n"
            "+        while True:\n"
            "+            conn = self._free.get(timeout=deadline - self._clock())\n"
            "+            if conn.alive():\n"
            "+                return conn\n"
            "+            self._forget(conn)\n"
        ),
    ),
    (
        "markdown",
        139,
        (
            "# Moving to version 3\n"
            "\n"
            "Version 3 drops the old `settings.ini`. **Read this before you upgrade.**\n"
            "\n"
            "1. Run `ledger config export > ledger.toml` with the *old* version.\n"
            '2. Install the new one: `pip install --upgrade "ledger>=3"`.\n'
            "3. Check the result with `ledger doctor --strict`.\n"
            "\n"
            "| setting | before | now |\n"
            "|---|---|---|\n"
            "| `cache_dir` | `~/.ledger` | see [paths](docs/paths.md#cache) |\n"
            "| `timeout` | 30 s | 10 s |\n"
            "\n"
            "> Imports of `ledger.compat` still work, but warn once.\n"
        ),
    ),
    (
        "html",
        164,
        (
            '<section class="card card--wide" id="latest">\n'
            '  <h2 class="card__title">Latest orders</h2>\n'
            '  <ul class="orders">\n'
            '    <li class="orders__item is-late"><a href="/orders/58213">#58213</a> <span>Mira Holt</span> '
            '<time datetime="2025-03-14">14 Mar</time></li>\n'
            '    <li class="orders__item"><a href="/orders/58214">#58214</a> <span>Tom Becker</span> <time '
            'datetime="2025-03-15">15 Mar</time></li>\n'
            "  </ul>\n"
            '  <button type="button" disabled aria-label="Load more">More&hellip;</button>\n'
            "</section>"
        ),
    ),
    (
        "base64",
        298,
        (
            "OLTmUuRNp/I3DZ4mDicTZVCko6bQf1wMMy+LEiQIP9IrkC+JEegYGPjJnV1dmDGVdQTZDpRd4uj1TueBzHX2NthQmQlaowAWWmcDb5"
            "tUDWuPC+IRJBecPdn3OBfObhGNJkqtbLbdIQ+vlKzTz5LBkCN8sR9dEIzyWTAmOTizcKG1dp+g8Ug/lakNnfLxMNYPzwS9k/UK5pUU"
            "2oxlnOKxDMza6/mQ0Zg4sNfsCz6XgY7LlsTbrb4XIpbVI0pCskxrpObtJOxjaorAoSceWGYnkjiq+E5YBW2PL6jt0JS6l66LFUQu4t"
            "thGpG/45RpczqSR9WPo8VQGDADclVf0jXxGCn7OIwi5Ey2N/ASEMNwepC0BUIPsWl3nt+1uTQkBRV/VLEurmLRHoh+sHZtGHf4xu/y"
            "a1AQrzF30WHnlYenZuww5AN0WKmQXL1M"
        ),
    ),
    (
        "hex",
        210,
        (
            "77e2983f27745ccb9a31052e944cf1b220eaa2c7fb1b7d3e3f73f414af6e0d93  part-000.tar\n"
            "5520dd4c2147738606f2bf7ec70209e0cd05ee5720edbcba3acce672084ab649  part-001.tar\n"
            "fcbce49b38bdecface4abd12108f391ebc070e83e8180a6bd4f43a2afffcd3c1  part-002.tar\n"
            "2ef890575575e826e2cbeaee82af2c7d696cf46b977c090af4e146f6d03110ab  part-003.tar\n"
            "86efde139eeabac37a0dde8ef2d3b1925e1302ca57501fe0ca9a7fd1ccc15150  part-004.tar"
        ),
    ),
    (
        "uuids",
        189,
        (
            "42421257-8fe0-4eb1-bb4a-a559cd9f2898\n"
            "4b14267f-1b03-4494-9d1c-01cc6adfc974\n"
            "d1729a11-fe20-48d7-b7e8-f517d69ed6f1\n"
            "81bd1a45-2982-4e79-8559-71b21ae105aa\n"
            "b2d6a310-0b08-480f-8f42-2dbb36fb94b3\n"
            "cb6d424f-813c-4aa5-b348-f4930b893bfe\n"
            "338f65ae-a5a9-49d2-b083-1572af40db48\n"
            "52eb74b7-4f3a-4362-8812-15e31ed32cab"
        ),
    ),
    (
        "numbers",
        142,
        (
            "date;station;temp;wind;rain\n"
            "2025-03-01;1004;7.25;13.4;0.0\n"
            "2025-03-02;1004;6.81;22.9;4.75\n"
            "2025-03-03;1004;9.02;8.1;0.2\n"
            "2025-03-04;1017;10.44;5.6;0.0\n"
            "2025-03-05;1017;12.13;31.7;18.35\n"
            "2025-03-06;1017;11.96;27.5;1258.9"
        ),
    ),
    (
        "emoji",
        64,
        (
            "Party tonight! 🎉🎊🥳 Bring snacks 🍕🍟🌮, music 🎸🎶 and your dog 🐶❤️ if you can. See you at 8 "
            "👋🏽😄 (rain ☔️ or shine ☀️). Last time was amazing 😂😂😂🔥"
        ),
    ),
    (
        "latex",
        117,
        (
            "\\begin{equation}\\label{eq:energy}\n"
            "  E_{n} = -\\frac{m e^{4}}{8 \\varepsilon_0^{2} h^{2}} \\cdot \\frac{1}{n^{2}}, \\qquad n = 1, 2, 3, "
            "\\dots\n"
            "\\end{equation}\n"
            "As \\eqref{eq:energy} shows, $\\lim_{n \\to \\infty} E_n = 0$ and the spacing $\\Delta E \\propto "
            "n^{-3}$."
        ),
    ),
)
