"""Settings of a model: resources of its engine and limits of a request. serve.yaml, replicas and `open_model` share
them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Base of every section of serve.yaml. The docstring below a field is its entry in the published reference
    (`python -m deploy.config_reference`)."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Limits(Section):
    """Limits of a single request. Requests beyond them are rejected."""

    max_queue_wait_ms: Count = 2_000
    """Maximum estimated queueing delay in milliseconds; requests expected to wait longer are rejected."""
    text: Count = 20_000
    """Maximum characters per text."""
    new_tokens: Count = 256
    """Maximum generated tokens per output."""
    num_beams: Count = 8
    """Maximum beams per output; each beam uses one of `max_sequences`."""
    pixels: Count = 32_000_000
    """Maximum pixels per input image."""
    request_pixels: Count = 256_000_000
    """Maximum pixels of all input images of a request."""
    prepared_mb: Count = 512
    """Maximum size in MiB of the model inputs that the images of a request are converted to."""
    images: int = Field(default=64, ge=1, le=256)
    """Maximum generated images per request."""
    message_mb: int = Field(default=32, ge=1, le=256)
    """Maximum request size in MiB."""
    concurrent_mb: Count = 256
    """Maximum total size in MiB of the requests that a replica reads and processes at the same time."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.concurrent_mb < self.message_mb:
            raise ValueError(
                f"sets message_mb to {self.message_mb} and concurrent_mb to {self.concurrent_mb}; "
                "concurrent_mb must not be below message_mb"
            )
        return self


DEFAULT_LIMITS = Limits()


class Batch(Section):
    """Size of a batch for models that run a single forward pass."""

    tokens: Count = 512
    """Maximum padded tokens per batch (text classifiers)."""
    pixels: Count = 4 * 224 * 224
    """Maximum padded pixels per batch (image models)."""


class ModelSettings(Section):
    """How a model runs and what a request may ask for."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Execution device: auto, cpu or cuda; auto uses a GPU if `resources.gpus` is set."""
    threads: Count | None = None
    """Threads of ONNX Runtime per replica (`resources.cpus`, rounded up, if unset)."""
    max_sequences: Count = 64
    """Maximum sequences decoded, or policy episodes open, at the same time per replica."""
    run_timeout_s: Count = 120
    """A model whose graph runs longer than this many seconds counts as hung, and its replica is replaced."""
    batch: Batch = Batch()
    limits: Limits = DEFAULT_LIMITS
