"""Executors that a former container has left are deleted, and waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from lakemirror.pod import executors
from lakemirror.pod.api import Api

pytestmark = pytest.mark.guarantee(
    "A container that is restarted in place finds no executors of the previous one"
)


class Cluster(Api):
    """Answers with executors that go away a while after they are deleted."""

    def __init__(self, names: list[str], *, stay: int) -> None:
        super().__init__("http://unused", Path())
        self.names, self._stay = names, stay
        self.asked: list[tuple[str, str]] = []

    def request(self, method: str, path: str, body: Any = None) -> Any:
        self.asked.append((method, unquote(path)))
        if any(each == "DELETE" for each, _ in self.asked):
            self._stay -= 1
        if self._stay < 0:
            self.names = []
        return {"items": [{"metadata": {"name": name}} for name in self.names]}


def test_leftovers_are_deleted_and_waited_for() -> None:
    cluster = Cluster(["shop-exec-1", "shop-exec-2"], stay=3)
    assert executors.delete_leftovers(cluster, "ns", "shop", every=0) == 2
    assert [method for method, _ in cluster.asked] == ["GET", "DELETE", "GET", "GET", "GET"]
    selector = "labelSelector=lakemirror.io/pipeline=shop,app.kubernetes.io/component=executor"
    assert all(path.startswith(f"/api/v1/namespaces/ns/pods?{selector}") for _, path in cluster.asked)


def test_without_leftovers_nothing_is_deleted() -> None:
    cluster = Cluster([], stay=0)
    assert executors.delete_leftovers(cluster, "ns", "shop") == 0
    assert [method for method, _ in cluster.asked] == ["GET"]


def test_leftovers_that_stay_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_WAIT_SECONDS", 0.0)
    with pytest.raises(TimeoutError, match="shop-exec-1"):
        executors.delete_leftovers(Cluster(["shop-exec-1"], stay=10_000), "ns", "shop", every=0)
