"""The rollout of the default image, which the passes of all pipelines keep up to date."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import datetime
from itertools import islice

from lakemirror.controller import rollout
from lakemirror.controller.cache import Key
from lakemirror.controller.rollout import Rollout, Standing
from lakemirror.controller.values import Settings, Turn

_log = logging.getLogger(__name__)


class Images:
    """Holds the standings of pipelines and derives each one's turn. None of it has to outlive the process.

    The rollout is computed only from the few pipelines that take part in it, because thousands of others may
    be created, start and become Ready at the same time. ``changes`` counts how often the rollout changed.
    """

    def __init__(self, settings: Settings) -> None:
        self._image, self._pace = settings.driver_image, settings.pace
        self._standings: dict[Key, Standing | None] = {}
        self._unseen: set[Key] = set()
        self._concerned: dict[Key, Standing] = {}
        self._proofs: dict[Key, Standing] = {}
        self._rollout: Rollout[Key] = Rollout()
        self._stale = True
        self.changes = 0

    def expect(self, key: Key) -> None:
        """Note a pipeline about which nothing is known yet. No driver can be moved until that is known."""
        self._unseen.add(key)

    def unseen(self) -> tuple[Key, ...]:
        """Return the pipelines about which nothing is known."""
        return tuple(self._unseen)

    def take(self, key: Key, standing: Standing | None) -> None:
        """Take in the standing of a pipeline; None if it follows no default."""
        self._unseen.discard(key)
        if key not in self._standings or self._standings[key] != standing:
            self._standings[key] = standing
            self._place(key, standing)

    def gone(self, key: Key) -> None:
        """Take in that a pipeline was deleted."""
        self._unseen.discard(key)
        self._standings.pop(key, None)
        self._place(key, None)

    def _place(self, key: Key, standing: Standing | None) -> None:
        proved, took_part = bool(self._proofs), self._concerned.pop(key, None) is not None
        self._proofs.pop(key, None)
        if standing is not None and rollout.takes_part(standing, self._image):
            self._concerned[key] = standing
        elif standing == Standing(self._image):
            self._proofs[key] = standing
        if took_part or key in self._concerned or proved != bool(self._proofs):
            self._stale = True

    def turn(self, key: Key, now: datetime) -> tuple[Turn | None, set[Key]]:
        """Return what this pipeline's driver should run, and the other pipelines that this concerns.

        The turn is None if the spec names the image. A pipeline that is moved takes its place at once, before
        anything is written.
        """
        before, current = self._rollout, self._current(now)
        standing = self._standings.get(key)
        turn = None
        if standing is not None:
            turn = rollout.turn(key, standing, self._image, current, self._pace, now)
            if turn.moved is not None and turn.moved != standing.moved:
                self.take(key, Standing(turn.image, turn.moved, now, standing.when))
                current = self._current(now)
        wake = set(current.may)
        if before.stopped_by != current.stopped_by:
            wake |= current.waiting
            self._tell(current)
        return turn, wake - {key}

    def again(self, key: Key, now: datetime) -> datetime | None:
        """Return when time alone changes something for this pipeline."""
        standing = self._standings.get(key)
        if standing is None:
            return None
        since = standing.moved.at if standing.moved is not None else None
        if standing.image != self._image:
            since = standing.unready_since
        end = since + self._pace.timeout if since is not None else None
        return end if end is not None and end > now else None

    def counts(self) -> dict[str, int]:
        """Count the pipelines by their state in the rollout. ``later``: suspended, or between two runs."""
        states: Counter[str] = Counter(updated=0, moving=0, waiting=0, failed=0, later=0)
        for key, standing in self._standings.items():
            if standing is None:
                continue
            if key == self._rollout.stopped_by:
                states["failed"] += 1
            elif key in self._rollout.moving:
                states["moving"] += 1
            elif standing.image == self._image:
                states["updated"] += 1
            else:
                states["waiting" if key in self._rollout.waiting else "later"] += 1
        return states

    def _current(self, now: datetime) -> Rollout[Key]:
        again = self._rollout.again
        if self._stale or (again is not None and now >= again):
            standings = self._concerned | dict(islice(self._proofs.items(), 1))
            current = rollout.rollout(self._image, standings, self._pace, now)
            self.changes += current != self._rollout
            self._rollout, self._stale = current, False
        return self._rollout

    def _tell(self, current: Rollout[Key]) -> None:
        if current.stopped_by is None:
            _log.info("the rollout of %s goes on", self._image)
            return
        _log.warning(
            "the rollout of %s has stopped: %s is not ready on it; %d pipelines stay on their image",
            self._image,
            "/".join(current.stopped_by),
            len(current.waiting),
        )
