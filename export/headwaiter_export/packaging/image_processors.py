"""Convert Hugging Face image processors to the settings in the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from PIL import Image
from transformers import AutoImageProcessor, DetrImageProcessorPil, YolosImageProcessorPil
from transformers.image_processing_backends import PilBackend

from headwaiter.package.preprocessing import ExactSize, ImageSettings, PerChannel, Resample, ShortestEdge
from headwaiter_export.errors import SourceError

_CONFIG_FILES = ("preprocessor_config.json", "processor_config.json")
_STANDARD_METHODS = (
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
# These override standard methods in ways that the settings represent (annotations, padding, sizes).
_SUPPORTED_PROCESSORS = (DetrImageProcessorPil, YolosImageProcessorPil)
_YOLOS_MULTIPLE = 16


def convert_image_processor(source: Path) -> ImageSettings:
    """Return the preprocessing of the image processor in the checkpoint directory `source`.

    Raises `SourceError` if the processor is missing, damaged or not supported.
    """
    processor = _load(source)
    if not (type(processor) in _SUPPORTED_PROCESSORS or _uses_standard_methods(processor)):
        raise SourceError(
            f"{type(processor).__name__.removesuffix('Pil')} in {source} has custom steps; supported are the image "
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
    if not any((source / name).is_file() for name in _CONFIG_FILES):
        raise SourceError(f"{source} has no image processor; {_CONFIG_FILES[0]} is required.")
    try:
        return AutoImageProcessor.from_pretrained(
            str(source), backend="pil", local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # parsers raise various types for a damaged file
        raise SourceError(
            f"{source / _CONFIG_FILES[0]} cannot be read; it must be the JSON of an image processor such as "
            "ViTImageProcessor, DeiTImageProcessor, DetrImageProcessor or YolosImageProcessor."
        ) from error


def _uses_standard_methods(processor: object) -> bool:
    return isinstance(processor, PilBackend) and all(
        getattr(type(processor), name) is getattr(PilBackend, name) for name in _STANDARD_METHODS
    )


def _resize(source: Path, processor: PilBackend) -> ExactSize | ShortestEdge:
    size = processor.size
    if size.shortest_edge:
        multiple = _YOLOS_MULTIPLE if isinstance(processor, YolosImageProcessorPil) else None
        return ShortestEdge(shortest=size.shortest_edge, longest=size.longest_edge or None, multiple=multiple)
    if size.height and size.width:
        return ExactSize(height=size.height, width=size.width)
    raise SourceError(
        f"The image processor in {source} resizes to {dict(size)}; supported are height with width, "
        "and shortest_edge with or without longest_edge."
    )


def _crop(source: Path, processor: PilBackend) -> ExactSize:
    size = processor.crop_size
    if size is None or not (size.height and size.width):
        raise SourceError(f"The image processor in {source} crops without a size; crop_size needs height and width.")
    return ExactSize(height=size.height, width=size.width)


def _resample(source: Path, processor: PilBackend) -> Resample:
    resample = Image.Resampling.BILINEAR if processor.resample is None else processor.resample
    try:
        return cast(Resample, Image.Resampling(resample).name.lower())
    except ValueError as error:
        raise SourceError(
            f"The image processor in {source} uses the resample filter {resample}, which Pillow does not have."
        ) from error


def _per_channel(source: Path, values: float | tuple[float, ...]) -> PerChannel:
    if isinstance(values, int | float):
        return (values, values, values)
    if len(values) != 3:
        raise SourceError(f"The image processor in {source} has {len(values)} channels; only 3 (RGB) are supported.")
    return (values[0], values[1], values[2])
