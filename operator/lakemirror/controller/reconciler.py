"""One pass for one pipeline: observe, plan, act. It keeps nothing that a restart would miss."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from lakemirror.api import API_VERSION, KIND, CdcPipeline, ManifestError, PipelineSpec, PipelineStatus
from lakemirror.api import report as api
from lakemirror.controller import (
    build,
    health,
    names,
    observe,
    podtemplate,
    remembered,
    rollout,
    status,
    workloads,
)
from lakemirror.controller.act import Actor
from lakemirror.controller.cache import Cache, Identity, Key, slim
from lakemirror.controller.claims import Claim, Claimants, claims
from lakemirror.controller.decide import Decision, decide
from lakemirror.controller.images import Images
from lakemirror.controller.kube import Api, ApiError, Unreachable
from lakemirror.controller.plan import plan
from lakemirror.controller.queue import Queue
from lakemirror.controller.times import iso, moment
from lakemirror.controller.values import (
    Ending,
    Object,
    Observed,
    Obstacle,
    Plan,
    Pod,
    Report,
    Resource,
    Rival,
    Settings,
    Turn,
    Writer,
)

_WAITING_SECONDS = 2.0
_GONE_KEPT = 10_000
_EXECUTORS_AFTER = timedelta(seconds=60)
"""How long a batch is waited for until executors are looked at, once this run has committed one."""
_LOOKING_SECONDS = 5.0
"""How often Events and foreign pods, which are not watched, are read while a driver does not start."""
_LOOKING_MOST_SECONDS = 120.0
"""The same after a long time without change: a full cluster may keep thousands of drivers from starting."""
_log = logging.getLogger(__name__)


class CannotWatch(Exception):
    """The API server refuses access to a kind of object, so nothing can be decided."""


@dataclass(frozen=True)
class Steady:
    """What a pass saw that left nothing to do.

    While nothing of it changes except the time of the report, another pass would find the same. This holds
    until the time ``until`` or a report made at ``renewal``.
    """

    inputs: tuple[object, ...]
    said: api.Report
    until: datetime
    renewal: datetime | None


@dataclass(frozen=True)
class Manifest:
    """A state of the resource, with its spec as parsed. One is never replaced without the other."""

    body: Object
    spec: PipelineSpec | ManifestError

    @classmethod
    def read(cls, body: Object, before: Manifest | None = None) -> Manifest:
        """Return a state of the resource. Its spec is parsed, unless it is the same as ``before``."""
        same = before is not None and before.body.get("spec") == body.get("spec")
        return cls(slim(body), before.spec if before is not None and same else spec_of(body))


@dataclass
class Pipeline:
    """What is known about a pipeline.

    ``manifest`` is what its current or last pass works on, ``newest`` what the next one will work on.
    """

    manifest: Manifest
    newest: Manifest = field(init=False)
    rivals: tuple[Rival, ...] = ()
    """Who came first when this was last looked at."""
    report: Report | None = None
    steady: Steady | None = None
    looking: tuple[tuple[object, ...], datetime] | None = None
    """What a pass saw while it waited for the driver to start, and since when that has not changed."""
    age: tuple[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.newest = self.manifest
        metadata = self.body["metadata"]
        self.age = (metadata.get("creationTimestamp") or "", metadata["uid"])

    @property
    def body(self) -> Object:
        return self.manifest.body

    @property
    def spec(self) -> PipelineSpec | ManifestError:
        return self.manifest.spec

    @property
    def version(self) -> int:
        """The version of the newest known state."""
        return version_of(self.newest.body)

    def learn(self, body: Object) -> bool:
        """Keep a newer state, whether a watch, a list or the answer to a write brought it.

        This is the only place that compares states and has specs parsed. Returns whether anything else than
        the status is different, so that another pass is needed.
        """
        if version_of(body) <= self.version:
            return False
        before, self.newest = self.newest, Manifest.read(body, self.newest)
        return _asked(before.body) != _asked(self.newest.body)


class Reconciler:
    """Runs the passes of all pipelines. ``queue`` says which one is due."""

    def __init__(
        self, api: Api, cache: Cache, queue: Queue[Key], settings: Settings, clock: Callable[[], datetime]
    ) -> None:
        self._api = api
        self._cache = cache
        self._queue = queue
        self._settings = settings
        self._clock = clock
        self._actor = Actor(api, cache)
        self.images = Images(settings)
        self.pipelines: dict[Key, Pipeline] = {}
        self._gone: dict[str, None] = {}
        """The uids of the most recently deleted pipelines, in order. What still mentions them is outdated."""
        self._places: Claimants[Key] = Claimants(queue.add)
        self._ending: set[str] = set()
        """Namespaces that are being deleted, as far as is known."""
        self._unseen: set[Key] = set()
        """The pipelines of which nobody has looked yet what they have."""

    def take(self, body: Object) -> None:
        """Take in the current state of a pipeline, unless it is older than what is known."""
        key = key_of(body)
        if body["metadata"]["uid"] in self._gone:
            return  # from a list that was requested before the deletion
        known = self.pipelines.get(key)
        same = known is not None and known.body["metadata"]["uid"] == body["metadata"]["uid"]
        if known is not None and version_of(body) < known.version:
            return
        if known is not None and not same:
            self.forget(known.body)
        if known is None or not same:
            known = self.pipelines[key] = Pipeline(Manifest.read(body))
            self.images.expect(key)
            if isinstance(known.spec, PipelineSpec):
                self._places.want(key, claims(known.spec, key.namespace))
            self._unseen.add(key)
        else:
            known.learn(body)
        self._queue.add(key)

    def namespace_ends(self, namespace: str, ends: bool) -> None:
        """Take in whether a namespace is being deleted. No pipeline may keep it from going."""
        if (namespace in self._ending) != ends:
            self._ending ^= {namespace}
            for key in [key for key in self.pipelines if key.namespace == namespace]:
                self._queue.add(key)

    def holding(self) -> set[str]:
        """Return the namespaces with pipelines that have the operator's finalizer."""
        bodies = [pipeline.newest.body for pipeline in self.pipelines.values()]
        return {
            body["metadata"]["namespace"]
            for body in bodies
            if names.FINALIZER in (body["metadata"].get("finalizers") or ())
        }

    def gone(self, body: Object) -> None:
        """Take in that a pipeline was deleted for certain."""
        self._gone[body["metadata"]["uid"]] = None
        if len(self._gone) > _GONE_KEPT:
            del self._gone[next(iter(self._gone))]
        self.forget(body)

    def forget(self, body: Object) -> None:
        """Stop managing a pipeline. Others that waited for what it claimed may go on."""
        key = key_of(body)
        known = self.pipelines.get(key)
        if known is None or known.body["metadata"]["uid"] != body["metadata"]["uid"]:
            return
        self._places.want(key, frozenset())
        self.images.gone(key)
        del self.pipelines[key]
        self._unseen.discard(key)
        self._forget_results(key)
        self._queue.forget(key)

    async def reconcile(self, key: Key) -> bool:
        """Run one pass.

        Returns False if it has to wait until it is known which objects exist. Raises Unreachable, ApiError or
        CannotWatch if it has to be retried.
        """
        pipeline = self.pipelines.get(key)
        if pipeline is None:
            return True
        pipeline.manifest = pipeline.newest
        now = self._clock()
        since = self._cache.current_since(key.namespace)
        if since is None:  # the cache may be outdated
            refusal = self._cache.refusal(key.namespace)
            if refusal is not None:
                raise CannotWatch(f"{refusal}. Give the operator the rights of its chart")
            self._queue.add(key, _WAITING_SECONDS)
            return False
        if not self._goes_on(key, pipeline, now, since):
            try:
                await self._whole_pass(key, pipeline, now, since)
            finally:
                if key not in self.pipelines:  # deleted in the meantime
                    self._forget_results(key)
        return True

    def _forget_results(self, key: Key) -> None:
        self._actor.forget(key)
        remembered.forget(key)

    async def _whole_pass(self, key: Key, pipeline: Pipeline, now: datetime, since: datetime) -> None:
        self._claim_unseen()
        inputs = self._inputs(key, pipeline, since)
        observed = await self._observe(key, pipeline, now, since)
        self._actor.look_for_secret(observed.resource, observed.mount_problem, observed.executors)
        trial = self._plan(pipeline, observed, now).trial
        if self._actor.makes_new(observed.resource, trial) and not await self._still_there(pipeline):
            return
        obstacles = await self._actor.trial(observed.resource, trial)
        found = _in_spec(obstacles, pipeline.spec)
        observed = replace(
            observed,
            obstacles=tuple(o for o in found if not o.warning),
            warnings=tuple(o.message for o in found if o.warning),
        )
        observed = self._claim(key, pipeline, observed)
        observed = replace(observed, turn=self._turn(key, pipeline, observed, now))
        planned, body = await self._carry_out(pipeline, observed, now)
        figures = body is None or status.only_figures_differ(observed.resource.status, planned.status)
        untouched = inputs == self._inputs(key, pipeline, since)
        edited = body is not None and self._remember(key, pipeline, body)
        if figures and untouched and not edited:
            self._settle(key, pipeline, planned, since)

    def _inputs(self, key: Key, pipeline: Pipeline, since: datetime) -> tuple[object, ...]:
        """Return everything that a pass looks at, except the time and the driver's report."""
        progress = names.progress(key.name)
        objects = self._cache.of(key).items()
        versions = {
            i: version_of(there) for i, there in objects if (i.kind, i.name) != ("ConfigMap", progress)
        }
        return pipeline.version, versions, since, self.images.changes, self._places.changes

    def _settle(self, key: Key, pipeline: Pipeline, planned: Plan, since: datetime) -> None:
        pipeline.steady = None
        idle = not (planned.deletions or planned.marks)
        if idle and planned.steady_until is not None and pipeline.report is not None:
            pipeline.steady = Steady(
                self._inputs(key, pipeline, since),
                pipeline.report.said,
                planned.steady_until,
                status.renewal(planned.status),
            )

    def _goes_on(self, key: Key, pipeline: Pipeline, now: datetime, since: datetime) -> bool:
        """Return whether nothing but a renewed report has come since a pass left nothing to do.

        An idle driver reports twice a minute. With thousands of them, a whole pass each time would be most of
        what the operator does.
        """
        steady = pipeline.steady
        if steady is None or steady.inputs != self._inputs(key, pipeline, since):
            return False
        progress = self._cache.of(key).get(Identity("v1", "ConfigMap", names.progress(key.name)))
        report = observe.report(progress, pipeline.report, now)
        if report is None or not observe.says_the_same(steady.said, report.said):
            return False
        until = min(steady.until, max(report.seen, since) + health.STALE_AFTER)
        made = moment(report.said.observed_at)
        if now >= until or made is None or (steady.renewal is not None and made >= steady.renewal):
            return False
        pipeline.report = report
        pipeline.steady = replace(steady, said=report.said)  # one report is kept, not two
        self._queue.add(key, (until - now).total_seconds())
        return True

    async def _still_there(self, pipeline: Pipeline) -> bool:
        """Return whether a pipeline whose objects are missing still exists as known.

        The objects may be gone together with it: the watches of different kinds report one deletion at
        different times.
        """
        key, metadata = key_of(pipeline.body), pipeline.body["metadata"]
        there = await self._api.get(API_VERSION, KIND, key.namespace, key.name)
        if there is None or there["metadata"]["uid"] != metadata["uid"]:
            self.gone(pipeline.body)
            return False
        if "deletionTimestamp" in there["metadata"] and "deletionTimestamp" not in metadata:
            self.take(there)
            return False
        return True

    def _plan(self, pipeline: Pipeline, observed: Observed, now: datetime) -> Plan:
        return plan(pipeline.spec, observed, now, self._settings)

    async def _observe(self, key: Key, pipeline: Pipeline, now: datetime, since: datetime) -> Observed:
        resource = observe.resource(pipeline.body)
        mine = self._objects_of(key, pipeline)
        config = mine.get(Identity("v1", "ConfigMap", names.config(key.name)))
        progress = mine.get(Identity("v1", "ConfigMap", names.progress(key.name)))
        pods = tuple(observe.pod(o) for i, o in mine.items() if i.kind == "Pod")
        by = _writer(resource, pipeline.report, progress, pods)
        pipeline.report = observe.report(progress, pipeline.report, now, by)
        if _seems_silent(pipeline.report, pods, now, since):
            progress = await self._read_again(key, progress)
            pipeline.report = observe.report(progress, pipeline.report, now, by)
        found = tuple(observe.workload(o) for i, o in mine.items() if i.kind in _WORKLOADS)
        observed = Observed(
            resource,
            accepted=observe.accepted(config, found),
            config=(config or {}).get("data") or {},
            workloads=found,
            pods=pods,
            report=_as_seen_since(pipeline.report, since),
            rivals=tuple(self._rivals(key, pipeline)),
            given=observe.given(config, resource.status),
            namespace_ends=key.namespace in self._ending,
        )
        observed = replace(observed, turn=self._turn(key, pipeline, observed, now))
        return await self._look_closer(key, pipeline, observed, now, since)

    async def _read_again(self, key: Key, progress: Object | None) -> Object | None:
        """Return a report as it is now, in case that only its watch is silent, as on a broken connection."""
        there = await self._api.get("v1", "ConfigMap", key.namespace, names.progress(key.name))
        if there is None or progress is None or version_of(there) <= version_of(progress):
            return progress
        self._cache.take(there)
        return there

    def _objects_of(self, key: Key, pipeline: Pipeline) -> dict[Identity, Object]:
        """Return the objects that belong to a pipeline, with the runs of its CronJob, which owns those."""
        uid, known = pipeline.body["metadata"]["uid"], self._cache.of(key)
        schedules = {
            document["metadata"]["uid"]
            for identity, document in known.items()
            if identity.kind == "CronJob" and observe.owned_by(document, uid)
        }
        return {
            identity: document
            for identity, document in known.items()
            if observe.owned_by(document, uid)
            or (identity.kind == "Pod" and not observe.is_foreign(document, uid))
            or (identity.kind == "Job" and any(observe.owned_by(document, each) for each in schedules))
        }

    def _claim_unseen(self) -> None:
        """Let pipelines that nobody has looked at yet have what they had under the operator before.

        Otherwise another pipeline that waits for one of these places may have its pass before theirs. If two
        had the same, it goes to the one whose status says that it is in effect, then to the older one.
        """
        had = [found for key in self._unseen if (found := self._had(key)) is not None]
        self._unseen.clear()
        for _, key, claimed in had:
            self._places.want(key, self._places.wanted(key) | claimed)
        for _, key, claimed in sorted(had, key=lambda each: each[0]):
            self._places.take(key, claimed)

    def _had(self, key: Key) -> tuple[tuple[bool, tuple[str, str]], Key, frozenset[Claim]] | None:
        """Return what a pipeline has by its objects, and its rank among those that have the same."""
        pipeline = self.pipelines.get(key)
        if pipeline is None:
            return None
        mine = self._objects_of(key, pipeline)
        config = mine.get(Identity("v1", "ConfigMap", names.config(key.name)))
        if config is None:
            return None
        spec = pipeline.spec if isinstance(pipeline.spec, PipelineSpec) else None
        in_effect = observe.is_in_effect(pipeline.body) and spec is not None
        if not in_effect:  # only then is it worth the time to read the config
            found = (observe.workload(o) for i, o in mine.items() if i.kind in _WORKLOADS)
            accepted = observe.accepted(config, found)
            spec = accepted.spec if accepted is not None else None
        claimed = claims(spec, key.namespace) if spec is not None else frozenset()
        return (not in_effect, pipeline.age), key, claimed

    def _claim(self, key: Key, pipeline: Pipeline, observed: Observed) -> Observed:
        """Claim what the pipeline needs, and return what is observed with the rivals that come first.

        What it has is claimed until it has moved. What an edit leads to is wanted even while it belongs to
        another pipeline, so that this one is woken when it may go there. What it is about to get is its own
        from now on, before anything is written: no other pass can get it, too.
        """
        sought = decide(pipeline.spec, replace(observed, rivals=()), self._settings).spec
        has = observed.accepted.spec if observed.accepted is not None else None
        both = (sought, has)
        self._places.want(key, frozenset().union(*(claims(s, key.namespace) for s in both if s is not None)))
        self._keep(key, has)
        observed = replace(observed, rivals=tuple(self._rivals(key, pipeline)))
        decision = decide(pipeline.spec, observed, self._settings)
        if not decision.conflicts and (has is not None or not observed.obstacles):
            self._keep(key, decision.spec)
        if observed.rivals != pipeline.rivals:
            pipeline.rivals = observed.rivals
            for rival in observed.rivals:
                _log.info("%s/%s: %s belongs to pipeline %s", *key, rival.claim, rival.pipeline)
        return observed

    def _keep(self, key: Key, spec: PipelineSpec | None) -> None:
        """Let a pipeline have what ``spec`` claims, besides what it has, as far as nobody else has it."""
        if spec is not None:
            self._places.take(key, self._places.held(key) | claims(spec, key.namespace))

    def _turn(self, key: Key, pipeline: Pipeline, observed: Observed, now: datetime) -> Turn | None:
        """Return which default image the driver has at this time, and wake the pipelines whose turn it is."""
        for other in self.images.unseen():
            config = self._cache.of(other).get(Identity("v1", "ConfigMap", names.config(other.name)))
            had = observe.given(config, PipelineStatus())
            self.images.take(other, rollout.unseen(had) if had is not None else None)
        decision = decide(pipeline.spec, observed, self._settings)
        held = decision.suspended or decision.conflicts
        self.images.take(key, rollout.standing(decision.spec, held, observed, now))
        turn, concerned = self.images.turn(key, now)
        for other in concerned:
            self._queue.add(other)
        again = self.images.again(key, now)
        if again is not None:
            self._queue.add(key, (again - now).total_seconds())
        return turn

    def _rivals(self, key: Key, pipeline: Pipeline) -> Iterator[Rival]:
        """Yield who comes first, by claim: whoever has it, or else whoever wants it and is older."""
        found = [
            (not has, self.pipelines[name].age, claim, name) for name, claim, has in self._places.rivals(key)
        ]
        for wants, age, claim, name in sorted(found):
            if not wants or age < pipeline.age:
                yield Rival(f"{name.namespace}/{name.name}", claim, has=not wants)

    async def _look_closer(
        self, key: Key, pipeline: Pipeline, observed: Observed, now: datetime, since: datetime
    ) -> Observed:
        """Add what no watch shows about a driver or cleanup that does not start: Events and foreign pods."""
        decision = decide(pipeline.spec, observed, self._settings)
        resource = observed.resource
        if decision.spec is None or (decision.hold is not None and not resource.deleting):
            return observed
        pods = [pod for pod in observed.pods if not pod.ended]
        stuck = [pod for pod in pods if pod.started is None and pod.waiting == "ContainerCreating"]
        if stuck:
            found = await self._events_of(key, stuck[0].uid)
            observed = replace(observed, mount_problem=observe.mount_problem(found, stuck[0].uid))
        if not pods:
            observed = await self._look_for_pod(key, decision, observed)
        waits = await self._look_for_executors(key, decision, observed, now)
        observed = waits or observed
        driver = resource.status.driver
        if driver is not None and driver.uid is not None and driver.uid not in {pod.uid for pod in pods}:
            observed = replace(observed, lost=await self._lost(key, driver.uid, observed))
        waited_for = not pods and any(w.state == "Active" for w in observed.workloads)
        if stuck or waited_for or waits is not None:
            self._queue.add(key, self._look_again(key, pipeline, now, since))
        return observed

    async def _look_for_executors(
        self, key: Key, decision: Decision, observed: Observed, now: datetime
    ) -> Observed | None:
        """Add why no executor runs, if a batch is waited for; None if none is."""
        pod = next(iter(workloads.drivers(observed)), None)
        report = health.current_report(observed, pod)
        spec = decision.spec
        if report is None or pod is None or spec is None or spec.spark.executors.max == 0:
            return None
        late = not report.said.caught_up and now >= report.progressed + _EXECUTORS_AFTER
        if report.said.phase != "Running" or (health.committed(report, pod) and not late):
            return None
        labels = f"{names.PIPELINE}={key.name},{names.COMPONENT}=executor"
        try:
            listed = (await self._api.list("v1", "Pod", key.namespace, labels=labels)).items
            problem = observe.executor_problem(listed)
            if not listed and spec.spark.backend == "native":
                app = workloads.application(decision, observed)
                problem = await self._actor.try_executor(observed.resource, build.executor_trial(app, pod))
        except ApiError as error:
            _log.debug("cannot look for executors of %s/%s: %s", *key, error)
            return None
        return replace(observed, executors=problem)

    def _look_again(self, key: Key, pipeline: Pipeline, now: datetime, since: datetime) -> float:
        """Return in how many seconds to look again: soon, and less and less often while nothing changes."""
        inputs = self._inputs(key, pipeline, since)
        if pipeline.looking is None or pipeline.looking[0] != inputs:
            pipeline.looking = inputs, now
        waited = (now - pipeline.looking[1]).total_seconds()
        return min(max(_LOOKING_SECONDS, waited / 10), _LOOKING_MOST_SECONDS)

    async def _look_for_pod(self, key: Key, decision: Decision, observed: Observed) -> Observed:
        """Add why the pod that should exist does not."""
        for workload in observed.workloads:
            if workload.state in ("Active", "Idle") and not workload.deleting:
                refusal = observe.pod_refusal(await self._events_of(key, workload.uid), workload.uid)
                if refusal:
                    return replace(observed, pod_refusal=refusal)
        name = f"{names.driver(key.name)}-0"
        if observed.resource.deleting or workloads.kind(decision) != "StatefulSet":
            return observed
        taken = await self._api.get("v1", "Pod", key.namespace, name)
        if taken is not None and observe.is_foreign(taken, observed.resource.uid):
            return replace(observed, foreign_pod=name)
        return observed

    async def _lost(self, key: Key, uid: str, observed: Observed) -> Ending | None:
        """Return how the pod with this uid ended: by its own status while it exists, else by its Events."""
        for pod in observed.pods:
            if pod.uid == uid and pod.reason:
                return Ending(0, pod.reason, pod.message, pod.ending.at if pod.ending is not None else None)
        return observe.lost(await self._events_of(key, uid), uid)

    async def _events_of(self, key: Key, uid: str) -> list[Object]:
        try:
            fields = f"involvedObject.uid={uid}"
            return (await self._api.list("v1", "Event", key.namespace, fields=fields)).items
        except ApiError as error:
            _log.debug("cannot read the events of %s: %s", uid, error)
            return []

    async def _carry_out(
        self, pipeline: Pipeline, observed: Observed, now: datetime
    ) -> tuple[Plan, Object | None]:
        """Plan, and act accordingly. Returns the plan, and the pipeline's new body if it was written."""
        resource = observed.resource
        planned = self._plan(pipeline, observed, now)
        has_finalizer = names.FINALIZER in resource.finalizers
        if has_finalizer and not planned.finalizer and (resource.deleting or observed.namespace_ends):
            return planned, await self._actor.remove_finalizer(resource)
        body: Object | None = None
        if planned.finalizer and not has_finalizer and not resource.deleting:
            body = await self._actor.add_finalizer(resource)  # before there is any data to delete
        obstacles = await self._actor.apply(resource, planned.urgent)
        if not observed.obstacles or observed.accepted is not None:
            obstacles += await self._actor.apply(resource, planned.objects)
        if obstacles and not observed.obstacles:  # valid a moment ago, but no longer
            observed = replace(observed, obstacles=_in_spec(obstacles, pipeline.spec))
            planned = self._plan(pipeline, observed, now)
        await self._actor.mark(resource, planned.marks)
        await self._actor.delete(resource, planned.deletions)
        if not status.unchanged(resource.status, planned.status):
            written = await self._actor.write_status(resource, planned.status)
            if written is not None:
                await self._actor.record(resource, planned.events, iso(now))
            body = written or body
        if has_finalizer and not planned.finalizer:
            body = await self._actor.remove_finalizer(resource) or body
        if planned.again is not None:
            self._queue.add(key_of(pipeline.body), max(0.0, (planned.again - self._clock()).total_seconds()))
        return planned, body

    async def tell_failing(self, key: Key, since: datetime, error: Exception) -> None:
        """Report in the status that passes have failed ``since`` then, with the last ``error``."""
        pipeline = self.pipelines.get(key)
        if pipeline is None:
            return
        pipeline.manifest = pipeline.newest
        resource, now = observe.resource(pipeline.body), self._clock()
        words = str(error) if isinstance(error, ApiError | Unreachable | CannotWatch) else repr(error)
        after = status.failing(resource, since, words, now)
        before, ready = resource.status.condition("Ready"), after.condition("Ready")
        if before is not None and ready is not None:
            same = (before.reason, before.observed_generation) == (ready.reason, ready.observed_generation)
            if same:  # once is enough: each write causes another pass
                return
        body = await self._actor.write_status(resource, after)
        if body is not None:
            self._remember(key, pipeline, body)
            await self._actor.record(resource, status.events(resource.status, after), iso(now))

    def _remember(self, key: Key, pipeline: Pipeline, body: Object) -> bool:
        """Keep what a write returned, so that the next pass does not start from an older state.

        Somebody may have edited the pipeline just before the write. Returns whether the answer has such an
        edit, which then gets a pass of its own, even if no watch reports it.
        """
        edited = pipeline.learn(body)
        if edited and self.pipelines.get(key) is pipeline:
            self._queue.add(key)
        return edited


