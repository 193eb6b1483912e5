"""Killed anywhere between receipt and delivery, a gateway leaves what the next one finishes: nothing is lost or twice.

Three kills at every step of the gateway and one at every point of the store in between (HOLDFAST_KILLS sets another
number for both), on both databases, in several chats at once, each at one of the first times a process comes there.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.faults import gateway_stories, gateways
from tests.faults import zygote as zygotes
from tests.support import backends

KILLS = int(os.environ.get("HOLDFAST_KILLS") or 0)
SEED = os.environ.get("HOLDFAST_SEED") or "gateway"

both = pytest.mark.parametrize("backend", backends.SHARED, ids=lambda backend: backend.name)


def story_of(zygote: zygotes.Zygote, backend: backends.Backend, place: Path, about: str) -> gateway_stories.Story:
    seed = f"{SEED} {backend.name} {about}"
    print(f"seed {seed}")
    return gateway_stories.Story(zygote, backend.target(place, "store"), place / "sends", random.Random(seed))


@both
@pytest.mark.parametrize("step", gateways.POINTS)
def test_killed_at_any_step_the_next_one_finishes_what_is_open_and_repeats_nothing(
    step: str, backend: backends.Backend, zygote: zygotes.Zygote, place: Path
) -> None:
    story = story_of(zygote, backend, place, step)
    kills = KILLS or 3
    assert gateway_stories.kill_at(story, f"gateway.{step}", kills, len(gateway_stories.NAMES)) == kills
    story.live()
    assert story.wrongs() == []


@both
def test_killed_at_any_point_of_the_store_in_between_the_next_one_does_so_too(
    backend: backends.Backend, zygote: zygotes.Zygote, place: Path
) -> None:
    story = story_of(zygote, backend, place, "store")
    died = set(gateway_stories.kill_everywhere(story, KILLS or 1))
    story.live()
    assert story.wrongs() == []
    # Each of these is a transaction, with something to die at before, within and behind it.
    assert died >= {f"{each}.{when}" for each in gateways.OPERATIONS for when in ("begun", "committing", "committed")}
    assert died >= {
        "arrive.arrival_insert",
        "settle.arrival_settle",
        "settle.reply_insert",
        "settle.claim_release_settled",
    }
    assert died >= {"append.route_insert", "append.message_insert", "delivered.outgoing_delivered"}
