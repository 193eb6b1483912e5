"""The policy: when the window presses, and how often it is tried. Every limit holds, and every wait ends."""

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
POLICY = policy.CompactionPolicy()
FRESH = budgets.Budget()


def begun(budget: budgets.Budget, now: float = NOW, **how: Any) -> budgets.Budget:
    decision = budgets.begin_attempt(budget, POLICY, now, **how)
    assert isinstance(decision, budgets.Budget), decision
    return decision


def cooling_for(decision: budgets.Budget | budgets.Refusal) -> float | None:
    assert isinstance(decision, budgets.Refusal), decision
    assert decision.outcome is Outcome.COOLING_DOWN
    return decision.seconds


def is_exhausted(decision: budgets.Budget | budgets.Refusal) -> bool:
    return isinstance(decision, budgets.Refusal) and decision.outcome is Outcome.EXHAUSTED


def failing(times: int, now: float = NOW) -> budgets.Budget:
    budget = FRESH
    for _ in range(times):
        budget = budgets.record_failure(budget, POLICY, now)
    return budget


def compacted(times: int, now: float = NOW, apart: float = 1.0) -> budgets.Budget:
    """So many compactions, the last of them now."""
    budget = FRESH
    for number in reversed(range(times)):
        budget = budgets.record_success(budget, now - number * apart)
    return budget


# --- how full the window is ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "expected"), [(8_000, 1_000), (65_536, 8_192), (200_000, 8_192), (1_000_000, 8_192)]
)
def test_an_eighth_is_kept_for_the_reply_and_no_more_than_is_sensible(window: int, expected: int) -> None:
    assert POLICY.reserved(window) == expected
    assert policy.CompactionPolicy(reserved_output=500).reserved(window) == 500


def test_usable_is_what_reply_prompt_and_tools_leave() -> None:
    assert policy.usable_tokens(10_000, 1_000, system=700, tools=300) == 8_000


@pytest.mark.parametrize(
    ("reserved", "floor", "part"),
    [
        (9_000, (600, 500), "the reserved output"),
        (1_000, (8_700, 0), "the system prompt"),
        (1_000, (300, 8_900), "the tools"),
        (1_000, (300, 8_250), "the tools"),
        (0, (10_000, 0), "the system prompt"),
    ],
)
def test_floor_that_leaves_no_room_is_refused_and_the_biggest_part_named(
    reserved: int, floor: tuple[int, int], part: str
) -> None:
    with pytest.raises(errors.NoRoom, match=part) as raised:
        policy.usable_tokens(10_000, reserved, *floor)
    assert (raised.value.part, raised.value.window) == (part, 10_000)
    assert raised.value.tokens == max(reserved, *floor)


@pytest.mark.parametrize(
    "wrong",
    [
        {"soft": 0.0},
        {"soft": 0.95},
        {"hard": 1.1},
        {"soft": float("nan")},
        {"tail": 0.6},
        {"tail": -0.1},
        {"summary": -0.1},
        {"least_shrink": 1.0},
        {"an_hour": 0},
        {"an_hour": policy.MAX_PER_HOUR + 1},
        {"cooldowns": (30.0, -1.0)},
        {"cooldowns": (float("inf"),)},
        {"cooldowns": ()},
        {"cooldowns": (0.0,)},
        {"cooldowns": (30.0, 0.0)},
        {"deadline": 0.0},
        {"reserved_output": -1},
    ],
    ids=str,
)
def test_settings_that_could_not_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.SettingInvalid):
        policy.CompactionPolicy(**wrong)


def test_settings_are_read_strictly() -> None:
    assert msgspec.convert({"soft": 0.5}, policy.CompactionPolicy).soft == 0.5
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"sofd": 0.5}, policy.CompactionPolicy)


# --- how often it is tried -------------------------------------------------------------------------------


@pytest.mark.parametrize(("failures", "wait"), [(1, 30.0), (2, 120.0), (3, 600.0), (4, 600.0), (50, 600.0)])
def test_each_failure_cools_down_longer_up_to_the_last(failures: int, wait: float) -> None:
    budget = failing(failures)
    assert cooling_for(budgets.begin_attempt(budget, POLICY, NOW)) == wait
    assert cooling_for(budgets.begin_attempt(budget, POLICY, NOW + wait - 1)) == 1.0
    begun(budget, NOW + wait)


def test_cool_down_is_never_told_as_exhaustion() -> None:
    spent = msgspec.structs.replace(failing(1), recent=(NOW,) * 9)
    assert cooling_for(budgets.begin_attempt(spent, POLICY, NOW))


def test_seventh_compaction_within_an_hour_is_refused_until_the_first_is_an_hour_old() -> None:
    budget = compacted(POLICY.an_hour, apart=60.0)
    refused = budgets.begin_attempt(budget, POLICY, NOW)
    assert isinstance(refused, budgets.Refusal)
    assert is_exhausted(refused)
    assert refused.seconds == policy.HOUR - 300.0
    assert "55 min" in refused.reason
    begun(budget, NOW + refused.seconds)
    begun(compacted(POLICY.an_hour - 1), NOW)


