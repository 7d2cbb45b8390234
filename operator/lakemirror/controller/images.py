"""The rollout of the default image, kept up to date by the passes of all pipelines."""

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
    """Standings of pipelines and what follows for each. Nothing in here has to outlive the process.

    The rollout is computed from the few that take part in it: thousands of others come, start and become
    Ready meanwhile. ``changes`` counts how often it became another one.
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
        """There is a pipeline of which nothing is known yet; nobody can be moved before it is."""
        self._unseen.add(key)

    def unseen(self) -> tuple[Key, ...]:
        """Those of which nothing is known."""
        return tuple(self._unseen)

    def take(self, key: Key, standing: Standing | None) -> None:
        """Take in the standing of a pipeline; None if it follows no default."""
        self._unseen.discard(key)
        if key not in self._standings or self._standings[key] != standing:
            self._standings[key] = standing
            self._place(key, standing)

    def gone(self, key: Key) -> None:
        """The pipeline is deleted."""
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
        """What this pipeline's driver is to run, None if its spec says so; and whom that concerns besides.

        One that is moved takes its place at once, before anything is written.
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
        """When time alone changes something for this pipeline."""
        standing = self._standings.get(key)
        if standing is None:
            return None
        since = standing.moved.at if standing.moved is not None else None
        if standing.image != self._image:
            since = standing.unready_since
        end = since + self._pace.timeout if since is not None else None
        return end if end is not None and end > now else None

    def counts(self) -> dict[str, int]:
        """Pipelines by how far the rollout is with them; ``later``: suspended, or between two runs."""
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
