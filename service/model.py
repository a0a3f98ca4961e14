"""`open_model`: a package, ready to answer, in this process."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from PIL import Image

from service.engine.futures import Pending
from service.engine.session import Arrays, Session
from service.engine.worker import Engine
from service.package import Manifest, Package, Precision, open_package, verify
from service.tasks.decoding import Decoding
from service.tasks.errors import InputError
from service.tasks.policy import Moment
from service.tasks.results import Words

if TYPE_CHECKING:
    from service.engine.batcher import PassJob
    from service.tasks.classification import Label
    from service.tasks.detection import Detected
    from service.tasks.onepass import Accounted
    from service.tasks.painting import Pixels

    Labelled = Pending[Accounted[tuple[Label, ...]]]

Answer = TypeVar("Answer")
Inputs = TypeVar("Inputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a model is opened. What is left out is chosen for the machine and the model."""

    device: str = "auto"
    threads: int | None = None  # else as many as this process may use
    rows: int = 64  # sequences decoded at once, or episodes open at once
    batch_tokens: int = 512  # that run together where a model answers in one pass, padding included
    batch_pixels: int = 4 * 224 * 224
    beams: int = 8  # of one sequence
    new_tokens: int = 256
    text: int = 20_000  # characters
    pixels: int = 32_000_000
    images: int = 64  # made in one call

    @property
    def words(self) -> dict[str, int]:
        """What concerns models that write."""
        return {"rows": self.rows, "beams": self.beams, "new_tokens": self.new_tokens, "text": self.text}


class Model:
    """What all models have: a package, an engine with a thread of its own, and an end."""

    def __init__(self, package: Package, engine: Engine[Any]) -> None:
        self.package, self.engine = package, engine
        engine.start()
        try:
            self.warm_up()
        except BaseException:
            engine.close(drain=False)
            raise

    def warm_up(self) -> None:
        """One request of no importance: the first one that counts finds everything in memory."""

    def _blank_image(self) -> bytes:
        """Of the size that the model takes, where it takes only one."""
        limits, out = self.package.manifest.limits, io.BytesIO()
        Image.new("RGB", (limits.get("width", 64), limits.get("height", 64))).save(out, "PNG")
        return out.getvalue()

    @property
    def manifest(self) -> Manifest:
        return self.package.manifest

    @property
    def meters(self) -> dict[str, float]:
        return self.engine.meters.snapshot()

    def close(self, *, drain: bool = True) -> None:
        """Answers what was asked, or lets it go."""
        self.engine.close(drain=drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)


class TranslationModel(Model):
    def __init__(self, package: Package, session: Session, options: Options) -> None:
        from service.tasks.translation import Translation

        self.task = Translation(package, session, **options.words)
        super().__init__(package, self.task.engine)

    def translate(self, text: str | Sequence[str], *, split: bool = True, **decoding: Any) -> list[Words]:
        """Translations in the order of the texts."""
        how = Decoding(**decoding)
        return _all(_listed(text), lambda each, field: self.task.translate(each, how, split=split, field=field), "text")

    def warm_up(self) -> None:
        self.translate("warm", max_new_tokens=1, beams=1)

    def translate_stream(self, text: str, *, split: bool = True, **decoding: Any) -> Iterable[str]:
        return self.task.translate_stream(text, Decoding(**decoding), split=split)


class GenerationModel(Model):
    def __init__(self, package: Package, session: Session, options: Options) -> None:
        from service.tasks.generation import Generation

        self.task = Generation(package, session, **options.words)
        super().__init__(package, self.task.engine)

    def generate(self, prompt: str | Sequence[str], **decoding: Any) -> list[Words]:
        how = Decoding(**decoding)
        return _all(_listed(prompt), lambda each, field: self.task.generate(each, how, field=field), "prompt")

    def warm_up(self) -> None:
        self.generate("warm", max_new_tokens=1, beams=1)

    def generate_stream(self, prompt: str, **decoding: Any) -> Iterable[str]:
        return self.task.generate_stream(prompt, Decoding(**decoding))