def test_after_many_manual_compactions_the_wait_is_until_few_enough_are_left() -> None:
    budget = compacted(20, apart=60.0)
    refused = budgets.begin_attempt(budget, POLICY, NOW)
    assert isinstance(refused, budgets.Refusal)
    assert is_exhausted(refused)
    assert refused.seconds is not None
    assert is_exhausted(budgets.begin_attempt(budget, POLICY, NOW + refused.seconds - 1))
    begun(budget, NOW + refused.seconds)


def test_success_forgets_failures() -> None:
    budget = budgets.record_success(begun(failing(3), NOW + 600), NOW + 610)
    assert (budget.failures, budget.cool_until, budget.begun, budget.recent) == (0, 0.0, 0.0, (NOW + 610,))
    assert budgets.record_failure(budget, POLICY, NOW + 700).cool_until == NOW + 730


@pytest.mark.parametrize(
    "budget",
    [failing(3), compacted(20), budgets.Budget(begun=NOW - 1)],
    ids=["cooling", "frequent", "one just died"],
)
def test_manual_command_passes_cool_down_frequency_and_attempts(budget: budgets.Budget) -> None:
    assert not isinstance(budgets.begin_attempt(budget, POLICY, NOW), budgets.Budget)
    begun(budget, force=True)


def test_manual_compactions_count_to_the_hour() -> None:
    budget = FRESH
    for number in range(POLICY.an_hour):
        budget = budgets.record_success(begun(budget, NOW + number, force=True), NOW + number)
    assert is_exhausted(budgets.begin_attempt(budget, POLICY, NOW + 10))


def test_attempt_whose_process_died_counts_as_a_failure_of_its_time() -> None:
    died = begun(FRESH)
    assert cooling_for(budgets.begin_attempt(died, POLICY, NOW + 10)) == 20.0
    assert begun(died, NOW + 30).failures == 1


def test_processes_that_die_in_every_attempt_try_ever_more_rarely() -> None:
    budget, tries = FRESH, 0
    for second in range(3_600):
        decision = budgets.begin_attempt(budget, POLICY, NOW + second)
        if isinstance(decision, budgets.Budget):
            budget, tries = decision, tries + 1
    assert tries == 8  # at 0, 30, 150, 750, then every ten minutes


def test_attempt_that_lost_to_another_is_no_failure() -> None:
    assert budgets.close_attempt(begun(FRESH)) == budgets.Budget()


YEAR = 365 * 86_400.0


@pytest.mark.parametrize(
    "budget",
    [failing(4, NOW + YEAR), compacted(20, NOW + YEAR), budgets.Budget(begun=NOW + YEAR)],
    ids=["cooling", "frequent", "begun"],
)
def test_clock_set_back_makes_nobody_wait(budget: budgets.Budget) -> None:
    begun(budget)


def test_clocks_of_two_hosts_may_differ_a_little() -> None:
    assert cooling_for(budgets.begin_attempt(failing(1, NOW + 5), POLICY, NOW)) == 35.0
    assert is_exhausted(budgets.begin_attempt(compacted(6, NOW + 5), POLICY, NOW))


# --- the row ---------------------------------------------------------------------------------------------


def test_budget_survives_its_row() -> None:
    budget = begun(compacted(3))
    assert budgets.parse(msgspec.json.decode(msgspec.json.encode(budget))) == budget
    assert budgets.parse({}) == FRESH
    assert msgspec.to_builtins(FRESH) == {}


@pytest.mark.parametrize("body", [{"failures": "many"}, {"recent": 7}, {"cool_until": None}], ids=str)
def test_row_that_makes_no_sense_counts_as_none(body: dict[str, Any]) -> None:
    assert budgets.parse(body) == FRESH


def test_row_stays_small_however_often_people_compact() -> None:
    budget = compacted(3_000, apart=1.0)
    assert len(budget.recent) == policy.MAX_PER_HOUR
    assert budget.recent[-1] == NOW


# --- for any sequence of attempts ------------------------------------------------------------------------

endings = st.sampled_from(["succeeded", "failed", "died", "lost"])
attempts = st.lists(
    st.tuples(st.floats(0.0, 1_500.0), endings, st.sampled_from(["a", "b", None])), min_size=1, max_size=60
)


def ended(budget: budgets.Budget, ending: str, now: float) -> budgets.Budget:
    if ending == "succeeded":
        return budgets.record_success(budget, now)
    if ending == "failed":
        return budgets.record_failure(budget, POLICY, now)
    return budgets.close_attempt(budget) if ending == "lost" else budget


@given(attempts)
def test_for_any_attempts_limits_hold_and_every_wait_ends(script: list[tuple[float, str, str | None]]) -> None:
    budget, now = FRESH, NOW
    made: list[float] = []
    for passed, ending, _ in script:
        now += passed
        decision = budgets.begin_attempt(budget, POLICY, now)
        match decision:
            case budgets.Budget() as counted:
                assert len([at for at in made if at > now - policy.HOUR]) < POLICY.an_hour
                budget = ended(budgets.parse(msgspec.json.decode(msgspec.json.encode(counted))), ending, now)
                made += [now] if ending == "succeeded" else []
            case budgets.Refusal(Outcome.COOLING_DOWN, _, seconds):
                assert seconds is not None
                assert 0 < seconds <= POLICY.cooldowns[-1]
            case budgets.Refusal(_, _, seconds):
                assert seconds is None or 0 < seconds <= policy.HOUR
    assert isinstance(budgets.begin_attempt(budget, POLICY, now + policy.HOUR), budgets.Budget)
