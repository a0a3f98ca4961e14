"""Runs a model package in this process: `open_model` and one model class per task."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from PIL import Image

from headwaiter.engine.futures import Pending
from headwaiter.engine.session import Arrays, Session
from headwaiter.engine.settings import Batch, ModelSettings
from headwaiter.engine.settings_errors import parse_settings
from headwaiter.engine.worker import Engine
from headwaiter.package.manifest import Manifest, Package, Precision, open_package, verify
from headwaiter.tasks.decoding import DecodingOptions
from headwaiter.tasks.errors import InputError
from headwaiter.tasks.policy import Action, Episode, HistoryStep
from headwaiter.tasks.results import GeneratedText

if TYPE_CHECKING:
    from headwaiter.engine.batcher import ForwardJob
    from headwaiter.tasks.classification import Label
    from headwaiter.tasks.detection import Detections
    from headwaiter.tasks.forward_pass import WithUsage
    from headwaiter.tasks.image_generation import Pixels

    PendingLabels = Pending[WithUsage[tuple[Label, ...]]]

Answer = TypeVar("Answer")
Inputs = TypeVar("Inputs")


class Model:
    """A model package and its engine, which runs in a separate thread until `close`. Usable as a context manager."""

    def __init__(self, package: Package, engine: Engine[Any]) -> None:
        self.package, self.engine = package, engine
        engine.start()
        try:
            self.warm_up()
        except BaseException:
            engine.close(drain=False)
            raise

    def warm_up(self) -> None:
        """Run one small request, so that the first real one does not pay for lazy initialisation."""

    def _blank_image(self) -> bytes:
        """Return a PNG file of the model's fixed input size, or of 64 × 64 pixels."""
        limits, buffer = self.package.manifest.limits, io.BytesIO()
        Image.new("RGB", (limits.get("width", 64), limits.get("height", 64))).save(buffer, "PNG")
        return buffer.getvalue()

    @property
    def manifest(self) -> Manifest:
        return self.package.manifest

    @property
    def counters(self) -> dict[str, float]:
        return self.engine.counters.snapshot()

    def close(self, *, drain: bool = True) -> None:
        """Stop the engine. Pending requests are finished if `drain`, otherwise they fail."""
        self.engine.close(drain=drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)


class TranslationModel(Model):
    def __init__(self, package: Package, session: Session, settings: ModelSettings) -> None:
        from headwaiter.tasks.translation import Translation

        self.task = Translation(package, session, settings)
        super().__init__(package, self.task.engine)

    def translate(self, text: str | Sequence[str], *, split: bool = True, **decoding: Any) -> list[GeneratedText]:
        """Translate one or several texts; results are in the order of the texts."""
        options = DecodingOptions(**decoding)
        return _submit_all(
            _as_list(text), lambda item, field: self.task.translate(item, options, split=split, field=field), "text"
        )

    def warm_up(self) -> None:
        self.translate("warm", max_new_tokens=1, num_beams=1)

    def translate_stream(self, text: str, *, split: bool = True, **decoding: Any) -> Iterable[str]:
        return self.task.translate_stream(text, DecodingOptions(**decoding), split=split)


class GenerationModel(Model):
    def __init__(self, package: Package, session: Session, settings: ModelSettings) -> None:
        from headwaiter.tasks.generation import Generation

        self.task = Generation(package, session, settings)
        super().__init__(package, self.task.engine)

    def generate(self, prompt: str | Sequence[str], **decoding: Any) -> list[GeneratedText]:
        """Generate text for one or several prompts; results are in the order of the prompts."""
        options = DecodingOptions(**decoding)
        return _submit_all(
            _as_list(prompt), lambda item, field: self.task.generate(item, options, field=field), "prompt"
        )

    def warm_up(self) -> None:
        self.generate("warm", max_new_tokens=1, num_beams=1)

    def generate_stream(self, prompt: str, **decoding: Any) -> Iterable[str]:
        return self.task.generate_stream(prompt, DecodingOptions(**decoding))


class CaptioningModel(Model):
    def __init__(self, package: Package, session: Session, settings: ModelSettings) -> None:
        from headwaiter.tasks.captioning import Captioning

        self.task = Captioning(package, session, settings)
        super().__init__(package, self.task.engine)

    def caption(
        self, image: ImageInput | Sequence[ImageInput], *, prompt: str = "", **decoding: Any
    ) -> list[GeneratedText]:
        """Caption one or several images, given as bytes or paths; results are in the order of the images."""
        options = DecodingOptions(**decoding)
        return _submit_all(
            _read_images(image),
            lambda data, field: self.task.caption(data, options, prompt=prompt, field=field),
            "image",
        )

    def warm_up(self) -> None:
        self.caption(self._blank_image(), max_new_tokens=1, num_beams=1)

    def caption_stream(self, image: ImageInput, *, prompt: str = "", **decoding: Any) -> Iterable[str]:
        return self.task.caption_stream(_read_image(image), DecodingOptions(**decoding), prompt=prompt)