class CaptioningModel(Model):
    def __init__(self, package: Package, session: Session, options: Options) -> None:
        from service.tasks.captioning import Captioning

        self.task = Captioning(package, session, **options.words, pixels=options.pixels)
        super().__init__(package, self.task.engine)

    def caption(self, image: Picture | Sequence[Picture], *, prompt: str = "", **decoding: Any) -> list[Words]:
        how = Decoding(**decoding)
        pictures = [_bytes(each) for each in _listed(image)]
        return _all(pictures, lambda each, field: self.task.caption(each, how, prompt=prompt, field=field), "image")

    def warm_up(self) -> None:
        self.caption(self._blank_image(), max_new_tokens=1, beams=1)

    def caption_stream(self, image: Picture, *, prompt: str = "", **decoding: Any) -> Iterable[str]:
        return self.task.caption_stream(_bytes(image), Decoding(**decoding), prompt=prompt)


class PolicyModel(Model):
    def __init__(self, package: Package, session: Session, options: Options) -> None:
        from service.engine.episodes import Episodes
        from service.tasks.policy import Policies

        manifest = package.manifest
        assert manifest.policy is not None
        engine = Episodes(session, rows=options.rows)
        self.task = Policies(engine, manifest.policy, manifest.limits["timesteps"])
        super().__init__(package, engine)

    def act(self, history: Sequence[Any], target_return: float) -> Any:
        return self.task.action(self.task.act(history, target_return).result())

    def warm_up(self) -> None:
        self.act([Moment([0.0] * self.task.policy.state_size)], 0.0)

    def episode(self, target_return: float, *, greedy: bool = True, seed: int | None = None) -> Any:
        return self.task.begin(target_return, greedy=greedy, seed=seed).result()


class ClassificationModel(Model):
    engine: Engine[PassJob]

    def __init__(self, package: Package, session: Session, options: Options) -> None:
        from service.tasks.classification import Classification

        self.task = Classification(package, max_pixels=options.pixels, max_text=options.text)
        super().__init__(package, _batcher(session, options))

    def classify(
        self,
        *,
        text: Any = None,
        image: Picture | Sequence[Picture] | None = None,
        top_k: int | None = None,
        threshold: float | None = None,
    ) -> list[tuple[Label, ...]]:
        """Labels for each text (or pair of texts, as a tuple) or image, likeliest first."""
        from service.tasks.classification import demand_choice

        demand_choice(top_k, threshold)
        if (text is None) == (image is None):
            raise InputError("text or image is needed, one of the two", field="text")
        if image is None:
            found = _all(
                _texts(text),
                lambda each, field: self.submit_text(*each, top_k=top_k, threshold=threshold, field=field),
                "text",
            )
        else:
            found = _all(
                [_bytes(each) for each in _listed(image)],
                lambda each, field: self.submit_image(each, top_k=top_k, threshold=threshold, field=field),
                "image",
            )
        return [each.answer for each in found]

    def submit_text(self, text: str, pair: str | None = None, *, field: str = "text", **how: Any) -> Labelled:
        begun = time.monotonic()
        return self._submit(self.task.prepare_text(text, pair, field=field), begun, **how)

    def submit_image(self, image: bytes, *, field: str = "image", **how: Any) -> Labelled:
        begun = time.monotonic()
        return self._submit(self.task.prepare_image(image, field=field), begun, **how)

    def warm_up(self) -> None:
        if self.manifest.preprocessing.text is None:
            self.classify(image=self._blank_image())
        else:
            self.classify(text="warm")

    def _submit(
        self,
        arrays: Arrays,
        begun: float,
        *,
        top_k: int | None = None,
        threshold: float | None = None,
        deadline: float | None = None,
    ) -> Labelled:
        from service.tasks.onepass import submit

        finish = partial(self.task.answer, top_k=top_k, threshold=threshold)
        return submit(self.engine, arrays, finish, begun=begun, deadline=deadline)


