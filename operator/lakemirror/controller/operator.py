"""The operator as a whole: the Lease, the watches and the workers. ``run`` is what the image starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lakemirror.api import API_VERSION, KIND
from lakemirror.controller import handlers, shares, vitals
from lakemirror.controller.cache import Cache, Key
from lakemirror.controller.fence import Fenced
from lakemirror.controller.figures import PipelineFigures
from lakemirror.controller.kube import Api, ApiError, Kube, Unreachable
from lakemirror.controller.lease import Lease, LeaseLost
from lakemirror.controller.queue import Queue
from lakemirror.controller.reconciler import Reconciler, key_of, version_of
from lakemirror.controller.shares import Shares
from lakemirror.controller.values import Object, Settings
from lakemirror.controller.vitals import Vitals

CANARY = Key("", "")
"""Not a pipeline: this key passes through the queue to prove that the queue keeps moving."""
_WORKERS = 32
"""A pass spends most of its time waiting for the API server.

When a request took 170 ms, 8 workers handled two new pipelines per second.
"""
_RESYNC_SECONDS = 60.0
_LOOKING_SECONDS = 1.0
"""How often listed namespaces are looked at that hold pipelines with a finalizer."""
_OTHERS_SECONDS = 5.0
"""How often it is asked whether another operator still looks after a pipeline."""
_WAITING_SECONDS = 1.0
_MOST_SECONDS = 60.0
_RECURSION = 50_000
"""The API server accepts objects that are nested up to 10,000 levels deep, and Python decodes JSON with
recursion. An object that cannot be decoded would break the list of all pipelines, and the watch.
"""
_TOLD_AFTER = timedelta(seconds=30)
"""Passes that fail for this long are reported in the status; before that, it may be an API server hiccup."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """``namespaces`` None means all. ``identity`` is the candidate's name in the Lease in ``namespace``."""

    settings: Settings
    identity: str
    namespace: str
    namespaces: tuple[str, ...] | None = None
    lease: str = "lakemirror-operator"
    port: int = 8080


