"""The policy of the window, and the budget of attempts: every limit holds, and every wait ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors
from holdfast.compaction import budget as budgets
from holdfast.compaction import policy
from holdfast.compaction.base import Outcome

NOW = 1_790_000_000.0
YEAR = 365 * 86_400.0
POLICY = policy.CompactionPolicy()
FRESH = budgets.Budget()


def begin(budget: budgets.Budget, now: float = NOW, **how: Any) -> budgets.Budget:
    decision = budgets.begin_attempt(budget, POLICY, now, **how)
    assert isinstance(decision, budgets.Budget), decision
    return decision


def refuse(budget: budgets.Budget, now: float = NOW) -> tuple[Outcome, float | None]:
    decision = budgets.begin_attempt(budget, POLICY, now)
    assert isinstance(decision, budgets.Refusal), decision
    return decision.outcome, decision.seconds


def failed(times: int, now: float = NOW) -> budgets.Budget:
    budget = FRESH
    for _ in range(times):
        budget = budgets.record_failure(budget, POLICY, now)
    return budget


def compacted(times: int, now: float = NOW, apart: float = 1.0) -> budgets.Budget:
    """Return a budget after this many compactions, the last of them now."""
    budget = FRESH
    for number in reversed(range(times)):
        budget = budgets.record_success(budget, now - number * apart)
    return budget


@pytest.mark.parametrize(("window", "expected"), [(8_000, 1_000), (65_536, 8_192), (1_000_000, 8_192)])
def test_an_eighth_of_the_window_is_reserved_for_the_reply_up_to_a_limit(window: int, expected: int) -> None:
    assert POLICY.reserved(window) == expected
    assert policy.CompactionPolicy(reserved_output=500).reserved(window) == 500


@pytest.mark.parametrize(
    ("reserved", "fixed", "part"),
    [
        (9_000, (600, 500), "the reserved output"),
        (1_000, (8_700, 0), "the system prompt"),
        (1_000, (300, 8_250), "the tools"),
    ],
)
def test_largest_part_is_named_when_nothing_is_left_for_messages(
    reserved: int, fixed: tuple[int, int], part: str
) -> None:
    with pytest.raises(errors.NoRoom, match=part) as raised:
        policy.usable_tokens(10_000, reserved, *fixed)
    assert (raised.value.part, raised.value.window) == (part, 10_000)
    assert raised.value.tokens == max(reserved, *fixed)
    assert policy.usable_tokens(10_000, 1_000, system=700, tools=300) == 8_000


@pytest.mark.parametrize(
    "wrong",
    [{"soft": 0.0}, {"soft": 0.95}, {"hard": 1.1}, {"soft": float("nan")}, {"tail": 0.6}, {"tail": -0.1},
     {"summary": -0.1}, {"least_shrink": 1.0}, {"an_hour": 0}, {"an_hour": policy.MAX_PER_HOUR + 1},
     {"cooldowns": (30.0, -1.0)}, {"cooldowns": (float("inf"),)}, {"cooldowns": ()}, {"cooldowns": (30.0, 0.0)},
     {"deadline": 0.0}, {"reserved_output": -1}],
    ids=str,
)  # fmt: skip
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.SettingInvalid):
        policy.CompactionPolicy(**wrong)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"sofd": 0.5}, policy.CompactionPolicy)


@pytest.mark.parametrize(("failures", "wait"), [(1, 30.0), (2, 120.0), (3, 600.0), (50, 600.0)])
def test_cooldown_grows_with_each_failure_up_to_the_last(failures: int, wait: float) -> None:
    budget = failed(failures)
    assert refuse(budget) == (Outcome.COOLING_DOWN, wait)
    assert refuse(budget, NOW + wait - 1) == (Outcome.COOLING_DOWN, 1.0)
    assert begin(budget, NOW + wait).begun == NOW + wait
    # A cooldown is never reported as exhaustion.
    assert refuse(msgspec.structs.replace(budget, recent=(NOW,) * 9)) == (Outcome.COOLING_DOWN, wait)


def test_success_resets_failures_and_manual_compactions_count() -> None:
    budget = budgets.record_success(begin(failed(3), NOW + 600), NOW + 610)
    assert (budget.failures, budget.cool_until, budget.begun, budget.recent) == (0, 0.0, 0.0, (NOW + 610,))
    assert budgets.record_failure(budget, POLICY, NOW + 700).cool_until == NOW + 730
    budget = FRESH
    for number in range(POLICY.an_hour):
        budget = budgets.record_success(begin(budget, NOW + number, force=True), NOW + number)
    assert refuse(budget, NOW + 10)[0] is Outcome.EXHAUSTED


@pytest.mark.parametrize(
    "budget", [failed(3), compacted(20), budgets.Budget(begun=NOW - 1)], ids=["cooling", "frequent", "one just died"]
)
def test_manual_command_ignores_cooldown_and_limits(budget: budgets.Budget) -> None:
    assert refuse(budget)
    assert begin(budget, force=True)


def test_attempt_of_a_dead_process_counts_as_a_failure() -> None:
    died = begin(FRESH)
    assert refuse(died, NOW + 10) == (Outcome.COOLING_DOWN, 20.0)
    assert begin(died, NOW + 30).failures == 1
    assert budgets.close_attempt(died) == budgets.Budget()
    budget, tries = FRESH, 0
    for second in range(3_600):
        decision = budgets.begin_attempt(budget, POLICY, NOW + second)
        if isinstance(decision, budgets.Budget):
            budget, tries = decision, tries + 1
    assert tries == 8  # At 0, 30, 150, 750, and then every ten minutes.


@pytest.mark.parametrize(
    "budget",
    [failed(4, NOW + YEAR), compacted(20, NOW + YEAR), budgets.Budget(begun=NOW + YEAR)],
    ids=["cooling", "frequent", "begun"],
)
def test_clock_that_was_set_back_makes_no_attempt_wait(budget: budgets.Budget) -> None:
    assert begin(budget)


def test_stored_budget_of_an_older_version_is_read_and_an_invalid_one_counts_as_none() -> None:
    assert budgets.parse({"failures": 2, "attempts": 1, "turn": "t"}) == budgets.Budget(failures=2)
    assert budgets.parse({"failures": "many"}) == budgets.parse({"recent": 7}) == FRESH


ENDINGS = st.sampled_from(["succeeded", "failed", "died", "lost"])


@given(st.lists(st.tuples(st.floats(0.0, 1_500.0), ENDINGS), min_size=1, max_size=60))
def test_limits_hold_and_every_wait_ends_for_any_attempts(script: list[tuple[float, str]]) -> None:
    budget, now = FRESH, NOW
    made: list[float] = []
    for passed, ending in script:
        now += passed
        decision = budgets.begin_attempt(budget, POLICY, now)
        if isinstance(decision, budgets.Refusal):
            longest = POLICY.cooldowns[-1] if decision.outcome is Outcome.COOLING_DOWN else policy.HOUR
            assert 0 < decision.seconds <= longest
            continue
        assert len([at for at in made if at > now - policy.HOUR]) < POLICY.an_hour
        budget = budgets.parse(msgspec.json.decode(msgspec.json.encode(decision)))
        if ending == "succeeded":
            budget = budgets.record_success(budget, now)
            made.append(now)
            assert len(budget.recent) <= policy.MAX_PER_HOUR
        elif ending == "failed":
            budget = budgets.record_failure(budget, POLICY, now)
        elif ending == "lost":
            budget = budgets.close_attempt(budget)
    assert isinstance(budgets.begin_attempt(budget, POLICY, now + policy.HOUR), budgets.Budget)
