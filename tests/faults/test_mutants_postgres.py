"""What finds nothing wrong with the store on PostgreSQL does find what is wrong with broken ones."""

from __future__ import annotations

import pytest

from tests.faults import mutants, mutants_postgres, scenes_postgres

MUTANTS = mutants_postgres.MUTANTS
SETTINGS = sorted({(mutant.scene, mutant.without_triggers) for mutant in MUTANTS.values()})


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_noticed(name: str) -> None:
    mutant = MUTANTS[name]
    with mutants.changed(mutant.outside):
        found = scenes_postgres.play(mutant.scene, mutant.inside, mutant.without_triggers)
    print(f"{name}: {found[:1]}")
    assert found


@pytest.mark.parametrize(("scene", "without_triggers"), SETTINGS)
def test_unbroken_store_is_found_sound_in_the_same_scene(scene: str, without_triggers: tuple[str, ...]) -> None:
    assert scenes_postgres.play(scene, (), without_triggers) == []


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= 15
