"""Exports trained transformers to model packages."""

from __future__ import annotations

import headwaiter  # noqa: F401  # switches off ONNX Runtime's telemetry, which must precede its import
