"""Pictures to pixels, as the model saw them in training."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.preprocessing import ExactSize, ImageSettings, ShortestEdge


def prepare(image: Image.Image, settings: ImageSettings) -> NDArray[np.float32]:
    """One picture as float32 [3, height, width]."""
    image = _to_rgb(image, settings.white_behind_transparency)
    if settings.resize is not None:
        width, height = _target_size(image, settings.resize)
        image = image.resize((width, height), Image.Resampling[settings.resample.upper()])
    if settings.crop is not None:
        image = _crop_centre(image, settings.crop)
    return _scale(np.asarray(image), settings)


def _to_rgb(image: Image.Image, white_behind_transparency: bool) -> Image.Image:
    transparent = "A" in image.getbands() or image.info.get("transparency") is not None
    if transparent and white_behind_transparency:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _target_size(image: Image.Image, resize: ExactSize | ShortestEdge) -> tuple[int, int]:
    if isinstance(resize, ExactSize):
        return resize.width, resize.height
    width, height = _fit(image.width, image.height, resize)
    if resize.multiple is not None:
        width, height = width - width % resize.multiple, height - height % resize.multiple
    if not (width and height):
        raise ValueError(f"an image of {image.width}×{image.height} pixels is too narrow for this model")
    return width, height


def _fit(width: int, height: int, edge: ShortestEdge) -> tuple[int, int]:
    shorter, longer = min(width, height), max(width, height)
    exact: float = edge.shortest
    if edge.longest is not None and longer / shorter * edge.shortest > edge.longest:
        exact = edge.longest * shorter / longer
    target = round(exact)
    # A short edge that is right stays, however long the other; YOLOS makes an exception of upright images.
    if shorter == target and not (edge.multiple and width < height):
        return width, height
    if width < height:
        return target, int(exact * height / width)
    return int(exact * width / height), target


def _crop_centre(image: Image.Image, size: ExactSize) -> Image.Image:
    left, top = (image.width - size.width) // 2, (image.height - size.height) // 2
    return image.crop((left, top, left + size.width, top + size.height))


def _scale(pixels: NDArray[np.uint8], settings: ImageSettings) -> NDArray[np.float32]:
    height, width, channels = pixels.shape
    scaled = np.empty((channels, height, width), dtype=np.float32)
    for channel, values in enumerate(_scaled_values(settings)):
        np.take(values, pixels[:, :, channel], out=scaled[channel], mode="clip")
    return scaled


@lru_cache(maxsize=64)
def _scaled_values(settings: ImageSettings) -> NDArray[np.float32]:
    """What each of the 256 values of a channel becomes: [3, 256]."""
    values = np.arange(256, dtype=np.float64)
    if settings.rescale is not None:
        values *= settings.rescale
    channels = np.tile(values.astype(np.float32), (3, 1))
    if settings.mean is not None and settings.std is not None:
        channels -= np.array(settings.mean, dtype=np.float32)[:, None]
        channels /= np.array(settings.std, dtype=np.float32)[:, None]
    return channels
