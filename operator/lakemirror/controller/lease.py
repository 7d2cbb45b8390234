"""Leader election: only the operator that holds a Lease acts, and others take it over if it is not renewed.

As in client-go's leaderelection, the clocks of two machines are never compared. A candidate only measures how
long it has seen the Lease unchanged. The Python client's own election is not as strict: a renewal may wait
for minutes, in which the leader goes on while another one starts; a refused connection ends the renewals but
not the leader's work; and it never releases the Lease.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from lakemirror.controller.kube import Api, ApiError, Unreachable
from lakemirror.controller.values import Object

API_VERSION, KIND = "coordination.k8s.io/v1", "Lease"
DURATION_SECONDS = 15.0
_log = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Another operator has taken the Lease, or the Lease is gone."""


class Lease:
    """The Lease ``name``, for the candidate ``identity``."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        monotonic: Callable[[], float] = time.monotonic,
        duration: float = DURATION_SECONDS,
    ) -> None:
        self._api, self._namespace, self._name, self._identity = api, namespace, name, identity
        self._monotonic, self._duration = monotonic, duration
        self._lease: Object = {}
        self._seen: tuple[str, float] = ("", 0.0)
        self._renewed: float | None = None
        self.forbidden = False
        """Whether the API server has refused access to the Lease when it was last tried."""
        self.holder = ""
        """Who held the Lease when it was last tried."""

    @property
    def held(self) -> bool:
        """Whether this operator may act now.

        While the API server cannot be reached, nobody can tell, so nobody acts.
        """
        return self._renewed is not None and self._monotonic() < self._renewed + self._duration * 2 / 3

    @property
    def left(self) -> float:
        """In how many seconds every request must have ended, so that none meets those of the next holder.

        Another candidate may take the Lease once it has seen it unchanged for its duration.
        """
        if not self.held or self._renewed is None:
            return 0.0
        return self._renewed + self._duration * 0.9 - self._monotonic()

    async def acquire(self) -> None:
        """Wait until the Lease is held."""
        while not await self.attempt():
            await asyncio.sleep(self._duration / 8)
        _log.info("%s holds the lease %s", self._identity, self._name)

    async def attempt(self) -> bool:
        """Take the Lease if it is free. Returns False if it is not, or if the API server cannot be asked."""
        asked = self._monotonic()
        self.forbidden = False
        try:
            found = await self._api.get(API_VERSION, KIND, self._namespace, self._name)
            self.holder = ((found or {}).get("spec") or {}).get("holderIdentity") or ""
            if found is None:
                self._lease = await self._api.create(self._document({}, taken=True))
            elif self._is_free(found):
                self._lease = await self._api.replace(self._document(found, taken=True))
            else:
                return False
        except (ApiError, Unreachable) as error:
            _log.info("cannot get the lease %s: %s", self._name, error)
            self.forbidden = isinstance(error, ApiError) and error.status == 403
            return False
        self._renewed = asked
        return True

    def _is_free(self, found: Object) -> bool:
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        version = found["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, self._monotonic())
        duration = spec.get("leaseDurationSeconds") or self._duration
        return holder in ("", self._identity) or self._monotonic() >= self._seen[1] + duration

    async def keep(self) -> None:
        """Renew the Lease forever. Raises LeaseLost when it is gone or another operator has it."""
        while True:
            await asyncio.sleep(self._duration / 4)
            await self.renew()

    async def renew(self) -> None:
        """Renew the Lease once. Raises LeaseLost when it is gone or another operator has it.

        While the API server does not answer, ``held`` expires.
        """
        asked = self._monotonic()
        try:
            self._lease = await self._api.replace(self._document(self._lease))
            self._renewed = asked
        except (ApiError, Unreachable) as error:
            _log.warning("the lease %s cannot be renewed: %s", self._name, error)
            if isinstance(error, ApiError) and error.status in (404, 409):
                await self._look_again()

    async def _look_again(self) -> None:
        """Check the Lease after a conflict: an answer may have been lost, or another operator has it."""
        try:
            found = await self._api.get(API_VERSION, KIND, self._namespace, self._name)
        except (ApiError, Unreachable):
            return  # the next renewal asks again
        holder = ((found or {}).get("spec") or {}).get("holderIdentity")
        if found is None or holder != self._identity:
            raise LeaseLost(f"{holder or 'nobody'} holds the lease {self._name} now")
        self._lease = found

    async def release(self) -> None:
        """Give up the Lease, so that the next candidate can take it at once."""
        self._renewed = None
        document = self._document(self._lease)
        document["spec"]["holderIdentity"] = ""
        try:
            await self._api.replace(document)
        except (ApiError, Unreachable) as error:
            _log.info("the lease %s was not given back: %s", self._name, error)

    def _document(self, before: Object, *, taken: bool = False) -> Object:
        spec = dict(before.get("spec") or {})
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": round(self._duration),
            "renewTime": now,
        }
        if taken:
            spec |= {"acquireTime": now, "leaseTransitions": (spec.get("leaseTransitions") or 0) + 1}
        metadata = before.get("metadata") or {"name": self._name, "namespace": self._namespace}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
