"""Whose a mirror is, by the identity of its checkpoint: the rule, and what is seen of another checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lakemirror.driver.checkpoint import possession
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.possession import Neighbours, Possessor, Seen, Verdict, ensured, judge
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.errors import LakemirrorError
from tests.driver.checkpoint.test_owner import RemoteStorage

pytestmark = pytest.mark.guarantee(
    "A mirror belongs to one checkpoint. Another one takes it over only if its driver has stopped or shows "
    "no life for a lease, or the checkpoint is gone, and says so; cleanup and maintenance leave it alone"
)

OURS = Possessor("a", "s3a://lake/a")
OTHER = Possessor("b", "s3a://lake/b")


def judged(named: Possessor | None, *, wrote: bool = False, seen: Seen | None = None) -> Verdict:
    """The verdict, where ``seen`` None stands for a look that must not happen."""

    def look(other: Possessor) -> Seen:
        assert seen is not None, "nothing has to be looked at"
        assert other == named
        return seen

    return judge(OURS, named, wrote=lambda: wrote, look=look)


def test_our_own_mirror_needs_no_look() -> None:
    assert judged(OURS) is Verdict.OURS
    assert judged(OURS.after(OTHER)) is Verdict.OURS


def test_a_checkpoint_that_was_moved_or_copied_names_its_new_place() -> None:
    assert judged(Possessor("a", "s3a://old/a")) is Verdict.CLAIM


def test_a_mirror_from_before_is_claimed_by_who_has_written_it() -> None:
    assert judged(None, wrote=True) is Verdict.CLAIM
    assert judged(None, wrote=False) is Verdict.BY_NAME


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (Seen.GONE, Verdict.GONE),
        (Seen.RELEASED, Verdict.RELEASED),
        (Seen.SILENT, Verdict.SILENT),
        (Seen.IN_USE, Verdict.IN_USE),
        (Seen.UNREADABLE, Verdict.UNREADABLE),
        (Seen.OURSELVES, Verdict.GONE),
    ],
)
def test_another_checkpoint_is_looked_at(seen: Seen, verdict: Verdict) -> None:
    assert judged(OTHER, wrote=True, seen=seen) is verdict
    assert verdict.takes_over is not verdict.refuses


def test_what_was_taken_by_a_checkpoint_that_cannot_be_seen_is_not_taken_back() -> None:
    """Two machines have a folder of one name: each would take the other's mirror for that of a lost one."""
    taken = OTHER.after(OURS)
    assert judged(taken, seen=Seen.OURSELVES) is Verdict.LOST
    assert judged(taken, seen=Seen.GONE) is Verdict.GONE
    assert judged(taken, seen=Seen.RELEASED) is Verdict.RELEASED


def test_a_mirror_names_its_checkpoint_and_a_few_former_ones() -> None:
    named = OURS
    for number in range(9):
        named = Possessor(str(number), "/c").after(named)
    assert named == Possessor("8", "/c", ("3", "4", "5", "6", "7"))
    assert Possessor.from_text(named.to_text()) == named
    assert OURS.after(OTHER.after(OURS)).former == ("b",)
    assert Possessor.from_text(None) is None
    assert Possessor.from_text("") is None