class Operator:
    """Works on pipelines while the Lease is held. ``handlers.watch`` delivers the pipelines' changes."""

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
        self._shares = Shares(Fenced(api, lease), f"{options.namespace}/{options.lease}")
        self._watched: dict[Key, int] = {}
        self._unseen: dict[Key, int] = {}
        self.reconciler = Reconciler(Fenced(api, lease), self._cache, self._queue, options.settings, clock)
        vitals.leader.set_function(lambda: lease.held)
        vitals.registry.register(
            PipelineFigures(lambda: [p.body for p in self.reconciler.pipelines.values()])
        )

    def take(self, body: Object) -> None:
        """Take in what the watch of pipelines reports."""
        self._watched[key_of(body)] = version_of(body)
        self._take_safely(body)

    def gone(self, body: Object) -> None:
        """Take in that a pipeline was deleted."""
        key = key_of(body)
        self.reconciler.gone(body)
        if key not in self.reconciler.pipelines:  # and not replaced by another of this name
            for known in (self._watched, self._failures, self._failing):
                known.pop(key, None)

    async def run(self) -> None:
        """Work forever.

        Nothing is decided before all pipelines have been listed. Whether all objects have been seen is
        checked by the passes.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._cache.run())
            while not await self._resync():
                await asyncio.sleep(_WAITING_SECONDS)
            tasks.create_task(self._resync_now_and_then())
            if self._options.namespaces:
                tasks.create_task(self._look_for_ending_namespaces())
            tasks.create_task(self._send_canary())
            tasks.create_task(self._renew_shares())
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
        """Run one pass. A failure affects this pipeline alone, and the pass is repeated later."""
        may_act = self._may_act()
        if key == CANARY:
            self._vitals.beat()
            return
        if not may_act:
            self._queue.add(key, _WAITING_SECONDS)
            return
        if key not in self.reconciler.pipelines:  # deleted in the meantime, perhaps with its namespace
            return
        if not await self._shares.holds(key.namespace):
            self._queue.add(key, _OTHERS_SECONDS)
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
            if key not in self.reconciler.pipelines:  # deleted in the meantime
                self._failures.pop(key, None)
                self._failing.pop(key, None)
                return
            self._queue.add(key, wait)
            if self._clock() - since >= _TOLD_AFTER:
                await self._tell_failing(key, since, error)

    async def _tell_failing(self, key: Key, since: datetime, error: Exception) -> None:
        try:
            await self.reconciler.tell_failing(key, since, error)
        except Exception as second:  # the queue must go on; both errors are logged
            _log.warning("%s/%s: the failure is not in the status: %s", *key, second)

    def _may_act(self) -> bool:
        """Return whether the Lease is held.

        Without it, the API server did not answer, and figures must not age in that time.
        """
        held = self._lease.held
        if held and self._paused:
            self._cache.resume()
        self._paused = not held
        return held

    async def _renew_shares(self) -> None:
        while True:
            await asyncio.sleep(shares.DURATION_SECONDS / 4)
            if self._lease.held:
                await self._shares.renew({key.namespace for key in self.reconciler.pipelines})

    async def release(self) -> None:
        """Let other operators look after the pipelines."""
        await self._shares.release()

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
        """List all pipelines and take in what the watch missed.

        A namespace that refuses concerns its own pipelines alone, and is asked again by the next resync.
        Returns whether it is known of each namespace what is there, or that it refuses.
        """
        namespaces = self._options.namespaces or (None,)
        known = [await self._resync_one(namespace) for namespace in namespaces]
        return all(known)

    async def _resync_one(self, namespace: str | None) -> bool:
        try:
            listed = await self._api.list(API_VERSION, KIND, namespace)
        except (ApiError, Unreachable) as error:
            where = f" of namespace {namespace}" if namespace is not None else ""
            _log.warning("the pipelines%s cannot be listed: %s", where, error)
            return namespace is not None and isinstance(error, ApiError)
        found = {key_of(body): body for body in listed.items}
        known = self.reconciler.pipelines
        missing = [key for key in known if key not in found and namespace in (None, key.namespace)]
        for key in missing:
            if known[key].version <= int(listed.version):  # otherwise, it was created after the list
                self.gone(known[key].body)
        for key, body in found.items():
            if key not in known or known[key].version < version_of(body):
                self._take_safely(body)
        self._judge_watch(namespace, found)
        return True

    def _take_safely(self, body: Object) -> None:
        """Take in a pipeline. Whatever is wrong with it must not keep others from being taken in."""
        try:
            self.reconciler.take(body)
        except Exception:
            _log.exception("%s/%s cannot be taken in", *key_of(body))

    def _judge_watch(self, namespace: str | None, found: dict[Key, Object]) -> None:
        """Report the watch as dead if it has not delivered yet what the previous list had.

        The operator should then be restarted.
        """
        behind = {k: version_of(b) for k, b in found.items() if version_of(b) > self._watched.get(k, 0)}
        for key in behind.keys() & self._unseen.keys():
            if self._watched.get(key, 0) < self._unseen[key]:
                self._vitals.missed(f"{key.namespace}/{key.name}")
        others = {k: v for k, v in self._unseen.items() if namespace not in (None, k.namespace)}
        now = {key: min(version, self._unseen.get(key, version)) for key, version in behind.items()}
        self._unseen = others | now

    async def _look_for_ending_namespaces(self) -> None:
        """Find out that a listed namespace is being deleted while the operator still has its rights there.

        Kubernetes waits for five seconds before it deletes what is in the namespace, including the
        RoleBinding without which the operator could not remove its finalizer anymore:
        https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/namespace/namespace_controller.go
        (namespaceDeletionGracePeriod).
        """
        while True:
            if self._lease.held:
                await asyncio.gather(*(self._look_at(each) for each in sorted(self.reconciler.holding())))
            await asyncio.sleep(_LOOKING_SECONDS)

    async def _look_at(self, namespace: str) -> None:
        try:
            found = await self._api.get("v1", "Namespace", "", namespace)
        except (ApiError, Unreachable) as error:
            _log.debug("namespace %s cannot be read: %s", namespace, error)
            return
        phase = ((found or {}).get("status") or {}).get("phase")
        self.reconciler.namespace_ends(namespace, phase == "Terminating")


async def operate(options: Options) -> None:
    """Wait for the Lease, then work until the process is asked to stop."""
    signs = Vitals()
    server = await vitals.serve(signs, options.port)
    try:
        async with Kube(signs.asked) as api:
            signs.ready = True  # a waiting candidate is ready to take over
            lease = Lease(api, options.namespace, options.lease, options.identity)
            await lease.acquire()
            operator = Operator(api, options, lease, signs)
            registry = handlers.registry(operator.take, operator.gone)
            await _until_one_ends(handlers.watch(registry, options.namespaces), _hold(lease), operator.run())
            await operator.release()
            await lease.release()
    finally:
        await server.cleanup()


async def _hold(lease: Lease) -> None:
    """Keep the Lease. Without it, the process must do nothing more, so it exits without cleaning up."""
    try:
        await lease.keep()
    except LeaseLost as error:
        _log.error("%s", error)
        logging.shutdown()
        os._exit(1)


async def _until_one_ends(*endless: Awaitable[None]) -> None:
    """Run all until one ends, then cancel the others. If that one failed, raise its error."""
    tasks = [asyncio.ensure_future(one) for one in endless]
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait(others, timeout=5)
    for task in done:
        task.result()


def run(options: Options) -> None:
    """Run the operator until the process is asked to stop."""
    sys.setrecursionlimit(_RECURSION)
    asyncio.run(operate(options))