class DetectionModel(Model):
    engine: Engine[PassJob]

    def __init__(self, package: Package, session: Session, options: Options) -> None:
        from service.tasks.detection import Detection

        self.task = Detection(package, max_pixels=options.pixels)
        super().__init__(package, _batcher(session, options))

    def detect(
        self, image: Picture | Sequence[Picture], *, threshold: float | None = None, max_boxes: int | None = None
    ) -> list[Detected]:
        """Boxes in pixels of each image, likeliest first."""
        from service.tasks.detection import demand_choice

        demand_choice(threshold, max_boxes)
        found = _all(
            [_bytes(each) for each in _listed(image)],
            lambda each, field: self.submit_image(each, threshold=threshold, max_boxes=max_boxes, field=field),
            "image",
        )
        return [each.answer for each in found]

    def submit_image(
        self,
        image: bytes,
        *,
        threshold: float | None = None,
        max_boxes: int | None = None,
        deadline: float | None = None,
        field: str = "image",
    ) -> Pending[Accounted[Detected]]:
        from service.tasks.onepass import submit

        begun = time.monotonic()
        picture = self.task.prepare_image(image, field=field)
        finish = partial(self.task.answer, picture=picture, threshold=threshold, max_boxes=max_boxes)
        return submit(self.engine, {"pixels": picture.pixels}, finish, begun=begun, deadline=deadline)

    def warm_up(self) -> None:
        self.detect(self._blank_image())


class PaintingModel(Model):
    engine: Engine[PassJob]

    def __init__(self, package: Package, session: Session, options: Options) -> None:
        from service.tasks.painting import Painting

        assert package.manifest.noise is not None
        self.task = Painting(package.manifest.noise, most=options.images)
        super().__init__(package, _batcher(session, options))

    def generate_images(self, count: int = 1, *, seed: int | None = None) -> list[bytes]:
        """PNG files. The same seed makes the same images; a larger count makes more beside them."""
        from service.tasks.painting import png

        found = _all(self.task.draw(count, seed), lambda each, _: self.submit(each), "count")
        return [png(each.answer) for each in found]

    def submit(self, noise: Arrays, *, deadline: float | None = None) -> Pending[Accounted[Pixels]]:
        from service.tasks.onepass import submit

        return submit(self.engine, noise, self.task.answer, begun=time.monotonic(), deadline=deadline)

    def warm_up(self) -> None:
        self.generate_images()


Picture = bytes | str | Path
_MODELS: dict[str, type[Any]] = {
    "classification": ClassificationModel,
    "detection": DetectionModel,
    "translation": TranslationModel,
    "generation": GenerationModel,
    "captioning": CaptioningModel,
    "policy": PolicyModel,
}


def open_model(
    path: str | Path, *, version: str | None = None, precision: Precision | None = None, **options: Any
) -> Any:
    """The model at `models/NAME`, verified and warmed up. Its verbs are those of its task."""
    return open_with(open_package(path, version=version, precision=precision), Options(**options))


def open_with(package: Package, chosen: Options) -> Any:
    verify(package)
    session = Session(package, device=chosen.device, threads=chosen.threads)
    kind = _MODELS[package.manifest.task] if package.manifest.noise is None else PaintingModel
    return kind(package, session, chosen)


def _batcher(session: Session, options: Options) -> Engine[PassJob]:
    from service.engine.batcher import open_batcher

    return open_batcher(session, token_budget=options.batch_tokens, pixel_budget=options.batch_pixels)


def _all(inputs: Sequence[Inputs], submit: Callable[[Inputs, str], Pending[Answer]], field: str) -> list[Answer]:
    """Long ones first: the last rows to finish then leave the least room unused. When one is refused, all are."""
    order = sorted(range(len(inputs)), key=lambda index: -len(inputs[index]))  # type: ignore[arg-type]
    pending: dict[int, Pending[Answer]] = {}
    try:
        for index in order:
            pending[index] = submit(inputs[index], f"{field}[{index}]")
        return [pending[index].result() for index in range(len(inputs))]
    except BaseException:
        for each in pending.values():
            each.cancel()
        raise


def _texts(text: Any) -> list[tuple[str, ...]]:
    """A text, a pair as a tuple, or a list of either."""
    each = text if isinstance(text, list) else [text]
    return [one if isinstance(one, tuple) else (one,) for one in each]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _bytes(picture: Picture) -> bytes:
    return picture if isinstance(picture, bytes) else Path(picture).read_bytes()
