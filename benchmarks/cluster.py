"""A Kubernetes API server for the benchmark of the operator: plain requests, many at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from lakemirror.controller.kube import log_in

Object = dict[str, Any]
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
_AT_ONCE = 32
_PAGE = 500
_SECONDS = aiohttp.ClientTimeout(total=60)


class Refused(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"status {status}: {text[:500]}")
        self.status = status


class Gone(Refused):
    """The object does not exist."""


class Cluster:
    """The API server that KUBECONFIG names. A context manager."""

    async def __aenter__(self) -> Cluster:
        configuration = Configuration()
        await log_in(configuration)
        client = ApiClient(configuration)
        headers: dict[str, str] = {}
        await client.update_params_for_auth(headers, [], ["BearerToken"], "", "", None)
        self._address = str(configuration.host).rstrip("/")
        tls = client.rest_client.ssl_context if self._address.startswith("https") else False
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, headers=headers)
        self._turn = asyncio.Semaphore(_AT_ONCE)
        await client.close()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Object:
        """Send one request and return the answer. Raises Refused if it is an error.

        Only a limited number of requests are sent at once.
        """
        url, data = f"{self._address}{path}", None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": type} if body is not None else {}
        async with (
            self._turn,
            self._session.request(
                method,
                url,
                data=data,
                headers=headers,
                params=query or {},
                timeout=_SECONDS,
            ) as answer,
        ):
            text = await answer.text()
            if answer.status >= 400:
                raise (Gone if answer.status == 404 else Refused)(answer.status, text)
            found: Object = json.loads(text)
            return found

    async def items(self, path: str, **query: str) -> list[Object]:
        """Return all items of a list, page by page."""
        found: list[Object] = []
        more: Mapping[str, str] = {}
        while True:
            page = await self.ask("GET", path, query={"limit": str(_PAGE), **query, **more})
            found += page["items"]
            if not page["metadata"].get("continue"):
                return found
            more = {"continue": page["metadata"]["continue"]}

    async def watch(self, path: str) -> AsyncIterator[tuple[str, Object]]:
        """Yield what changes from now on, until the caller stops.

        If the server no longer has the changes since the last one, all objects are listed and yielded.
        """
        version = await self._version(path)
        whole = aiohttp.ClientTimeout(total=None)
        while True:
            params = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
            async with self._session.get(
                f"{self._address}{path}", params=params, timeout=whole, read_bufsize=2**22
            ) as answer:
                async for line in answer.content:
                    event = json.loads(line)
                    if answer.status >= 400 or event["type"] == "ERROR":
                        version = await self._version(path)
                        for item in await self.items(path):
                            yield "MODIFIED", item
                        break
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield event["type"], event["object"]

    async def _version(self, path: str) -> str:
        listed = await self.ask("GET", path, query={"limit": "1"})
        return str(listed["metadata"]["resourceVersion"])
