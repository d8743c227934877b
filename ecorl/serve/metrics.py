"""Metrics of the service in Prometheus' text format, for ``GET /metrics``."""

from __future__ import annotations

from functools import partial

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
        counter, gauge = partial(Counter, registry=own), partial(Gauge, registry=own)
        sizes = partial(Histogram, registry=own)
        seconds = partial(Histogram, registry=own, buckets=_SECONDS)
        self.requests = counter("ecorl_serve_requests", "Answered requests.", ("path", "status"))
        told = "Requests without scores, by why."
        self.refused = counter("ecorl_serve_refused", told, ("reason",))
        told = "Answers that their clients did not read in time."
        self.unread = counter("ecorl_serve_unread", told)
        told = (
            "Rows: answered, without_answer (the engine gave no usable number), failed (with their "
            "batch), withdrawn (the client went away)."
        )
        self.rows = counter("ecorl_serve_rows", told, ("outcome",))
        self.tokens = counter("ecorl_serve_tokens", "Tokens of rows that the engine was given.")
        self.queue_rows = gauge("ecorl_serve_queue_rows", "Rows that wait.")
        told = "Rows of a micro-batch."
        self.batch_rows = sizes("ecorl_serve_batch_rows", told, buckets=_ROWS)
        told = "Tokens of a micro-batch."
        self.batch_tokens = sizes("ecorl_serve_batch_tokens", told, buckets=_TOKENS)
        told = "Request to answer, measured."
        self.request_s = seconds("ecorl_serve_request_seconds", told, ("path",))
        told = "A micro-batch in the engine on this host, measured."
        self.engine_s = seconds("ecorl_serve_engine_seconds", told)
        told = "Micro-batches that the engine failed on."
        self.faults = counter("ecorl_serve_engine_faults", told)
        self.draining = gauge("ecorl_serve_draining", "1 after the signal to stop.")
        told = "Time of the device, where it tells."
        self._device_s = counter("ecorl_serve_device_seconds", told, ("provenance",))
        told = "Energy of the device, where it tells."
        self._device_j = counter("ecorl_serve_device_energy_joules", told, ("provenance",))

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
