"""The API client against a small API server of its own: what is asked, and what becomes of the answers."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientTimeout, web

from lakemirror.controller import kube as kube_module
from lakemirror.controller.kube import ApiError, Cause, Kube, Unreachable
from tests.controller.test_loop import in_loop

pytestmark = pytest.mark.guarantee(
    "Answers of the API server are preserved: their messages, their causes, the end of a watch"
)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "ns"}}
PIPELINE = {
    "apiVersion": "lakemirror.io/v1alpha1",
    "kind": "CdcPipeline",
    "metadata": {"name": "shop", "namespace": "ns"},
}


class Server:
    """Answers every request by ``answer``, and remembers method, path, query, headers and body of each."""

    def __init__(self, answer: Answer, kubeconfig: Path) -> None:
        self._answer, self._kubeconfig = answer, kubeconfig
        self.requests: list[web.Request] = []
        self.bodies: list[Any] = []
        self.counted: list[tuple[str, str]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        text = await request.text()
        self.bodies.append(json.loads(text) if text else None)
        return await self._answer(request)

    def give(self, token: str) -> None:
        """Write a kubeconfig with this token."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self._kubeconfig.write_text(yaml.safe_dump(config), "utf-8")

    @property
    def asked(self) -> list[tuple[str, str, dict[str, str]]]:
        return [(r.method, r.path, dict(r.query)) for r in self.requests]


Serve = Callable[[Answer], Any]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """``async with serve(answer) as (server, kube)``."""
    kubeconfig = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    @asynccontextmanager
    async def serving(answer: Answer) -> AsyncIterator[tuple[Server, Kube]]:
        server = Server(answer, kubeconfig)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", server.handle)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        server.give("one")
        try:
            async with Kube(lambda verb, kind: server.counted.append((verb, kind))) as kube:
                yield server, kube
        finally:
            await runner.cleanup()

    return serving


def always(status: int, body: Any) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return answer


