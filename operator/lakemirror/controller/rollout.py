"""Rolls out a new default image to the drivers: a few at a time, and only as long as it works. Pure.

A running driver is *moved* to the new default when its turn comes, in the order of the pipelines' names.
Until it is Ready again, it occupies one of ``Pace.at_once`` places. If it is not Ready within
``Pace.timeout``, the rollout stops: no driver is moved until that one is Ready or has another image. A
pipeline that starts anyway (a new one, one that is resumed, or the next run of one that does not stream)
takes the new default without waiting, unless the rollout has stopped; then it keeps the image that it had.

Pipelines that have not been Ready for longer than the timeout are moved once another one is Ready on the new
image, in places of their own, because the image may be their cure. They prove nothing, so they cannot stop
the rollout either.

All of this is stored in the API: the image that each pipeline was given and since when it has to prove itself
(``Given``, in the config ConfigMap), and whether it is Ready (its status).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import nsmallest
from typing import Any, Generic, Literal, TypeVar

from lakemirror.api import PipelineSpec
from lakemirror.controller import fields
from lakemirror.controller.values import Given, Moved, Observed, Pace, Turn

K = TypeVar("K", bound=tuple[str, str])
"""A pipeline: namespace and name."""

When = Literal["InTurn", "AtStart", "Later"]
"""When a pipeline takes another default image.

