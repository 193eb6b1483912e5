"""The machinery that finds nothing wrong with the store does find what is wrong with broken ones.

Each mutant breaks the protocol in one place. The scene it is played in must notice; played without it,
with the same triggers gone, the scene must find nothing.
"""

from __future__ import annotations

import pytest

from tests.faults import mutants, mutants_mail, scenes

MUTANTS = mutants.MUTANTS | mutants_mail.MUTANTS
SETTINGS = sorted({(mutant.scene, mutant.without_triggers) for mutant in MUTANTS.values()})


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= 15


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_noticed(name: str) -> None:
    mutant = MUTANTS[name]
    with mutants.changed(mutant.changes):
        found = scenes.play(mutant.scene, mutant.without_triggers)
    print(f"{name}: {found[:1]}")
    assert found


@pytest.mark.parametrize(("scene", "without_triggers"), SETTINGS)
def test_unbroken_store_is_found_sound_in_the_same_scene(scene: str, without_triggers: tuple[str, ...]) -> None:
    assert scenes.play(scene, without_triggers) == []
