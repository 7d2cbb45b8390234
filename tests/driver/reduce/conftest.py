"""What these tests share: they are about Spark's reduction of events."""

from __future__ import annotations

from tests.support.engines import only_stages_of_spark

__all__ = ["only_stages_of_spark"]  # a fixture: that it is here is enough
