"""What these tests share: they compare the rules with Spark's own plans, which owe the rules nothing.

What is applied in columns is compared in tests/driver/engine.
"""

from __future__ import annotations

from tests.support.engines import only_stages_of_spark

__all__ = ["only_stages_of_spark"]  # a fixture: that it is here is enough