def _writer(
    resource: Resource, before: Report | None, progress: Object | None, pods: tuple[Pod, ...]
) -> Writer | None:
    """Return who writes reports at this time, as far as that is known.

    Of a report that a new operator finds, the status may say whose it is.
    """
    driver = resource.status.driver
    if before is None:
        told = observe.run_of(progress)
        if driver is None or driver.uid is None or told is None or driver.run_id != told:
            return None
        return Writer(driver.uid, driver.exits or 0, driver.revision)
    running = [pod for pod in pods if pod.component == "driver" and pod.started is not None]
    return Writer(running[0].uid, running[0].exits, running[0].revision) if running else None


def _seems_silent(report: Report | None, pods: tuple[Pod, ...], now: datetime, since: datetime) -> bool:
    if report is None or not any(pod.started is not None for pod in pods):
        return False
    return now >= max(report.seen, since) + health.STALE_AFTER


_WORKLOADS = ("StatefulSet", "Job", "CronJob", "SparkApplication")


def _asked(body: Object) -> Object:
    """Return everything of a resource but its status, and what tells of the write alone."""
    metadata = {k: v for k, v in body["metadata"].items() if k not in ("resourceVersion", "managedFields")}
    return {**{k: v for k, v in body.items() if k != "status"}, "metadata": metadata}


