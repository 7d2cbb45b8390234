"""What these tests share: they are about the writers on Spark."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def only_stages_of_spark(request: pytest.FixtureRequest) -> None:
    """Nothing is applied in columns, in tests that have a session."""
    if "spark" in request.fixturenames:
        request.getfixturevalue("stages_of_spark")
