"""What all tests share: how thorough the property tests are.

`HOLDFAST_TEST_PROFILE=chaos` lets every property test look for new examples and for far longer than the
few seconds it has in an ordinary run, which always tries the same ones.
"""

from __future__ import annotations

import os

import hypothesis

_COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
}

hypothesis.settings.register_profile("quick", derandomize=True, max_examples=60, stateful_step_count=30, **_COMMON)
hypothesis.settings.register_profile("chaos", max_examples=3000, stateful_step_count=80, print_blob=True, **_COMMON)
hypothesis.settings.load_profile(os.environ.get("HOLDFAST_TEST_PROFILE", "quick"))
