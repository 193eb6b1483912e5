"""A pool of workers on PostgreSQL: turns of one chat never overlap, and a repeated job is answered once."""

import os
from concurrent.futures import ThreadPoolExecutor  # processes do as well

from holdfast import AIAgent, SessionDB

DSN = os.environ["DATABASE_URL"]


def work(job: int) -> str:
    agent = AIAgent("openai/gpt-5", db=DSN, session_id=f"chat {job % 3}")
    return agent.run_sync(f"Question {job}", uid=f"job {job}").exit_reason


with ThreadPoolExecutor(4) as workers, SessionDB(DSN) as db:
    print(set(workers.map(work, [*range(6), *range(6)])))
    print([len(db.transcript(f"chat {number}")) for number in range(3)], "messages")