@pytest.mark.parametrize("text", ["{", "[]", '{"id": "a"}', "3", '{"id": "a", "place": "b", "former": 1}'])
def test_a_damaged_name_is_nobody_s(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever json says
        Possessor.from_text(text)
    assert possession.is_of_another(text, OURS)


def test_only_a_mirror_of_another_checkpoint_is_another_s() -> None:
    assert not possession.is_of_another(None, OURS)
    assert not possession.is_of_another(None, None)
    assert not possession.is_of_another(OURS.to_text(), OURS)
    assert possession.is_of_another(OTHER.to_text(), OURS)
    assert possession.is_of_another(OTHER.to_text(), None)


def test_an_identity_is_written_once(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "a")
    assert possession.stored(storage) is None
    made = ensured(storage)
    assert ensured(storage) == possession.stored(storage) == made
    assert ensured(LocalStorage(tmp_path / "b")).id != made.id
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    assert ensured(LocalStorage(tmp_path / "c")) == Possessor(made.id, f"file://{tmp_path}/c")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_damaged_identity_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoint.json").write_text(text)
    with pytest.raises(LakemirrorError, match=r"checkpoint\.json is damaged .* or delete it"):
        ensured(LocalStorage(tmp_path))


def test_a_checkpoint_is_found_again_whatever_its_path_contains(tmp_path: Path) -> None:
    folder = tmp_path / "50% #1"
    with Owner(LocalStorage(folder)):
        assert look_at(folder) is Seen.IN_USE


def look_at(folder: Path, other: Possessor | None = None) -> Seen:
    other = other or ensured(LocalStorage(folder))
    return Neighbours().look(None, OURS, other)


def test_what_is_seen_of_a_checkpoint_on_a_local_path(tmp_path: Path) -> None:
    assert look_at(tmp_path / "none", Possessor("b", str(tmp_path / "none"))) is Seen.GONE
    folder = tmp_path / "b"
    assert look_at(folder) is Seen.GONE, "nobody has ever owned it"
    owner = Owner(LocalStorage(folder)).acquire()
    assert look_at(folder) is Seen.IN_USE
    record = (folder / "owner" / "1.json").read_text()
    owner.release()
    assert look_at(folder) is Seen.RELEASED
    with Owner(LocalStorage(folder)) as again:
        assert again.incarnation == 2, "a look takes no lock with it"
    (folder / "owner" / "3.json").write_text(record)
    assert look_at(folder) is Seen.SILENT, "the process has ended, and left the record"
    assert look_at(folder, Possessor("b", str(folder))) is Seen.GONE, "a new checkpoint stands in its place"
    (folder / "checkpoint.json").write_text(json.dumps({"id": OURS.id}))
    assert look_at(folder, Possessor("b", str(folder))) is Seen.OURSELVES
    assert look_at(folder, Possessor("b", "s3a://lake/b")) is Seen.UNREADABLE, "not without a session"


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteStorage:
    storage = RemoteStorage(tmp_path)
    opened: Callable[..., RemoteStorage] = lambda uri, spark=None: storage  # noqa: E731
    monkeypatch.setattr(possession, "open_storage", opened)
    return storage


def test_a_driver_elsewhere_is_watched_for_its_lease(remote: RemoteStorage) -> None:
    now = [0.0]
    neighbours, other = Neighbours(lambda: now[0]), ensured(remote)
    owner = Owner(remote, lease_seconds=0.6).acquire()
    assert neighbours.look(None, OURS, other) is Seen.IN_USE, "it has renewed its record"
    owner.release()
    assert neighbours.look(None, OURS, other) is Seen.RELEASED


def test_a_driver_that_is_killed_elsewhere_is_silent_after_its_lease(
    remote: RemoteStorage, tmp_path: Path
) -> None:
    now = [0.0]
    neighbours, other = Neighbours(lambda: now[0]), ensured(remote)
    owner = Owner(remote, lease_seconds=0.6).acquire()
    assert neighbours.look(None, OURS, other) is Seen.IN_USE
    text = (tmp_path / "owner" / "1.json").read_text()
    owner.release()
    (tmp_path / "owner" / "2.json").write_text(text)
    assert neighbours.look(None, OURS, other) is Seen.IN_USE, "another record than before"
    assert neighbours.look(None, OURS, other) is Seen.IN_USE, "and not for long enough"
    now[0] = 0.7
    assert neighbours.look(None, OURS, other) is Seen.SILENT
    assert Neighbours().look(None, OURS, other) is Seen.SILENT, "a first look waits for the lease"


def test_a_checkpoint_belongs_to_the_pipeline_that_first_used_it(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    made = ensured(storage)  # by an earlier version, which did not note the name
    assert ensured(storage, "shop") == made == ensured(storage, "shop") == ensured(storage)
    for refused in (ensured, possession.require_own):
        with pytest.raises(possession.AnotherPipeline, match=r"spec.checkpoint: .*pipeline shop, .* other"):
            refused(storage, "other")
    assert possession.stored(storage) == made
