"""A damaged file deceives nobody, hangs nobody and crashes nobody; what is left of it can be salvaged.

A hundred trials: flipped bits, pages swapped, zeroed and overwritten, files cut short, logs of noise.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import wreckage
from tests.faults import zygote as zygotes


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_never_read_as_something_else_and_never_salvaged_as_it(
    seed: int, zygote: zygotes.Zygote, place: Path
) -> None:
    assert wreckage.trials(wreckage.Bench(place), zygote, seed, 25) == []