class PolicyModel(Model):
    def __init__(self, package: Package, session: Session, settings: ModelSettings) -> None:
        from headwaiter.engine.episodes import Episodes
        from headwaiter.tasks.policy import PolicyTask

        manifest = package.manifest
        assert manifest.policy is not None
        engine = Episodes(session, slots=settings.max_sequences)
        self.task = PolicyTask(engine, manifest.policy, manifest.limits["timesteps"])
        super().__init__(package, engine)

    def act(self, history: Sequence[HistoryStep], target_return: float) -> Action:
        """Return the action for the last state of a history."""
        return self.task.action(self.task.act(history, target_return).result())

    def warm_up(self) -> None:
        self.act([HistoryStep([0.0] * self.task.policy.state_size)], 0.0)

    def episode(self, target_return: float, *, greedy: bool = True, seed: int | None = None) -> Episode:
        """Open an episode; unless `greedy`, discrete actions are sampled."""
        return self.task.open_episode(target_return, greedy=greedy, seed=seed).result()


class ClassificationModel(Model):
    engine: Engine[ForwardJob]

    def __init__(self, package: Package, session: Session, settings: ModelSettings) -> None:
        from headwaiter.tasks.classification import Classification

        self.task = Classification(package, settings.limits)
        super().__init__(package, _batcher(session, settings.batch))

    def classify(
        self,
        *,
        text: Any = None,
        image: ImageInput | Sequence[ImageInput] | None = None,
        top_k: int | None = None,
        threshold: float | None = None,
    ) -> list[tuple[Label, ...]]:
        """Return the labels of each text, pair of texts (a tuple) or image, most likely first."""
        from headwaiter.tasks.classification import check_options

        check_options(top_k, threshold)
        if (text is None) == (image is None):
            raise InputError("exactly one of text and image is required", field="text")
        if image is None:
            results = _submit_all(
                _as_text_pairs(text),
                lambda pair, field: self.submit_text(*pair, top_k=top_k, threshold=threshold, field=field),
                "text",
            )
        else:
            results = _submit_all(
                _read_images(image),
                lambda data, field: self.submit_image(data, top_k=top_k, threshold=threshold, field=field),
                "image",
            )
        return [result.answer for result in results]

    def submit_text(self, text: str, pair: str | None = None, *, field: str = "text", **options: Any) -> PendingLabels:
        started = time.monotonic()
        return self._submit(self.task.prepare_text(text, pair, field=field), started, **options)

    def submit_image(self, image: bytes, *, field: str = "image", **options: Any) -> PendingLabels:
        started = time.monotonic()
        return self._submit(self.task.prepare_image(image, field=field), started, **options)

    def warm_up(self) -> None:
        if self.manifest.preprocessing.text is None:
            self.classify(image=self._blank_image())
        else:
            self.classify(text="warm")

    def _submit(
        self,
        arrays: Arrays,
        started: float,
        *,
        top_k: int | None = None,
        threshold: float | None = None,
        deadline: float | None = None,
    ) -> PendingLabels:
        from headwaiter.tasks.forward_pass import submit

        postprocess = partial(self.task.postprocess, top_k=top_k, threshold=threshold)
        return submit(self.engine, arrays, postprocess, started=started, deadline=deadline)


class DetectionModel(Model):
    engine: Engine[ForwardJob]

    def __init__(self, package: Package, session: Session, settings: ModelSettings) -> None:
        from headwaiter.tasks.detection import Detection

        self.task = Detection(package, settings.limits)
        super().__init__(package, _batcher(session, settings.batch))

    def detect(
        self, image: ImageInput | Sequence[ImageInput], *, threshold: float | None = None, max_boxes: int | None = None
    ) -> list[Detections]:
        """Return the boxes of each image in pixels, most likely first."""
        from headwaiter.tasks.detection import check_options

        check_options(threshold, max_boxes)
        results = _submit_all(
            _read_images(image),
            lambda data, field: self.submit_image(data, threshold=threshold, max_boxes=max_boxes, field=field),
            "image",
        )
        return [result.answer for result in results]

    def submit_image(
        self,
        image: bytes,
        *,
        threshold: float | None = None,
        max_boxes: int | None = None,
        deadline: float | None = None,
        field: str = "image",
    ) -> Pending[WithUsage[Detections]]:
        from headwaiter.tasks.forward_pass import submit

        started = time.monotonic()
        prepared = self.task.prepare_image(image, field=field)
        postprocess = partial(self.task.postprocess, image=prepared, threshold=threshold, max_boxes=max_boxes)
        return submit(self.engine, {"pixels": prepared.pixels}, postprocess, started=started, deadline=deadline)

    def warm_up(self) -> None:
        self.detect(self._blank_image())