It does so in its turn; at once, because it starts anyway; or only after something else happens to it, such as
its next run.
"""


@dataclass(frozen=True)
class Standing:
    """What counts about a pipeline in a rollout.

    ``image``: the one that it has. ``moved``: set as long as it has not been Ready on that image.
    ``unready_since``: since when it has not been Ready; None while it is.
    """

    image: str
    moved: Moved | None = None
    unready_since: datetime | None = None
    when: When = "InTurn"


@dataclass(frozen=True)
class Rollout(Generic[K]):
    """The state of a rollout: who may be moved now, who waits, who has been moved, and who has stopped it.

    ``again``: when time alone changes this.
    """

    may: frozenset[K] = frozenset()
    waiting: frozenset[K] = frozenset()
    moving: frozenset[K] = frozenset()
    stopped_by: K | None = None
    again: datetime | None = field(default=None, compare=False)


def standing(spec: PipelineSpec | None, held: bool, observed: Observed, now: datetime) -> Standing | None:
    """Return the standing of a pipeline that is about to run ``spec``; None if it follows no default.

    ``held``: no driver may run. A pipeline without ``Given`` is new.
    """
    had = observed.given
    if spec is None or spec.spark.image is not None:
        return None
    if had is None:
        return Standing("", when="AtStart")
    if observed.accepted is not None and observed.accepted.spec.spark.image is not None:
        return Standing("", when="AtStart")  # it had the spec's own image, which was removed from the spec
    if observed.resource.deleting:
        return Standing(had.image, when="Later")
    since = _unready_since(observed, had, now)
    return Standing(
        had.image, had.moved if since is not None else None, since, _when(spec, held, observed, had)
    )


def unseen(had: Given) -> Standing:
    """Return the standing of a pipeline about which only ``had`` is known: what it has to prove counts."""
    return Standing(had.image, had.moved, had.moved.at if had.moved is not None else None, "Later")


def _unready_since(observed: Observed, had: Given, now: datetime) -> datetime | None:
    """Return since when no driver of the given revision has been Ready; None if one is.

    A suspended pipeline proves nothing, so it does not count as Ready.
    """
    status = observed.resource.status
    ready, driver = status.condition("Ready"), status.driver
    if ready is None:
        return now
    if ready.status != "True" or status.phase == "Suspended":
        return min(datetime.fromisoformat(ready.last_transition_time), now)
    return None if driver is not None and driver.revision == had.revision else now


def _when(spec: PipelineSpec, held: bool, observed: Observed, had: Given) -> When:
    if held:
        return "Later"
    if spec.trigger.available_now is not None:
        again = spec.trigger.schedule is not None or fields.revision(spec, had.image) != had.revision
        return "AtStart" if again else "Later"
    return "AtStart" if observed.resource.status.phase == "Suspended" else "InTurn"


def takes_part(standing: Standing, image: str) -> bool:
    """Return whether the rollout depends on this pipeline.

    Of the others, it only matters whether any is Ready on ``image``.
    """
    return standing.moved is not None if standing.image == image else standing.when == "InTurn"


def rollout(image: str, standings: Mapping[K, Standing], pace: Pace, now: datetime) -> Rollout[K]:
    """Determine who may be moved to ``image`` now."""
    moving = {key: s.moved for key, s in standings.items() if s.image == image and s.moved is not None}
    waiting = {key: s for key, s in standings.items() if s.image != image and s.when == "InTurn"}
    overdue = [key for key, moved in moving.items() if moved.ready and now >= moved.at + pace.timeout]
    ends = [moved.at + pace.timeout for moved in moving.values()]
    ends += [s.unready_since + pace.timeout for s in waiting.values() if s.unready_since is not None]
    may: list[K] = []
    proof = Standing(image)
    proved = proof in standings.values()
    for ready in (True, False) if not overdue else ():
        places = sum(moved.ready is ready and now < moved.at + pace.timeout for moved in moving.values())
        queue = [(s.moved is None, key) for key, s in waiting.items() if _counts(s, pace, now) is ready]
        may += [key for _, key in nsmallest(pace.at_once - places, queue)]
        if not proved and (queue or places):
            break  # those that prove nothing wait until another has proved the image
    return Rollout(
        frozenset(may),
        frozenset(waiting),
        frozenset(moving),
        min(overdue, default=None),
        min((end for end in ends if end > now), default=None),
    )


def _counts(standing: Standing, pace: Pace, now: datetime) -> bool | None:
    """Return whether moving the pipeline proves something; None while it may be starting and has to wait.

    It does if the pipeline is Ready, or if an earlier image to which it was moved has broken it.
    """
    if standing.unready_since is None or (standing.moved is not None and standing.moved.ready):
        return True
    return False if now >= standing.unready_since + pace.timeout else None


def turn(key: K, standing: Standing, image: str, of: Rollout[K], pace: Pace, now: datetime) -> Turn:
    """Return what the driver of one pipeline should run if ``image`` is the default."""
    stopped_by = "/".join(of.stopped_by) if of.stopped_by is not None else ""
    moved = standing.moved
    if standing.image == image:
        failed = moved is not None and moved.ready and now >= moved.at + pace.timeout
        return Turn(image, image, moved, "Failed" if failed else "Moving" if moved is not None else "")
    if standing.image == "" or (standing.when == "AtStart" and not stopped_by):
        return Turn(image, image)
    if key in of.may:
        ready = bool(_counts(standing, pace, now))
        return Turn(image, image, Moved(standing.image, now.replace(microsecond=0), ready), "Moving")
    if standing.when == "Later":
        return Turn(standing.image, image, moved)
    return Turn(standing.image, image, moved, "Stopped" if stopped_by else "Waiting", stopped_by)


def document(moved: Moved) -> dict[str, Any]:
    """Return ``moved`` as the config ConfigMap's annotation has it, in JSON."""
    return {"from": moved.before, "at": moved.at.isoformat(), "ready": moved.ready}


def read(document: Any) -> Moved | None:
    """Read what ``document`` returned; None if it is something else.

    Users may write the annotation. A time that cannot be compared would fail the rollout of all pipelines.
    """
    try:
        at = datetime.fromisoformat(document["at"])
        moved = Moved(str(document["from"]), at, bool(document["ready"]))
    except (KeyError, TypeError, ValueError):
        return None
    return moved if at.tzinfo is not None and at.astimezone(UTC).year < _END_OF_TIME else None


_END_OF_TIME = 9000
"""Times after this year may be too large to add something to."""
