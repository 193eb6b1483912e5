"""The fault machinery notices every broken version of the store, and finds nothing wrong with the unbroken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import mutations, scenarios
from tests.support import postgres

MUTATIONS = [("sqlite", each) for each in mutations.SQLITE] + [("postgres", each) for each in mutations.POSTGRES]


def _mutation(dialect: str, name: str) -> mutations.Mutation:
    return (mutations.SQLITE if dialect == "sqlite" else mutations.POSTGRES)[name]


# Interleavings, overlaps and lost answers have tests of their own that play them on the unbroken store.
SCENARIOS = sorted(
    {
        (dialect, mutation.scenario, mutation.without_triggers)
        for dialect, name in MUTATIONS
        if (mutation := _mutation(dialect, name)).scenario in ("watching", *scenarios.SCENARIOS)
    }
)


def _target(dialect: str, folder: Path) -> str:
    return postgres.fresh() if dialect == "postgres" else str(folder / "store.db")


@pytest.mark.parametrize(("dialect", "name"), MUTATIONS)
def test_mutation_is_noticed(dialect: str, name: str, place: Path) -> None:
    mutation = _mutation(dialect, name)
    functions = [each for each in mutation.changes if isinstance(each, mutations.Function)]
    with mutations.apply(mutation.changes):
        found = scenarios.play(mutation.scenario, _target(dialect, place), mutation.without_triggers, functions)
    print(f"{name}: {found[:1]}")
    assert found


@pytest.mark.parametrize(("dialect", "scenario", "without_triggers"), SCENARIOS)
def test_unbroken_store_is_sound_in_the_same_scenario(
    dialect: str, scenario: str, without_triggers: tuple[str, ...], place: Path
) -> None:
    assert scenarios.play(scenario, _target(dialect, place), without_triggers, ()) == []
