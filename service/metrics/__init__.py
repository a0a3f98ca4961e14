"""What the replicas of a node counted, on one page, right to the last call.

Numbers are kept in prometheus_client's memory-mapped files, in one folder per node, and not with Ray's metrics. An
addition is in the file as soon as it is made, and the file outlives its process: after a replica has drained or was
killed the page shows every call that was made. Ray's metrics are sent at intervals, and what was counted since the last
one goes with the process.

Every replica of a node serves the page of the whole node, all on the same port: the kernel gives each scrape to one of
them. So a node has one address to scrape, as long as any replica lives on it, and no process that exists for it alone.

    metrics = open_metrics(folder, port=8080)
    model = metrics.of("opus-mt-zh-en")
    model.finished("Translate", "OK", 0.042)
"""

from __future__ import annotations

from service.metrics.model import ModelMetrics
from service.metrics.page import Metrics, MetricsError, open_metrics

__all__ = ["Metrics", "MetricsError", "ModelMetrics", "open_metrics"]