def _as_seen_since(report: Report | None, since: datetime) -> Report | None:
    """Return the report without counting times at which the API server could not be watched."""
    if report is None:
        return None
    return replace(report, seen=max(report.seen, since), progressed=max(report.progressed, since))


def _in_spec(obstacles: tuple[Obstacle, ...], spec: PipelineSpec | ManifestError) -> tuple[Obstacle, ...]:
    """Return the obstacles with paths as they are in the resource."""
    both = spec.spark.pod_template if isinstance(spec, PipelineSpec) else None
    own = spec.spark.driver.pod_template if isinstance(spec, PipelineSpec) else None
    return tuple(replace(o, message=podtemplate.in_spec(o.message, both, own)) for o in obstacles)


def spec_of(body: Object) -> PipelineSpec | ManifestError:
    """Return the spec, or everything that is wrong with it.

    The other parts of the resource are not checked: Kubernetes and the operator write them.
    """
    key = key_of(body)
    metadata = {"name": key.name, "namespace": key.namespace}
    document = {name: body[name] for name in ("apiVersion", "kind", "spec") if name in body}
    try:
        spec = CdcPipeline.from_dict({**document, "metadata": metadata}).spec
        claims(spec, key.namespace)
    except ManifestError as error:
        return error
    except Exception as error:  # whatever it is: one pipeline must not stop the others
        _log.exception("%s/%s: the spec cannot be read", *key)
        return ManifestError([("spec", f"cannot be read: {error!r}")])
    return spec


def key_of(body: Object) -> Key:
    return Key(body["metadata"]["namespace"], body["metadata"]["name"])


def version_of(body: Object) -> int:
    return int(body["metadata"].get("resourceVersion") or 0)
