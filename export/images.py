"""Image processors of trained models as plain settings."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from PIL import Image
from transformers import AutoImageProcessor, DetrImageProcessorPil, YolosImageProcessorPil
from transformers.image_processing_backends import PilBackend

from export.errors import SourceError
from service.preprocessing import ExactSize, ImageSettings, PerChannel, Resample, ShortestEdge

_FILES = ("preprocessor_config.json", "processor_config.json")
_STEPS = (
    "preprocess",
    "_preprocess_image_like_inputs",
    "_prepare_image_like_inputs",
    "_preprocess",
    "_standardize_kwargs",
    "process_image",
    "convert_to_rgb",
    "resize",
    "center_crop",
    "rescale",
    "normalize",
)
# These have steps of their own, for annotations, for padding and for sizes, all known here.
_KNOWN = (DetrImageProcessorPil, YolosImageProcessorPil)
_YOLOS_MULTIPLE = 16


def convert_image_processor(source: Path) -> ImageSettings:
    """What the image processor of the Hugging Face directory `source` does to one image."""
    processor = _load(source)
    if not (type(processor) in _KNOWN or _is_plain(processor)):
        raise SourceError(
            f"{type(processor).__name__.removesuffix('Pil')} in {source} has steps of its own: supported are the image "
            "processors of ViT, DeiT, Swin, DETR and YOLOS, and others that only resize, crop, rescale and normalise."
        )
    if processor.do_pad and processor.pad_size is not None:
        raise SourceError(f"The image processor in {source} pads to a fixed size (pad_size), which is not supported.")
    return ImageSettings(
        white_behind_transparency=bool(processor.do_convert_rgb),
        resize=_resize(source, processor) if processor.do_resize else None,
        resample=_resample(source, processor),
        crop=_crop(source, processor) if processor.do_center_crop else None,
        rescale=processor.rescale_factor if processor.do_rescale else None,
        mean=_per_channel(source, processor.image_mean) if processor.do_normalize else None,
        std=_per_channel(source, processor.image_std) if processor.do_normalize else None,
    )


def _load(source: Path) -> PilBackend:
    if not any((source / name).is_file() for name in _FILES):
        raise SourceError(f"{source} has no image processor: needed is {_FILES[0]}.")
    try:
        return AutoImageProcessor.from_pretrained(
            str(source), backend="pil", local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever a broken file makes its parser raise
        raise SourceError(
            f"{source / _FILES[0]} cannot be read: it has to be the JSON of an image processor such as "
            "ViTImageProcessor, DeiTImageProcessor, DetrImageProcessor or YolosImageProcessor."
        ) from error


def _is_plain(processor: object) -> bool:
    return isinstance(processor, PilBackend) and all(
        getattr(type(processor), step) is getattr(PilBackend, step) for step in _STEPS
    )


def _resize(source: Path, processor: PilBackend) -> ExactSize | ShortestEdge:
    size = processor.size
    if size.shortest_edge:
        multiple = _YOLOS_MULTIPLE if isinstance(processor, YolosImageProcessorPil) else None
        return ShortestEdge(shortest=size.shortest_edge, longest=size.longest_edge or None, multiple=multiple)
    if size.height and size.width:
        return ExactSize(height=size.height, width=size.width)
    raise SourceError(
        f"The image processor in {source} resizes to {dict(size)}: supported are height with width, "
        "and shortest_edge with or without longest_edge."
    )


def _crop(source: Path, processor: PilBackend) -> ExactSize:
    size = processor.crop_size
    if size is None or not (size.height and size.width):
        raise SourceError(
            f"The image processor in {source} crops without saying how: crop_size needs height and width."
        )
    return ExactSize(height=size.height, width=size.width)


def _resample(source: Path, processor: PilBackend) -> Resample:
    resample = Image.Resampling.BILINEAR if processor.resample is None else processor.resample
    try:
        return cast(Resample, Image.Resampling(resample).name.lower())
    except ValueError as error:
        raise SourceError(f"The image processor in {source} names a resample filter that Pillow lacks.") from error


def _per_channel(source: Path, values: float | tuple[float, ...]) -> PerChannel:
    if isinstance(values, int | float):
        return (values, values, values)
    if len(values) != 3:
        raise SourceError(f"The image processor in {source} is for {len(values)} channels: supported are 3 (RGB).")
    return (values[0], values[1], values[2])
