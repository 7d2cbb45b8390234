"""The operator as a whole: the Lease, the watches, the workers. ``run`` is what the image starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lakemirror.api import API_VERSION, KIND
from lakemirror.controller import handlers, vitals
from lakemirror.controller.cache import Cache, Key
from lakemirror.controller.figures import PipelineFigures
from lakemirror.controller.kube import Api, ApiError, Kube, Unreachable
from lakemirror.controller.lease import Lease, LeaseLost
from lakemirror.controller.queue import Queue
from lakemirror.controller.reconciler import Reconciler, key_of, version_of
from lakemirror.controller.values import Object, Settings
from lakemirror.controller.vitals import Vitals

CANARY = Key("", "")
"""No pipeline: it comes through the queue to prove that the queue goes on."""
_WORKERS = 32
"""A pass waits for the API server most of its time: where a request took 170 ms, 8 workers made two new
pipelines a second.
"""
_RESYNC_SECONDS = 60.0
_WAITING_SECONDS = 1.0
_MOST_SECONDS = 60.0
_TOLD_AFTER = timedelta(seconds=30)
"""Passes that fail for so long are told in the status; until then they may be a hiccup of the API server."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """``namespaces`` None means all. ``identity`` is the candidate's name in the Lease of ``namespace``."""

    settings: Settings
    identity: str
    namespace: str
    namespaces: tuple[str, ...] | None = None
    lease: str = "lakemirror-operator"
    port: int = 8080


