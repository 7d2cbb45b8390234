"""Whatever the order of edits, writes, events and lists: no edit is lost, and no status is about another one.

The passes run one at a time, as the queue has it; what somebody else does comes between any two requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemirror.api import API_VERSION, KIND
from lakemirror.controller import names
from lakemirror.controller.cache import Cache, Key
from lakemirror.controller.queue import Queue
from lakemirror.controller.reconciler import Reconciler
from lakemirror.controller.values import Object
from tests.controller.builders import NOW, SETTINGS, document, merged
from tests.controller.fake_api import FakeApi

pytestmark = pytest.mark.guarantee(
    "No edit is lost, and no status is about another edit, whatever comes between edits, writes, events and "
    "lists"
)

KEY = Key("mirrors", "shop")
EDITS: dict[str, dict[str, Any]] = {
    "suspend": {"suspend": True},
    "resume": {"suspend": False},
    "retain": {"deletionPolicy": "Retain"},
    "delete all": {"deletionPolicy": "DeleteAll"},
    "restart": {"restartToken": "again"},
    "break": {"onBadRecord": "drop"},
    "mend": {"onBadRecord": "quarantine"},
}
ACTIONS = (*EDITS, "label", "finalizer", "deliver one", "deliver", "lose", "list")


class Scene:
    """One pipeline, and a reconciler whose events the test delivers, delays or loses."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.queue: Queue[Key] = Queue()
        self.cache = Cache(self.api, None, lambda key: None, lambda: NOW)
        self.cache._behind.clear()
        self.cache._current_since[None] = NOW
        self.reconciler = Reconciler(self.api, self.cache, self.queue, SETTINGS, lambda: NOW)
        self.specs: dict[int, Object] = {}
        """The spec of each generation."""
        self.events: list[Object] = []
        self.told = 0
        self.labels = 0

    def body(self) -> Object:
        return self.api.objects[API_VERSION, KIND, *KEY]

    async def edit(self, **changes: Any) -> None:
        there = self.api.objects.get((API_VERSION, KIND, *KEY))
        spec = merged(there["spec"], changes) if there is not None else document()["spec"]
        made = await self.api._write("", {**(there or document()), "spec": spec}, log=False)
        self.specs[made["metadata"]["generation"]] = made["spec"]

    async def change(self, **metadata: Any) -> None:
        body = self.body()
        await self.api._write("", {**body, "metadata": {**body["metadata"], **metadata}}, log=False)

    async def act(self, action: str) -> None:
        """What somebody else, or the network, does."""
        self.collect()
        if action in EDITS:
            await self.edit(**EDITS[action])
        elif action == "label":
            self.labels += 1
            await self.api.put(
                {**self.body(), "metadata": {**self.body()["metadata"], "labels": {"n": str(self.labels)}}}
            )
        elif action == "finalizer":
            metadata = self.body()["metadata"]
            others = [each for each in metadata.get("finalizers", []) if each != "example.com/mine"]
            mine = [] if len(others) != len(metadata.get("finalizers", [])) else ["example.com/mine"]
            await self.api._write(
                "", {**self.body(), "metadata": {**metadata, "finalizers": mine + others}}, log=False
            )
        elif action == "deliver one" and self.events:
            self.reconciler.take(self.events.pop(0))
        elif action == "deliver":
            while self.events:
                self.reconciler.take(self.events.pop(0))
        elif action == "lose":
            self.events.clear()
        elif action == "list":
            self.reconciler.take(self.body())

    def forget(self) -> None:
        """Drop what the API server keeps for a while: what watches have seen, requests, Events."""
        self.api.forget_history()
        self.api.calls.clear()
        self.api.created.clear()
        for each in [each for each in self.api.objects if each[1] == "Event"]:
            del self.api.objects[each]
            self.api.managers.pop(each, None)

    def collect(self) -> None:
        """Take what happened on the way to the watch of pipelines."""
        new = [(number, d) for number, _, d in self.api._history if number > self.told and d["kind"] == KIND]
        self.told = max([number for number, _ in new], default=self.told)
        self.events += [document for _, document in new]

    async def pass_(self, between: list[str]) -> None:
        """One pass, in which the actions come before the requests, one before each."""
        actions = iter(between)

        async def before(verb: str, kind: str) -> None:
            if verb != "get" or kind == KIND:
                action = next(actions, None)
                if action is not None:
                    await self.act(action)

        self.api.before = before
        try:
            await self.reconciler.reconcile(KEY)
        finally:
            self.api.before = None
        self.check()

    def check(self) -> None:
        """The status is about the generation that it names."""
        status = self.body().get("status")
        if not status:
            return
        ready = next(c for c in status["conditions"] if c["type"] == "Ready")
        spec = self.specs[status["observedGeneration"]]
        assert (ready["reason"] == "Suspended") == bool(spec.get("suspend"))
        broken = any(c["type"] == "Stalled" and c["reason"] == "InvalidSpec" for c in status["conditions"])
        assert broken == (spec.get("onBadRecord") == "drop")

    async def settle(self) -> None:
        """Passes as the queue asks for them, without another event of the pipeline: all may be lost."""
        for _ in range(20):
            if KEY not in self.queue._due or self.queue._due[KEY] > asyncio.get_running_loop().time():
                return
            assert await self.queue.get() == KEY
            await self.reconciler.reconcile(KEY)
            self.queue.done(KEY)
            self.check()
        raise AssertionError("the passes do not come to an end")


