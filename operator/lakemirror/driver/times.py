"""Times that the source gives, as far as they can be right.

A change cannot have been made after its record was. A source whose clock is ahead, or a row that somebody
dated 2100, would otherwise be the newest change for ever: nothing would be late, and no later change newer.
Such a time is part of the row's data and stays there, but tells nothing about progress and order.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

AHEAD: Final = timedelta(minutes=1)
"""By how much the clock of a source may be ahead of those that its records and the driver go by."""


def own_time() -> Column:
    """TIMESTAMP: when the record of an event was made (Kafka's time), at the latest when it is read."""
    return F.least("timestamp", F.current_timestamp())


def possible(time: Column, own: Column) -> Column:
    """TIMESTAMP: a time, or null if it is later than the ``own`` one of what it is about."""
    return F.when(time <= own + F.lit(AHEAD), time)


def possible_time(time: datetime | None, own: datetime) -> datetime | None:
    """Return a time, or None if it is later than the ``own`` one of what it is about."""
    return None if time is None or time > own + AHEAD else time
