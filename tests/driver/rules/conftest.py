"""What these tests share: they compare the rules with Spark's own plans, which owe the rules nothing."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def only_stages_of_spark(request: pytest.FixtureRequest) -> None:
    """Nothing is applied in columns where there is a session: tests/driver/engine compares that."""
    if "spark" in request.fixturenames:
        request.getfixturevalue("stages_of_spark")