def in_scene(test: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        scene = Scene()
        await scene.edit()
        scene.reconciler.take(scene.body())
        await test(scene)

    asyncio.run(run())


def final(scene: Scene) -> None:
    """Everything is as the newest spec says."""
    body = scene.body()
    spec, status = body["spec"], body["status"]
    assert status["observedGeneration"] == body["metadata"]["generation"]
    workload = scene.api.one("StatefulSet", "shop-driver")
    assert workload["spec"]["replicas"] == (0 if spec.get("suspend") else 1)
    held = names.FINALIZER in body["metadata"].get("finalizers", [])
    policy = spec.get("deletionPolicy", "Retain")
    assert held == (policy == "DeleteAll") or spec.get("onBadRecord") == "drop"
    if policy == "Retain":
        assert not held


STEPS = st.lists(
    st.one_of(
        st.sampled_from(ACTIONS).map(lambda action: (action, [])),
        st.tuples(st.just("pass"), st.lists(st.sampled_from(ACTIONS), max_size=12)),
    ),
    max_size=8,
)


@given(STEPS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_edit_is_lost_whatever_comes_between(steps: list[tuple[str, list[str]]]) -> None:
    async def play(scene: Scene) -> None:
        await scene.pass_([])  # there is an accepted spec
        for step, between in steps:
            await (scene.pass_(between) if step == "pass" else scene.act(step))
        await scene.act("list")
        await scene.settle()
        final(scene)

    in_scene(play)


def test_an_edit_that_only_the_answer_to_a_status_write_shows_gets_a_pass() -> None:
    async def play(scene: Scene) -> None:
        async def before(verb: str, kind: str) -> None:
            if verb == "apply status":
                scene.api.before = None
                await scene.edit(suspend=True)

        scene.api.before = before
        await scene.settle()
        assert scene.body()["status"]["observedGeneration"] == 2
        final(scene)

    in_scene(play)


def test_data_is_kept_if_only_the_answer_to_a_status_write_says_so() -> None:
    async def play(scene: Scene) -> None:
        await scene.edit(deletionPolicy="DeleteAll")
        scene.reconciler.take(scene.body())
        await scene.settle()
        assert names.FINALIZER in scene.body()["metadata"]["finalizers"]
        await scene.edit(restartToken="1")
        scene.reconciler.take(scene.body())

        async def before(verb: str, kind: str) -> None:
            if verb == "apply status":
                scene.api.before = None
                await scene.edit(deletionPolicy="Retain")

        scene.api.before = before
        await scene.settle()
        assert not scene.body()["metadata"].get("finalizers")

    in_scene(play)
