"""The kopf handlers, which watch CdcPipelines and nothing else.

A handler only says that something may have changed. There are no timers, daemons or handlers of changes,
because those add finalizers and annotations to the resources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import kopf

from lakemirror.api import GROUP, VERSION
from lakemirror.api.crd import PLURAL
from lakemirror.controller.values import Object


class _Backoffs:
    """Seconds between the attempts of a request of kopf, without an end."""

    def __iter__(self) -> Iterator[float]:
        return chain((1, 1, 2, 3, 5, 8, 13, 21), repeat(30))


def registry(take: Callable[[Object], None], gone: Callable[[Object], None]) -> kopf.OperatorRegistry:
    """Return handlers that pass on each pipeline that is added or changes, and each that is deleted."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def seen(type: str | None, body: kopf.Body, **_: Any) -> None:
        document = {**body}
        gone(document) if type == "DELETED" else take(document)

    @kopf.on.startup(registry=handlers)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        # A namespace that refuses is asked again for as long as it is listed; kopf would give up and end.
        settings.networking.error_backoffs = _Backoffs()
        settings.scanning.disabled = (
            True  # scanning for CRDs and namespaces needs rights in the whole cluster
        )
        settings.networking.trust_env = True  # use proxies, as the client's other requests do

    @kopf.on.login(registry=handlers)
    async def login(**options: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**options)

    return handlers


async def watch(handlers: kopf.OperatorRegistry, namespaces: Sequence[str] | None) -> None:
    """Run kopf until the process is asked to stop."""
    where: dict[str, Any] = {"namespaces": list(namespaces)} if namespaces else {"clusterwide": True}
    await kopf.operator(registry=handlers, standalone=True, **where)
