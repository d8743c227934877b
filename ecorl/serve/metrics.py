"""Metrics of the service in Prometheus' text format, for ``GET /metrics``."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ecorl.engines.protocol import EngineReport

CONTENT_TYPE = CONTENT_TYPE_LATEST

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_TOKENS = tuple(64 * 4**i for i in range(8))
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class ServiceMetrics:
    """The metrics of one service. Unknown device figures add no sample, rather than 0."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        self.requests = Counter(
            "ecorl_serve_requests", "Answered requests.", ("path", "status"), registry=own
        )
        self.refused = Counter(
            "ecorl_serve_refused", "Requests without scores, by why.", ("reason",), registry=own
        )
        self.unread = Counter(
            "ecorl_serve_unread", "Answers that their clients did not read in time.", registry=own
        )
        self.rows = Counter(
            "ecorl_serve_rows",
            "Rows: answered, without_answer (the engine gave no usable number), failed (with their "
            "batch), withdrawn (the client went away).",
            ("outcome",),
            registry=own,
        )
        self.tokens = Counter(
            "ecorl_serve_tokens", "Tokens of rows that the engine was given.", registry=own
        )
        self.queue_rows = Gauge("ecorl_serve_queue_rows", "Rows that wait.", registry=own)
        self.batch_rows = Histogram(
            "ecorl_serve_batch_rows", "Rows of a micro-batch.", buckets=_ROWS, registry=own
        )
        self.batch_tokens = Histogram(
            "ecorl_serve_batch_tokens", "Tokens of a micro-batch.", buckets=_TOKENS, registry=own
        )
        self.request_s = Histogram(
            "ecorl_serve_request_seconds",
            "Request to answer, measured.",
            ("path",),
            buckets=_SECONDS,
            registry=own,
        )
        self.engine_s = Histogram(
            "ecorl_serve_engine_seconds",
            "A micro-batch in the engine on this host, measured.",
            buckets=_SECONDS,
            registry=own,
        )
        self.faults = Counter(
            "ecorl_serve_engine_faults", "Micro-batches that the engine failed on.", registry=own
        )
        self.draining = Gauge("ecorl_serve_draining", "1 after the signal to stop.", registry=own)
        self._device_s = self._of_device("seconds", "Time of the device, where it tells.")
        self._device_j = self._of_device("energy_joules", "Energy of the device, where it tells.")

    def _of_device(self, name: str, text: str) -> Counter:
        return Counter(f"ecorl_serve_device_{name}", text, ("provenance",), registry=self._registry)

    def device(self, report: EngineReport) -> None:
        """Add the device time and energy of a micro-batch."""
        provenance = str(report.provenance)
        if report.device_time_s is not None:
            self._device_s.labels(provenance).inc(report.device_time_s)
        if report.device_energy_j is not None:
            self._device_j.labels(provenance).inc(report.device_energy_j)

    def text(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self._registry)
