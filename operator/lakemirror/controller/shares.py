"""Lets one operator alone look after the pipelines of a namespace, however many are installed.

Each holds a Lease in every namespace in which it finds pipelines. Its identity there is the installation, not
the pod: which of its replicas acts is decided by the installation's own Lease.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from lakemirror.controller.kube import Api
from lakemirror.controller.lease import Lease, LeaseLost

NAME = "lakemirror-pipelines"
DURATION_SECONDS = 60.0
_ATTEMPT_SECONDS = 5.0
_log = logging.getLogger(__name__)


class Shares:
    """The namespaces that this installation, ``identity``, looks after."""

    def __init__(self, api: Api, identity: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._api, self._identity, self._monotonic = api, identity, monotonic
        self._leases: dict[str, Lease] = {}
        self._attempted: dict[str, float] = {}
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._told: dict[str, str] = {}

    async def holds(self, namespace: str) -> bool:
        """Return whether this operator may act in a namespace. Takes the Lease there if it is free.

        Where the operator has no right to hold Leases, no other one can be kept away, and it acts.
        """
        lease = self._leases.get(namespace)
        if lease is not None and (lease.held or lease.forbidden):
            return True
        async with self._locks[namespace]:
            lease = self._leases.setdefault(
                namespace,
                Lease(self._api, namespace, NAME, self._identity, self._monotonic, DURATION_SECONDS),
            )
            now = self._monotonic()
            if not lease.held and now >= self._attempted.get(namespace, -_ATTEMPT_SECONDS) + _ATTEMPT_SECONDS:
                self._attempted[namespace] = now
                await lease.attempt()
                self._tell(namespace, lease)
        return lease.held or lease.forbidden

    def _tell(self, namespace: str, lease: Lease) -> None:
        holder = "" if lease.held else lease.holder
        if holder != self._told.get(namespace, ""):
            if holder:
                _log.warning(
                    "namespace %s: its pipelines belong to the operator %s, so this one leaves them alone. "
                    "Install each operator with its own list of namespaces",
                    namespace,
                    holder,
                )
            self._told[namespace] = holder

    async def renew(self, namespaces: Iterable[str]) -> None:
        """Renew the Leases of these namespaces, which have pipelines, and give up all others."""
        wanted = set(namespaces)
        for namespace, lease in list(self._leases.items()):
            if namespace not in wanted:
                await self._give_up(namespace)
            elif lease.forbidden:
                del self._leases[namespace]  # it is asked again by the next pass
            elif lease.held:
                try:
                    await lease.renew()
                except LeaseLost as error:
                    _log.warning("namespace %s: %s", namespace, error)
                    del self._leases[namespace]

    async def release(self) -> None:
        """Give up all Leases, so that another operator can take them at once."""
        await asyncio.gather(*(self._give_up(namespace) for namespace in list(self._leases)))

    async def _give_up(self, namespace: str) -> None:
        lease = self._leases.pop(namespace)
        for known in (self._attempted, self._told, self._locks):
            known.pop(namespace, None)
        if lease.held:
            await lease.release()
