"""Serves all models of a serve.yaml in this process, without Ray, with the same gRPC, HTTP, metrics and health.

process = SingleProcess(load_config(file))
await process.start()
await process.reload(load_config(file))
await process.drain()
await process.stop()
"""

from __future__ import annotations

from headwaiter.serving.single_process.process import DRAIN_SECONDS, SingleProcess

__all__ = ["DRAIN_SECONDS", "SingleProcess"]