class Operator:
    """What works on pipelines while the Lease is held; ``watch`` brings the pipelines' changes."""

    def __init__(
        self,
        api: Api,
        options: Options,
        lease: Lease,
        vitals: Vitals,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._options, self._lease, self._vitals = api, options, lease, vitals
        self._queue: Queue[Key] = Queue()
        self._cache = Cache(api, options.namespaces, self._queue.add, clock)
        self._clock = clock
        self._failures: Counter[Key] = Counter()
        self._failing: dict[Key, datetime] = {}
        self._paused = False
        self._watched: dict[Key, int] = {}
        self._unseen: dict[Key, int] = {}
        self.reconciler = Reconciler(api, self._cache, self._queue, options.settings, clock)
        vitals.leader.set_function(lambda: lease.held)
        vitals.registry.register(
            PipelineFigures(lambda: [p.body for p in self.reconciler.pipelines.values()])
        )

    def take(self, body: Object) -> None:
        """Take in what the watch of pipelines tells."""
        self._watched[key_of(body)] = version_of(body)
        self.reconciler.take(body)

    def gone(self, body: Object) -> None:
        """Take in that a pipeline is deleted."""
        self._watched.pop(key_of(body), None)
        self.reconciler.gone(body)

    async def run(self) -> None:
        """Work for ever. Nothing is decided before all pipelines have been listed; of objects the passes know
        whether all have been seen.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._cache.run())
            while not await self._resync():
                await asyncio.sleep(_WAITING_SECONDS)
            tasks.create_task(self._resync_now_and_then())
            tasks.create_task(self._send_canary())
            for _ in range(_WORKERS):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                await self._pass(key)
            finally:
                self._queue.done(key)

    async def _pass(self, key: Key) -> None:
        """One pass. Whatever goes wrong in it concerns this pipeline alone, and is tried again later."""
        may_act = self._may_act()
        if key == CANARY:
            self._vitals.beat()
            return
        if not may_act:
            self._queue.add(key, _WAITING_SECONDS)
            return
        try:
            with self._vitals.pass_seconds.time():
                decided = await self.reconciler.reconcile(key)
            self._failures.pop(key, None)
            self._failing.pop(key, None)
            self._vitals.passes.labels("done" if decided else "waited").inc()
        except Exception as error:
            self._failures[key] += 1
            since = self._failing.setdefault(key, self._clock())
            self._vitals.passes.labels("failed").inc()
            wait = min(_MOST_SECONDS, 2.0 ** min(self._failures[key], 10))
            expected = isinstance(error, Unreachable | ApiError)
            _log.log(
                logging.WARNING if expected else logging.ERROR,
                "%s/%s: the pass failed and is repeated in %.0f s: %s",
                *key,
                wait,
                error,
                exc_info=None if expected else error,
            )
            self._queue.add(key, wait)
            if self._clock() - since >= _TOLD_AFTER:
                await self._tell_failing(key, since, error)

    async def _tell_failing(self, key: Key, since: datetime, error: Exception) -> None:
        try:
            await self.reconciler.tell_failing(key, since, error)
        except Exception as second:  # the queue must go on; the log has both
            _log.warning("%s/%s: the failure is not in the status: %s", *key, second)

    def _may_act(self) -> bool:
        """Whether the Lease is held. Without it the API server was silent, and figures do not age."""
        held = self._lease.held
        if held and self._paused:
            self._cache.resume()
        self._paused = not held
        return held

    async def _send_canary(self) -> None:
        while True:
            self._queue.add(CANARY)
            self._count()
            await asyncio.sleep(vitals.BEAT_SECONDS)

    def _count(self) -> None:
        bodies = [p.body for p in self.reconciler.pipelines.values()]
        phases = Counter((body.get("status") or {}).get("phase", "Pending") for body in bodies)
        self._vitals.pipelines.clear()
        for phase, number in phases.items():
            self._vitals.pipelines.labels(phase).set(number)
        for state, number in self.reconciler.images.counts().items():
            self._vitals.rollout.labels(state).set(number)
        self._vitals.waiting.set(len(self._queue))

    async def _resync_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_RESYNC_SECONDS)
            await self._resync()

    async def _resync(self) -> bool:
        """List all pipelines and take in what the watch has not told; False if they cannot be listed."""
        listed = []
        try:
            for namespace in self._options.namespaces or (None,):
                listed += (await self._api.list(API_VERSION, KIND, namespace)).items
        except (ApiError, Unreachable) as error:
            _log.warning("pipelines cannot be listed: %s", error)
            return False
        found = {key_of(body): body for body in listed}
        known = self.reconciler.pipelines
        for key in [key for key in known if key not in found]:
            self.reconciler.forget(known[key].body)  # the list may be older than it
        for key, body in found.items():
            if key not in known or version_of(known[key].body) < version_of(body):
                self.reconciler.take(body)
        self._judge_watch(found)
        return True

    def _judge_watch(self, found: dict[Key, Object]) -> None:
        """A watch that has not told by now what was there at the last time is dead: better start again."""
        behind = {k: version_of(b) for k, b in found.items() if version_of(b) > self._watched.get(k, 0)}
        for key in behind.keys() & self._unseen.keys():
            if self._watched.get(key, 0) < self._unseen[key]:
                self._vitals.missed(f"{key.namespace}/{key.name}")
        self._unseen = {key: min(version, self._unseen.get(key, version)) for key, version in behind.items()}


async def operate(options: Options) -> None:
    """Wait for the Lease, then work until the process is asked to stop."""
    signs = Vitals()
    server = await vitals.serve(signs, options.port)
    try:
        async with Kube(signs.asked) as api:
            signs.ready = True  # a candidate that waits is ready to take over
            lease = Lease(api, options.namespace, options.lease, options.identity)
            await lease.acquire()
            operator = Operator(api, options, lease, signs)
            registry = handlers.registry(operator.take, operator.gone)
            await _until_one_ends(handlers.watch(registry, options.namespaces), _hold(lease), operator.run())
            await lease.release()
    finally:
        await server.cleanup()


async def _hold(lease: Lease) -> None:
    """Keep the Lease. Who has lost it must not do another thing, so nothing is tidied up."""
    try:
        await lease.keep()
    except LeaseLost as error:
        _log.error("%s", error)
        logging.shutdown()
        os._exit(1)


async def _until_one_ends(*endless: Awaitable[None]) -> None:
    """Run all until one ends, which ends the others; if it failed, so does this."""
    tasks = [asyncio.ensure_future(one) for one in endless]
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait(others, timeout=5)
    for task in done:
        task.result()


def run(options: Options) -> None:
    """The whole process."""
    asyncio.run(operate(options))