class ImageGenerationModel(Model):
    engine: Engine[ForwardJob]

    def __init__(self, package: Package, session: Session, settings: ModelSettings) -> None:
        from headwaiter.tasks.image_generation import ImageGeneration

        assert package.manifest.noise is not None
        self.task = ImageGeneration(package.manifest.noise, max_count=settings.limits.images)
        super().__init__(package, _batcher(session, settings.batch))

    def generate_images(self, count: int = 1, *, seed: int | None = None) -> list[bytes]:
        """Generate `count` PNG files. With the same seed, the first images are the same for every `count`."""
        from headwaiter.tasks.image_generation import png

        results = _submit_all(self.task.sample_noise(count, seed), lambda noise, _: self.submit(noise), "count")
        return [png(result.answer) for result in results]

    def submit(self, noise: Arrays, *, deadline: float | None = None) -> Pending[WithUsage[Pixels]]:
        from headwaiter.tasks.forward_pass import submit

        return submit(self.engine, noise, self.task.postprocess, started=time.monotonic(), deadline=deadline)

    def warm_up(self) -> None:
        self.generate_images()


ImageInput = bytes | str | Path
_MODELS: dict[str, type[Any]] = {
    "classification": ClassificationModel,
    "detection": DetectionModel,
    "translation": TranslationModel,
    "generation": GenerationModel,
    "captioning": CaptioningModel,
    "policy": PolicyModel,
}


def open_model(
    path: str | Path, *, version: str | None = None, precision: Precision | None = None, **settings: Any
) -> Any:
    """Open, verify and warm up the package at `models/NAME`.

    `settings` are the keys of a model in serve.yaml that `ModelSettings` defines, for example
    `max_sequences=8, limits={"new_tokens": 64}`. Returns the model class of the package's task, such as
    `TranslationModel`. Raises `PackageError` for the package and `SettingsError` for a setting.
    """
    checked = parse_settings(settings)
    return load_model(open_package(path, version=version, precision=precision), checked)


def load_model(package: Package, settings: ModelSettings) -> Any:
    """As `open_model`, for a package that is open already."""
    verify(package)
    session = Session(package, device=settings.device, threads=settings.threads)
    model_class = _MODELS[package.manifest.task] if package.manifest.noise is None else ImageGenerationModel
    return model_class(package, session, settings)


def _batcher(session: Session, batch: Batch) -> Engine[ForwardJob]:
    from headwaiter.engine.batcher import open_batcher

    return open_batcher(session, token_budget=batch.tokens, pixel_budget=batch.pixels)


def _submit_all(inputs: Sequence[Inputs], submit: Callable[[Inputs, str], Pending[Answer]], field: str) -> list[Answer]:
    """Submit all inputs and wait for their results; if one input is rejected, all are.

    Long inputs are submitted first, so that fewer slots are idle while the last sequences finish.
    """
    longest_first = sorted(range(len(inputs)), key=lambda index: -len(inputs[index]))  # type: ignore[arg-type]
    pending: dict[int, Pending[Answer]] = {}
    try:
        for index in longest_first:
            pending[index] = submit(inputs[index], f"{field}[{index}]")
        return [pending[index].result() for index in range(len(inputs))]
    except BaseException:
        for request in pending.values():
            request.cancel()
        raise


def _as_text_pairs(text: Any) -> list[tuple[str, ...]]:
    """Convert a text, a pair of texts (a tuple) or a list of either to a list of tuples."""
    items = text if isinstance(text, list) else [text]
    return [item if isinstance(item, tuple) else (item,) for item in items]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _read_images(images: ImageInput | Sequence[ImageInput]) -> list[bytes]:
    return [_read_image(image) for image in _as_list(images)]


def _read_image(image: ImageInput) -> bytes:
    return image if isinstance(image, bytes) else Path(image).read_bytes()
