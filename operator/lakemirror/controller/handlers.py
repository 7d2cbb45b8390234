"""What kopf watches: CdcPipelines, and nothing else. A handler only says that something may have changed.

No timers, daemons or handlers of changes, for these bring finalizers and annotations to the resources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import kopf

from lakemirror.api import GROUP, VERSION
from lakemirror.api.crd import PLURAL
from lakemirror.controller.values import Object


def registry(take: Callable[[Object], None], gone: Callable[[Object], None]) -> kopf.OperatorRegistry:
    """Handlers that pass on each pipeline that comes or changes, and each that is gone."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def seen(type: str | None, body: kopf.Body, **_: Any) -> None:
        document = {**body}
        gone(document) if type == "DELETED" else take(document)

    @kopf.on.startup(registry=handlers)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = (
            True  # neither CRDs nor namespaces: these need rights in the whole cluster
        )
        settings.networking.trust_env = True  # proxies, as the client's other requests do

    @kopf.on.login(registry=handlers)
    async def login(**options: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**options)

    return handlers


async def watch(handlers: kopf.OperatorRegistry, namespaces: Sequence[str] | None) -> None:
    """Run kopf until the process is asked to stop."""
    where: dict[str, Any] = {"namespaces": list(namespaces)} if namespaces else {"clusterwide": True}
    await kopf.operator(registry=handlers, standalone=True, **where)
