"""Lets requests that write through only while the Lease is held, and only until it may pass to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from lakemirror.controller import names
from lakemirror.controller.kube import Api, Listed, Propagation, Unreachable, Watched
from lakemirror.controller.lease import Lease
from lakemirror.controller.values import Object

T = TypeVar("T")


class NotLeading(Unreachable):
    """The Lease is not held, or a request has not ended before it may pass. Nothing more may be written."""


class Fenced:
    """``Api`` for a pass. Each write asks for the Lease first, and is given up before another may have it.

    A pass may take longer than the Lease lasts: without this, a former leader would go on beside the next.
    """

    def __init__(self, api: Api, lease: Lease) -> None:
        self._api, self._lease = api, lease

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        return await self._api.get(api_version, kind, namespace, name)

    async def list(
        self, api_version: str, kind: str, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> Listed:
        return await self._api.list(api_version, kind, namespace, labels=labels, fields=fields)

    def watch(
        self, api_version: str, kind: str, namespace: str | None, version: str, *, labels: str = ""
    ) -> AsyncIterator[Watched]:
        return self._api.watch(api_version, kind, namespace, version, labels=labels)

    async def create(self, document: Object, *, dry_run: bool = False) -> Object:
        return await self._write(lambda: self._api.create(document, dry_run=dry_run))

    async def replace(self, document: Object) -> Object:
        return await self._write(lambda: self._api.replace(document))

    async def apply(
        self,
        document: Object,
        *,
        manager: str = names.FIELD_MANAGER,
        part: str = "",
        dry_run: bool = False,
    ) -> Object:
        return await self._write(
            lambda: self._api.apply(document, manager=manager, part=part, dry_run=dry_run)
        )

    async def merge(self, document: Object) -> Object:
        return await self._write(lambda: self._api.merge(document))

    async def patch(
        self, api_version: str, kind: str, namespace: str, name: str, operations: Sequence[Object]
    ) -> Object:
        return await self._write(lambda: self._api.patch(api_version, kind, namespace, name, operations))

    async def delete(
        self, api_version: str, kind: str, namespace: str, name: str, uid: str, *, propagation: Propagation
    ) -> None:
        await self._write(
            lambda: self._api.delete(api_version, kind, namespace, name, uid, propagation=propagation)
        )

    async def _write(self, request: Callable[[], Awaitable[T]]) -> T:
        left = self._lease.left
        if left <= 0:
            raise NotLeading("the lease is not held: another operator may act now")
        try:
            async with asyncio.timeout(left) as limit:
                return await request()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise NotLeading("no answer before the lease may pass to another operator") from error
