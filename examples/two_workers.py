"""Two workers write to one conversation, and both want to compact it: nothing is lost, nothing forks."""

from concurrent.futures import ThreadPoolExecutor  # processes do as well
from contextlib import suppress

from holdfast import SessionDB, errors


def work(name: str) -> None:
    with SessionDB("chat/chat.db") as db, suppress(errors.Busy):  # Busy: the other one is at it
        for number in range(50):
            db.append_message("talk", role="user", content=f"{name} {number}")
        lease = db.acquire_lease("talk", "compact")
        db.commit_compaction(lease, summary=f"Summed up by {name}.", cut_seq=lease.snapshot.last_seq)


with SessionDB("chat/chat.db") as db, ThreadPoolExecutor(2) as workers:
    db.create_session("talk", source="example")
    list(workers.map(work, ("Ann", "Bob")))
    print(len(db.transcript("talk")), "messages; all promises kept:", db.admin.fsck().ok)
