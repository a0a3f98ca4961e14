"""Prometheus metrics of all replicas of a node, on one endpoint, exact up to the last request.

Values live in prometheus_client's memory-mapped files, in one directory per node, instead of in Ray's metrics. An
update is in the file immediately, and the file outlives its process, so requests served by drained or killed replicas
remain counted. Ray exports metrics at intervals and loses the last interval of a process that ends.

Every replica serves the metrics of the whole node on the same port (SO_REUSEPORT); the kernel assigns each scrape to
one of them. A node therefore has one scrape address while any replica runs, without a dedicated process.

    exporter = open_metrics(folder, port=8080)
    metrics = exporter.for_model("opus-mt-zh-en")
    metrics.record_request("Translate", "OK", 0.042)
"""

from __future__ import annotations

from headwaiter.serving.metrics.exporter import MetricsError, MetricsExporter, open_metrics
from headwaiter.serving.metrics.model import ModelMetrics

__all__ = ["MetricsError", "MetricsExporter", "ModelMetrics", "open_metrics"]