def lines(*texts: str, whole: bool = True) -> Answer:
    """A stream of these lines, which breaks off unless it is ``whole``."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for text in texts:
            await response.write(f"{text}\n".encode())
        if not whole:
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


def event(type: str, **metadata: str) -> str:
    return json.dumps({"type": type, "object": {**CONFIG_MAP, "metadata": metadata}})


def status(code: int, reason: str, message: str, **details: Any) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}


class TestRequests:
    @in_loop
    async def test_apply_is_server_side_and_forced(self, serve: Serve) -> None:
        async with serve(always(200, CONFIG_MAP)) as (server, kube):
            assert await kube.apply(CONFIG_MAP, dry_run=True) == CONFIG_MAP
        path = "/api/v1/namespaces/ns/configmaps/a"
        query = {"fieldManager": "lakemirror-operator", "force": "true", "dryRun": "All"}
        assert server.asked == [("PATCH", path, query)]
        assert server.bodies == [CONFIG_MAP]
        assert server.requests[0].content_type == "application/apply-patch+yaml"
        assert server.requests[0].headers["Authorization"] == "Bearer one"

    @in_loop
    async def test_requests_are_counted_by_verb_and_kind(self, serve: Serve) -> None:
        page = {"items": [], "metadata": {"resourceVersion": "1"}}
        async with serve(always(200, page)) as (server, kube):
            await kube.apply(CONFIG_MAP, dry_run=True)
            await kube.apply(CONFIG_MAP)
            await kube.replace(CONFIG_MAP)
            await kube.get("v1", "ConfigMap", "ns", "a")
            await kube.list("v1", "ConfigMap", None)
            assert server.counted == [
                (verb, "ConfigMap") for verb in ("dry-run", "apply", "update", "get", "list")
            ]

    @in_loop
    async def test_a_proxy_of_the_environment_is_asked(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with serve(always(200, CONFIG_MAP)) as (server, _):
            monkeypatch.setenv("http_proxy", server.url)
            server.url = "http://kubernetes.invalid"
            server.give("one")
            async with Kube() as kube:
                assert await kube.get("v1", "ConfigMap", "ns", "a") == CONFIG_MAP
        assert server.asked == [("GET", "/api/v1/namespaces/ns/configmaps/a", {})]

    @in_loop
    async def test_without_a_proxy_no_thread_looks_for_one(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
        async with serve(always(200, CONFIG_MAP)) as (_, kube):
            before = threading.active_count()
            for _ in range(4):
                await kube.get("v1", "ConfigMap", "ns", "a")
            assert threading.active_count() == before

    @in_loop
    async def test_the_status_is_a_subresource(self, serve: Serve) -> None:
        async with serve(always(200, PIPELINE)) as (server, kube):
            await kube.apply(PIPELINE, part="status", manager="m")
        path = "/apis/lakemirror.io/v1alpha1/namespaces/ns/cdcpipelines/shop/status"
        assert server.asked == [("PATCH", path, {"fieldManager": "m", "force": "true"})]

    @in_loop
    async def test_a_deletion_is_of_one_uid(self, serve: Serve) -> None:
        async with serve(always(200, {})) as (server, kube):
            await kube.delete("apps/v1", "StatefulSet", "ns", "s", "uid-1", propagation="Orphan")
        assert server.asked == [("DELETE", "/apis/apps/v1/namespaces/ns/statefulsets/s", {})]
        assert server.bodies[0]["preconditions"] == {"uid": "uid-1"}
        assert server.bodies[0]["propagationPolicy"] == "Orphan"

    @in_loop
    async def test_lists_are_read_page_by_page(self, serve: Serve) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            last = "continue" in request.query
            metadata = {"resourceVersion": "7", **({} if last else {"continue": "next+/="})}
            return web.json_response({"metadata": metadata, "items": [{"metadata": {"name": "a"}}]})

        async with serve(answer) as (server, kube):
            listed = await kube.list("v1", "Pod", None, labels="a=b,c in (d)")
        assert [(item["kind"], item["apiVersion"]) for item in listed.items] == [("Pod", "v1")] * 2
        assert listed.version == "7"
        assert [request.path for request in server.requests] == ["/api/v1/pods"] * 2
        assert server.requests[1].query["continue"] == "next+/="
        assert server.requests[1].query["labelSelector"] == "a=b,c in (d)"

    @in_loop
    async def test_credentials_that_are_refused_are_read_anew_once(self, serve: Serve) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            known = request.headers["Authorization"] == "Bearer two"
            return web.json_response(
                CONFIG_MAP if known else status(401, "Unauthorized", "who?"), status=200 if known else 401
            )

        async with serve(answer) as (server, kube):
            with pytest.raises(ApiError, match=r"who\?"):
                await kube.get("v1", "ConfigMap", "ns", "a")
            assert len(server.requests) == 2
            server.give("two")
            assert await kube.get("v1", "ConfigMap", "ns", "a") == CONFIG_MAP


class TestErrors:
    @in_loop
    async def test_what_is_not_there_is_none(self, serve: Serve) -> None:
        async with serve(always(404, status(404, "NotFound", "no"))) as (_, kube):
            assert await kube.get("v1", "Pod", "ns", "a") is None

    @in_loop
    async def test_a_refusal_keeps_the_words_and_the_causes(self, serve: Serve) -> None:
        cause = {"reason": "FieldValueInvalid", "message": "must be positive", "field": "spec.replicas"}
        async with serve(always(422, status(422, "Invalid", "it is invalid", causes=[cause]))) as (_, kube):
            with pytest.raises(ApiError) as raised:
                await kube.apply(CONFIG_MAP)
        error = raised.value
        assert (error.status, error.reason, error.message) == (422, "Invalid", "it is invalid")
        assert error.causes == (Cause(**cause),)
        assert error.refused
        assert error.caused_by("FieldValueInvalid")

    @in_loop
    async def test_a_500_keeps_its_words(self, serve: Serve) -> None:
        message = "failed to create typed patch object: .spec.tolerations: expected list, got &{all}"
        async with serve(always(500, {"kind": "Status", "code": 500, "message": message})) as (_, kube):
            with pytest.raises(ApiError) as raised:
                await kube.apply(CONFIG_MAP)
        assert (raised.value.status, raised.value.message) == (500, message)
        assert not raised.value.refused

    @in_loop
    async def test_a_proxy_may_answer_with_a_page(self, serve: Serve) -> None:
        async def answer(_: web.Request) -> web.StreamResponse:
            return web.Response(text="<h1>Bad Gateway</h1>", status=502)

        async with serve(answer) as (_, kube):
            with pytest.raises(ApiError, match="Bad Gateway") as raised:
                await kube.list("v1", "Pod", "ns")
        assert raised.value.status == 502

    @pytest.mark.parametrize("code", [429, 503, 504])
    @in_loop
    async def test_a_server_that_cannot_for_now_is_unreachable(self, serve: Serve, code: int) -> None:
        async with serve(always(code, status(code, "", "please wait"))) as (_, kube):
            with pytest.raises(Unreachable, match=f"status {code}: please wait"):
                await kube.get("v1", "Pod", "ns", "a")

    @in_loop
    async def test_no_server_is_unreachable(self, serve: Serve) -> None:
        async with serve(always(200, {})) as (server, kube):
            server.url = "http://127.0.0.1:9"
            server.give("one")
            async with Kube() as kube:
                with pytest.raises(Unreachable):
                    await kube.get("v1", "Pod", "ns", "a")

    @pytest.mark.usefixtures("serve")
    @in_loop
    async def test_no_way_to_log_in_is_unreachable(self) -> None:
        with pytest.raises(Unreachable, match="neither a service account nor a kubeconfig"):
            async with Kube():
                pass


class TestWatch:
    @in_loop
    async def test_it_ends_when_the_server_ends_it(self, serve: Serve) -> None:
        texts = [event("ADDED", name="a"), event("BOOKMARK", resourceVersion="9"), event("DELETED", name="a")]
        async with serve(lines(*texts)) as (server, kube):
            seen = [one async for one in kube.watch("v1", "ConfigMap", "ns", "5", labels="a=b")]
        assert [one.type for one in seen] == ["ADDED", "BOOKMARK", "DELETED"]
        assert seen[1].object["metadata"] == {"resourceVersion": "9"}
        query = dict(server.requests[0].query)
        assert query.pop("timeoutSeconds")
        assert query == {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": "a=b",
            "resourceVersion": "5",
        }

    @in_loop
    async def test_lines_may_be_as_long_as_a_request_to_the_api_server(self, serve: Serve) -> None:
        text = "x" * 3 * 2**20
        async with serve(lines(event("ADDED", name=text))) as (_, kube):
            (seen,) = [one async for one in kube.watch("v1", "ConfigMap", "ns", "5")]
        assert seen.object["metadata"]["name"] == text

    @in_loop
    async def test_a_version_that_is_too_old_is_told(self, serve: Serve) -> None:
        gone = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version: 5 (9)"}}
        async with serve(lines(event("ADDED", name="a"), json.dumps(gone))) as (_, kube):
            with pytest.raises(ApiError, match="too old resource version") as raised:
                [one async for one in kube.watch("v1", "ConfigMap", "ns", "5")]
        assert raised.value.status == 410

    @in_loop
    async def test_a_refused_watch_is_an_error(self, serve: Serve) -> None:
        async with serve(always(403, status(403, "Forbidden", "pods is forbidden"))) as (_, kube):
            with pytest.raises(ApiError, match="pods is forbidden"):
                [one async for one in kube.watch("v1", "Pod", "ns", "5")]

    @in_loop
    async def test_a_line_that_is_no_event_is_unreachable(self, serve: Serve) -> None:
        async with serve(lines("<html>")) as (_, kube):
            with pytest.raises(Unreachable):
                [one async for one in kube.watch("v1", "ConfigMap", "ns", "5")]

    @in_loop
    async def test_a_silent_watch_is_dead(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kube_module, "_WATCH_TIMEOUT", ClientTimeout(sock_read=0.2))

        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(f"{event('ADDED', name='a')}\n".encode())
            await asyncio.sleep(10)
            return response

        async with serve(answer) as (_, kube):
            events = kube.watch("v1", "ConfigMap", "ns", "5")
            assert (await anext(events)).type == "ADDED"
            with pytest.raises(Unreachable, match="Timeout"):
                await anext(events)

    @in_loop
    async def test_a_connection_that_breaks_is_unreachable(self, serve: Serve) -> None:
        async with serve(lines(event("ADDED", name="a"), whole=False)) as (_, kube):
            with pytest.raises(Unreachable):
                [one async for one in kube.watch("v1", "ConfigMap", "ns", "5")]
