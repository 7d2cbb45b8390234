"""What these tests share: they are about the writers on Spark."""

from __future__ import annotations

from tests.support.engines import only_stages_of_spark

__all__ = ["only_stages_of_spark"]  # a fixture: that it is here is enough
