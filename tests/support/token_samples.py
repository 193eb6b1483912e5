"""Texts of the kinds a conversation has, and how many tokens the o200k tables make of each.

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
        "emoji",
        64,
        (
            "Party tonight! 🎉🎊🥳 Bring snacks 🍕🍟🌮, music 🎸🎶 and your dog 🐶❤️ if you can. See you at 8 "
            "👋🏽😄 (rain ☔️ or shine ☀️). Last time was amazing 😂😂😂🔥"
        ),
    ),
)
