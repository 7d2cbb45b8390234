"""Serves the operator's health over HTTP at /healthz and /readyz, and its metrics at /metrics."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

import lakemirror

BEAT_SECONDS = 10.0
SILENT_SECONDS = 60.0


class Vitals:
    """The operator's metrics and its canary: a key that must keep passing through the queue and its workers.

    While the operator waits for its Lease, or the API server does not answer, there is nothing to prove.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._beat: float | None = None
        self._missed: str | None = None
        self.ready = False
        self.registry = CollectorRegistry()
        self.passes = Counter(
            "lakemirror_operator_passes",
            "Number of passes over pipelines by result. Those that waited did not know the objects yet.",
            ["result"],
            registry=self.registry,
        )
        self.pipelines = Gauge(
            "lakemirror_operator_pipelines",
            "Number of pipelines by phase.",
            ["phase"],
            registry=self.registry,
        )
        self.rollout = Gauge(
            "lakemirror_operator_rollout_pipelines",
            "Number of pipelines without an image of their own, by rollout state of the default image.",
            ["state"],
            registry=self.registry,
        )
        self.waiting = Gauge(
            "lakemirror_operator_queue", "Number of pipelines waiting for a pass.", registry=self.registry
        )
        self.pass_seconds = Histogram(
            "lakemirror_operator_pass_duration_seconds",
            "Duration of a pass over one pipeline in seconds.",
            buckets=(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0),
            registry=self.registry,
        )
        self.requests = Counter(
            "lakemirror_operator_api_requests",
            "Number of API server requests, except the watch of CdcPipelines. Dry runs are a separate verb.",
            ["verb", "kind"],
            registry=self.registry,
        )
        self.leader = Gauge(
            "lakemirror_operator_leader",
            "1 if this operator holds the Lease and is active, 0 if it is waiting for the Lease.",
            registry=self.registry,
        )
        self.heartbeat = Gauge(
            "lakemirror_operator_heartbeat_timestamp_seconds",
            "Unix time of the last heartbeat through the queue, due every 10 seconds. 0 before the first.",
            registry=self.registry,
        )
        self.build = Gauge(
            "lakemirror_operator_build_info",
            "Version of the operator, given by the label. The value is always 1.",
            ["version"],
            registry=self.registry,
        )
        self.build.labels(lakemirror.__version__).set(1)

    def beat(self) -> None:
        """Note that the canary came through."""
        self._beat = self._monotonic()
        self.heartbeat.set_to_current_time()

    def asked(self, verb: str, kind: str) -> None:
        """Count a request to the API server."""
        self.requests.labels(verb, kind).inc()

    def missed(self, what: str) -> None:
        """Note that a change reached the API server's lists but not the operator: its watch is dead."""
        self._missed = what

    def trouble(self) -> str | None:
        """Return why the operator should be restarted, or None if it is healthy."""
        if self._missed is not None:
            return f"{self._missed} has changed, and no watch has told"
        if self._beat is not None and self._monotonic() - self._beat > SILENT_SECONDS:
            return f"nothing was reconciled for {SILENT_SECONDS:.0f} s"
        return None


async def serve(vitals: Vitals, port: int) -> web.AppRunner:
    """Start to serve over HTTP. ``cleanup`` of the returned runner stops it."""

    async def healthz(_: web.Request) -> web.Response:
        trouble = vitals.trouble()
        return web.Response(text=trouble or "ok", status=503 if trouble else 200)

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ok" if vitals.ready else "starting", status=200 if vitals.ready else 503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(vitals.registry), content_type="text/plain")

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
