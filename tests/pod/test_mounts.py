"""A Secret's files, renewed as the kubelet does: a new hidden folder, and a link that is moved to it."""

from __future__ import annotations

import os
from pathlib import Path

from lakemirror.pod.mounts import MountWatch


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def renew(folder: Path, name: str, password: str) -> None:
    inside = folder / name
    inside.mkdir(parents=True)
    (inside / "password").write_text(password)
    link = folder / "..new"
    link.symlink_to(name)
    os.replace(link, folder / "..data")
    if not (folder / "password").exists():
        (folder / "password").symlink_to("..data/password")


def test_a_change_is_noticed_and_a_mere_renewal_is_not(tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "kafka-auth"
    renew(folder, "..one", "secret")
    watch = MountWatch([folder], clock)
    clock.now = 60
    assert not watch.changed()
    renew(folder, "..two", "secret")
    clock.now = 120
    assert not watch.changed()
    renew(folder, "..three", "other")
    assert not watch.changed(), "it looks now and then only"
    clock.now = 180
    assert watch.changed()
    renew(folder, "..four", "secret")
    clock.now = 240
    assert watch.changed(), "the driver may have read what was there meanwhile"


def test_no_secret_never_changes() -> None:
    clock = Clock()
    watch = MountWatch([], clock)
    clock.now = 60
    assert not watch.changed()
