"""A new default image: who takes it when, and how a pipeline tells."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakemirror.api import PipelineSpec, PipelineStatus
from lakemirror.api.status import Condition
from lakemirror.controller import names, observe, rollout
from lakemirror.controller.cache import Key as Pipeline
from lakemirror.controller.images import Images
from lakemirror.controller.plan import plan
from lakemirror.controller.rollout import Rollout, Standing
from lakemirror.controller.values import Given, Moved, Observed, Pace, Plan, Settings, Turn
from tests.controller.builders import (
    NOW,
    SETTINGS,
    ago,
    find,
    following,
    planned,
    reason,
    revision,
    running,
    spec,
)

pytestmark = pytest.mark.guarantee(
    "A new default image is rolled out only as far as it works, and the rollout survives a restart of the "
    "operator"
)

PACE = Pace(1, timedelta(minutes=5))
OLD, NEW, NEWER = "driver:1", "driver:2", "driver:3"
A, B, C, D = (("mirrors", name) for name in "abcd")
Key = tuple[str, str]


def waits(**changes: Any) -> Standing:
    """Ready on the former image."""
    return replace(Standing(OLD), **changes)


def moved(minutes: float = 1, *, ready: bool = True, image: str = NEW) -> Standing:
    """Moved so many minutes ago, and not Ready since."""
    at = ago(minutes=minutes)
    return Standing(image, Moved(OLD, at, ready), at)


ILL = waits(unready_since=ago(hours=1))
"""Not Ready long since."""


def rolled(standings: dict[Key, Standing], pace: Pace = PACE, image: str = NEW) -> Rollout[Key]:
    return rollout.rollout(image, standings, pace, NOW)


class TestWhoMayMove:
    @pytest.mark.parametrize(
        ("standings", "may"),
        [
            ({}, []),
            ({A: Standing(NEW), B: Standing(NEW)}, []),
            ({B: waits(), A: waits(), C: waits()}, [A]),
            ({A: moved(), B: waits()}, []),
            ({A: Standing(NEW), B: waits(), C: waits()}, [B]),
            ({A: moved(minutes=6), B: waits()}, []),
            # What has long not been Ready is moved besides, and holds nobody up.
            ({A: ILL, B: waits(), C: Standing(NEW)}, [A, B]),
            ({A: moved(ready=False), B: waits(), C: ILL, D: Standing(NEW)}, [B]),
            ({A: moved(minutes=6, ready=False), B: ILL, C: waits(), D: Standing(NEW)}, [B, C]),
            # But not before another has proved the image, if there is one that can.
            ({A: ILL, B: waits()}, [B]),
            ({A: ILL, B: moved()}, []),
            ({A: ILL, B: ILL}, [A]),
            ({A: ILL, B: waits(), C: Standing(NEW, when="Later")}, [B]),
            # One that starts just now may become Ready yet.
            ({A: waits(unready_since=ago(minutes=1)), B: waits()}, [B]),
            # Suspended, or between two runs.
            ({A: waits(when="Later"), B: waits(when="AtStart"), C: waits()}, [C]),
            ({A: Standing("", when="AtStart"), B: waits()}, [B]),
        ],
    )
    def test_one_at_a_time(self, standings: dict[Key, Standing], may: list[Key]) -> None:
        assert sorted(rolled(standings).may) == may

    def test_a_number_at_a_time(self) -> None:
        three = Pace(3, PACE.timeout)
        assert sorted(rolled({A: waits(), B: moved(), C: waits(), D: waits()}, three).may) == [A, C]
        assert sorted(rolled({key: waits() for key in (A, B, C, D)}, three).may) == [A, B, C]

    def test_it_stops_at_the_first_that_is_not_ready_in_time(self) -> None:
        stopped = rolled({A: moved(minutes=6), B: waits(), C: waits(unready_since=ago(hours=1))})
        assert (stopped.stopped_by, stopped.may) == (A, frozenset())
        assert stopped.waiting == {B, C}
        mended = rolled({A: Standing(NEW), B: waits()})
        assert (mended.stopped_by, sorted(mended.may)) == (None, [B])

    def test_it_says_when_time_changes_it(self) -> None:
        assert rolled({A: moved(minutes=2), B: waits()}).again == NOW + timedelta(minutes=3)
        starting = waits(unready_since=ago(minutes=4))
        assert rolled({A: starting, B: waits()}).again == NOW + timedelta(minutes=1)
        assert rolled({A: moved(minutes=6), B: waits()}).again is None

    def test_what_a_former_image_broke_comes_first_and_still_counts(self) -> None:
        broken = moved(minutes=6)
        again = rolled({A: waits(), B: broken, C: waits()}, image=NEWER)
        assert sorted(again.may) == [B]
        taken = rollout.turn(B, broken, NEWER, again, PACE, NOW)
        assert taken == Turn(NEWER, NEWER, Moved(NEW, NOW, True), "Moving")

    def test_the_former_image_takes_back_the_one_that_failed_and_touches_no_other(self) -> None:
        assert sorted(rolled({A: moved(minutes=6), B: waits(), C: waits()}, image=OLD).may) == [A]

    def test_a_thousand_pipelines_are_judged_in_no_time(self) -> None:
        import time

        many = {("mirrors", f"p{number:04}"): waits() for number in range(1000)}
        began = time.perf_counter()
        rolled(many)
        assert time.perf_counter() - began < 0.1


class TestTurns:
    def turn(self, standing: Standing, of: Rollout[Key] | None = None, key: Key = B) -> Turn:
        return rollout.turn(key, standing, NEW, of or rolled({key: standing}), PACE, NOW)

    STOPPED: Rollout[Key] = Rollout(stopped_by=A)

    def test_what_is_new_or_begins_anyway_takes_the_newest(self) -> None:
        assert self.turn(Standing("", when="AtStart")) == Turn(NEW, NEW)
        assert self.turn(waits(when="AtStart")) == Turn(NEW, NEW)
        assert self.turn(waits(when="Later")) == Turn(OLD, NEW)

    def test_where_it_has_stopped_what_begins_keeps_its_image(self) -> None:
        assert self.turn(waits(when="AtStart"), self.STOPPED).image == OLD
        assert self.turn(Standing("", when="AtStart"), self.STOPPED).image == NEW

    def test_each_says_how_far_it_is(self) -> None:
        assert self.turn(waits(), rolled({A: moved(), B: waits()})).state == "Waiting"
        stopped = self.turn(waits(), rolled({A: moved(minutes=6), B: waits()}))
        assert (stopped.state, stopped.stopped_by, stopped.image) == ("Stopped", "mirrors/a", OLD)
        assert self.turn(moved()).state == "Moving"
        assert self.turn(moved(minutes=6)).state == "Failed"
        assert self.turn(moved(minutes=6, ready=False)).state == "Moving"
        assert self.turn(Standing(NEW)).state == ""

    def test_one_that_was_not_ready_before_proves_nothing(self) -> None:
        taken = self.turn(waits(unready_since=ago(hours=1)))
        assert taken.moved == Moved(OLD, NOW, False)


STREAM = spec()


def standing(of: PipelineSpec, seen: Observed, *, held: bool = False) -> Standing | None:
    return rollout.standing(of, held, seen, NOW)


def accepted(of: PipelineSpec, moved: Moved | None = None, **changes: Any) -> Observed:
    """A pipeline that runs, and what was given to it."""
    return running(of, given=Given(OLD, revision(of), moved), **changes)


class TestStandings:
    def test_a_ready_pipeline_is_in_turn(self) -> None:
        assert standing(STREAM, accepted(STREAM)) == Standing(OLD)

    def test_a_new_one_begins_with_the_newest(self) -> None:
        assert standing(STREAM, replace(accepted(STREAM), given=None)) == Standing("", when="AtStart")

    def test_one_with_an_image_of_its_own_takes_no_part(self) -> None:
        assert standing(spec(spark={"image": "mine:1"}), accepted(STREAM)) is None

    def test_a_move_is_proved_by_ready_on_the_revision_that_was_given(self) -> None:
        proves = Moved(OLD, ago(minutes=1), True)
        assert standing(STREAM, accepted(STREAM, proves)) == Standing(OLD)
        other = replace(accepted(STREAM), given=Given(NEW, "another", proves))
        assert standing(STREAM, other) == Standing(NEW, proves, NOW), "Ready was said of the driver before"

    def test_not_ready_counts_from_its_transition(self) -> None:
        seen = accepted(STREAM)
        ready = Condition(
            type="Ready", status="False", last_transition_time="2026-03-01T11:00:00Z", reason="NoProgress"
        )
        status = seen.resource.status.model_copy(update={"conditions": [ready]})
        seen = replace(seen, resource=replace(seen.resource, status=status))
        assert standing(STREAM, seen) == Standing(OLD, unready_since=ago(hours=1))

    def test_suspended_waits_and_takes_the_newest_when_it_resumes(self) -> None:
        suspended = spec(suspend=True)
        seen = following(accepted(suspended), planned(suspended, accepted(suspended)))
        found = standing(suspended, seen, held=True)
        assert found is not None
        assert found.when == "Later"
        resumed = standing(STREAM, seen)
        assert resumed is not None
        assert resumed.when == "AtStart"

    def test_to_suspend_one_that_was_moved_proves_nothing(self) -> None:
        suspended, move = spec(suspend=True), Moved(OLD, ago(minutes=9), True)
        seen = following(accepted(suspended), planned(suspended, accepted(suspended, workloads=(), pods=())))
        found = standing(suspended, replace(seen, given=Given(NEW, revision(suspended), move)), held=True)
        assert found is not None
        assert found.moved == move

    @pytest.mark.parametrize(
        ("trigger", "when"),
        [
            ({"availableNow": True}, "Later"),
            ({"availableNow": True, "schedule": "@daily"}, "AtStart"),
        ],
    )
    def test_runs_take_the_newest_the_next_time(self, trigger: dict[str, Any], when: str) -> None:
        of = spec(trigger=trigger)
        found = standing(of, replace(accepted(STREAM), given=Given(OLD, revision(of))))
        assert found is not None
        assert found.when == when

    def test_a_run_that_begins_for_another_reason_takes_the_newest(self) -> None:
        of = spec(trigger={"availableNow": True}, restartToken="again")
        found = standing(of, replace(accepted(STREAM), given=Given(OLD, "the run before")))
        assert found is not None
        assert found.when == "AtStart"

    def test_what_is_deleted_keeps_its_image_and_stops_nobody(self) -> None:
        seen = accepted(STREAM, Moved(OLD, ago(hours=1), True), resource={"deleting": True})
        assert standing(STREAM, seen) == Standing(OLD, when="Later")


class TestPlans:
    """The objects and the status of a pipeline whose turn is known."""

    NEWEST = Settings(NEW, PACE)

    def planned(self, turn: Turn, wanted: PipelineSpec = STREAM) -> Plan:
        return plan(wanted, accepted(STREAM, turn=turn), NOW, self.NEWEST)

    def test_one_that_waits_is_left_alone(self) -> None:
        after = self.planned(Turn(OLD, NEW, state="Waiting"))
        assert after.deletions == ()
        assert find(after.objects, "StatefulSet")["spec"]["template"] == self.template(STREAM, OLD)  # type: ignore[index]
        assert reason(after, "ImageRollout") == "WaitingForTurn"
        assert reason(after, "Ready") == "Progressing"
        assert after.events == (), "many wait at once"

    def template(self, of: PipelineSpec, image: str) -> Any:
        settings = Settings(image)
        found = find(plan(of, accepted(STREAM), NOW, settings).objects, "StatefulSet")
        assert found is not None
        return found["spec"]["template"]

    def test_an_edit_meanwhile_restarts_on_the_image_that_it_has(self) -> None:
        other = spec(onBadRecord="fail")
        after = self.planned(Turn(OLD, NEW, state="Waiting"), other)
        found = find(after.objects, "StatefulSet")
        assert found is not None
        assert found["spec"]["template"] == self.template(other, OLD)

    def test_a_move_is_written_down_with_the_image(self) -> None:
        move = Moved(OLD, NOW, True)
        after = self.planned(Turn(NEW, NEW, move, "Moving"))
        config = find(after.objects, "ConfigMap", "shop-config")
        assert config is not None
        assert observe.given(config, after.status) == Given(
            NEW, config["metadata"]["annotations"][names.CURRENT], move
        )
        assert [(event.type, event.reason) for event in after.events if event.reason == "RollingOut"] == [
            ("Normal", "RollingOut")
        ]

    def test_once_proved_nothing_of_it_stays(self) -> None:
        config = find(self.planned(Turn(NEW, NEW)).objects, "ConfigMap", "shop-config")
        assert config is not None
        assert names.MOVED not in config["metadata"]["annotations"]

    @pytest.mark.parametrize(
        "written",
        [
            json.dumps({"from": OLD, "at": "2026-03-01T12:00:00", "ready": True}),  # of no time zone
            json.dumps({"from": OLD, "at": "9999-12-31T23:59:59Z", "ready": True}),
            json.dumps({"from": OLD, "at": 5, "ready": True}),
            "[" * 100_000 + "]" * 100_000,
        ],
    )
    def test_what_a_user_writes_into_the_annotation_stops_no_rollout(self, written: str) -> None:
        """The rollout compares the times of all pipelines."""
        config = {
            "metadata": {"name": "shop-config", "annotations": {names.MOVED: written, names.IMAGE: NEW}}
        }
        had = observe.given(config, PipelineStatus())
        assert had is not None
        others = {A: waits(), B: rollout.unseen(had)}
        assert rollout.rollout(NEW, others, PACE, NOW).stopped_by is None

    def test_the_one_that_failed_says_what_to_do(self) -> None:
        after = self.planned(Turn(NEW, NEW, Moved(OLD, ago(minutes=6), True), "Failed"))
        condition = after.status.condition("ImageRollout")
        assert condition is not None
        for word in (OLD, NEW, "spec.spark.image", "driverImage"):
            assert word in condition.message
        assert [event.type for event in after.events if event.reason == "RolloutFailed"] == ["Warning"]

    @pytest.mark.parametrize(
        ("failed", "named"),
        [("mirrors/first", "pipeline mirrors/first"), ("others/secret", "a pipeline of another namespace")],
    )
    def test_others_name_the_one_that_failed_in_their_own_namespace(self, failed: str, named: str) -> None:
        after = self.planned(Turn(OLD, NEW, state="Stopped", stopped_by=failed))
        condition = after.status.condition("ImageRollout")
        assert condition is not None
        assert f"{named} is not Ready on" in condition.message
        assert "secret" not in condition.message
        assert after.events == ()

    def test_a_pipeline_with_an_image_of_its_own_says_nothing(self) -> None:
        own = spec(spark={"image": "mine:1"})
        after = plan(own, accepted(own), NOW, self.NEWEST)
        assert reason(after, "ImageRollout") is None
        config = find(after.objects, "ConfigMap", "shop-config")
        assert config is not None
        assert config["metadata"]["annotations"][names.IMAGE] == "mine:1"


def test_what_is_written_down_is_read_again() -> None:
    move = Moved(OLD, NOW, True)
    assert rollout.read(json.loads(json.dumps(rollout.document(move)))) == move
    assert [rollout.read(odd) for odd in (None, 5, {}, {"from": "x", "at": "y", "ready": 1})] == [None] * 4


def test_the_image_of_a_pipeline_of_an_older_operator_is_that_of_its_pod() -> None:
    seen = accepted(STREAM)
    config = find(planned(STREAM, seen).objects, "ConfigMap", "shop-config")
    assert config is not None
    del config["metadata"]["annotations"][names.IMAGE]
    found = observe.given(config, seen.resource.status)
    assert found is not None
    assert found.image == SETTINGS.driver_image


class TestManyPipelines:
    @pytest.mark.guarantee(
        "An unchanged pipeline costs the operator next to nothing; in a full cluster, checks of thousands of "
        "waiting drivers do not flood the API server"
    )
    def test_those_without_a_part_in_it_do_not_have_it_computed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes: list[int] = []

        def counted(image: str, standings: Mapping[Key, Standing], *more: Any) -> Rollout[Key]:
            sizes.append(len(standings))
            return whole(image, standings, *more)

        whole = rollout.rollout
        monkeypatch.setattr(rollout, "rollout", counted)
        images = Images(Settings(NEW))
        keys = [Pipeline("mirrors", f"shop-{number}") for number in range(200)]
        for way in (Standing("", when="AtStart"), Standing(NEW, unready_since=NOW), Standing(NEW)):
            for key in keys:
                images.take(key, way)
                images.turn(key, NOW)
        assert len(sizes) <= 3  # the first time, and when one has proved the image
        assert max(sizes) <= 1

    @pytest.mark.parametrize("seed", range(5))
    def test_it_is_the_rollout_of_all(self, seed: int) -> None:
        chance, now = random.Random(seed), NOW
        images = Images(Settings(NEW, PACE))
        keys = [Pipeline("mirrors", f"shop-{number}") for number in range(6)]
        ways = [
            *(
                waits(),
                ILL,
                moved(),
                moved(9),
                moved(ready=False),
                Standing(NEW),
                Standing(NEW, when="Later"),
            ),
            *(
                Standing("", when="AtStart"),
                Standing(OLD, when="Later"),
                Standing(NEW, unready_since=NOW),
                None,
            ),
        ]
        there: dict[Pipeline, Standing | None] = {}
        for _ in range(300):
            key = chance.choice(keys)
            if chance.random() < 0.1:
                there.pop(key, None)
                images.gone(key)
            else:
                there[key] = chance.choice(ways)
                images.take(key, there[key])
            asked = chance.choice(keys)
            standing = there.get(asked)
            every = {k: s for k, s in there.items() if s is not None}
            of = rollout.rollout(NEW, every, PACE, now)
            turn, _ = images.turn(asked, now)
            assert turn == (rollout.turn(asked, standing, NEW, of, PACE, now) if standing else None)
            if turn is not None and turn.moved is not None and standing and turn.moved != standing.moved:
                there[asked] = Standing(turn.image, turn.moved, now, standing.when)
