"""What a process counts of the requests that it handles, as Prometheus text: by route and status, their time, batches, and those that wait."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

ROUTES = ("/search", "/retrieve", "/passages", "/health", "/ready", "/metrics", "/docs", "/openapi.json", "/")
TEXT = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64)


def route_of(path: str) -> str:
    """The route of a path, which may be counted and logged whatever a caller wrote: "other" for all paths that are none of the app's."""
    return next((route for route in ROUTES if path == route or (route == "/passages" and path.startswith("/passages/"))), "other")


class RequestMetrics:
    """The counters of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("raydense_requests", "Requests that were answered.", ["route", "status"], registry=self._registry)
        self._seconds = Histogram(
            "raydense_request_seconds",
            "Seconds to the reply, with those in which the body comes.",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._batch = Histogram(
            "raydense_batch_requests", "Requests that are encoded and searched together.", buckets=_SIZES, registry=self._registry
        )
        self.waiting = Gauge("raydense_requests_waiting", "Requests that have come and have no reply yet.", registry=self._registry)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """A request to the route of `path` got its reply."""
        route = route_of(path)
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, requests: int) -> None:
        """So many requests go on together."""
        self._batch.observe(requests)

    def text(self) -> bytes:
        """All of it, in Prometheus's text format (`TEXT`)."""
        return generate_latest(self._registry)
