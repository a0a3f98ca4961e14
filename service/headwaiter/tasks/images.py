"""Decodes image files and converts them to model inputs, bit-identical to transformers' Pillow processors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from headwaiter.engine.settings import DEFAULT_LIMITS, Limits
from headwaiter.package.manifest import Manifest
from headwaiter.package.preprocessing import ExactSize, ImageSettings, ShortestEdge
from headwaiter.tasks.errors import InputError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
MAX_PIXELS = DEFAULT_LIMITS.pixels
_BYTES_PER_PIXEL = 3 * np.dtype(np.float32).itemsize  # of a model input
_MAX_SCANS = 100  # progressive files have about 10; each scan costs a pass over the whole image
_JPEG, _START_OF_SCAN = b"\xff\xd8", b"\xff\xda"
_EXIF_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Pillow warns about invalid metadata, which is harmless, and about large images, which `decode` rejects.
warnings.filterwarnings("ignore", module=r"PIL\.")


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """Model input `pixels` [3, height, width]; `width` and `height` are those of the image after EXIF rotation."""

    pixels: NDArray[np.float32]
    width: int
    height: int


class ImageBudget:
    """What the images of one request may cost together. They are charged before the work is done, in one thread."""

    def __init__(self, limits: Limits, images: Mapping[str, bytes]) -> None:
        """`images` are the files of the request by field."""
        self._limits, self._unchecked = limits, images
        self._bytes = 0

    def check_pixels(self) -> None:
        """Before the first image is decoded, sum the sizes in the headers of all. Files without one are left out."""
        images, self._unchecked = self._unchecked, {}
        total, limit = 0, self._limits.request_pixels
        for field, data in images.items():
            with suppress(Exception):  # reported when the image is decoded
                width, height = Image.open(BytesIO(data), formats=FORMATS).size
                total += width * height
            if total > limit:
                message = f"{field} brings the request to {total:,} pixels; the limit is {limit:,} for all images"
                raise InputError(message, field=field, limit=limit)

    def charge_preparation(self, width: int, height: int, field: str) -> None:
        self._bytes += width * height * _BYTES_PER_PIXEL
        if self._bytes > (limit := self._limits.prepared_mb) << 20:
            size_mb = -(-self._bytes >> 20)
            message = f"{field} brings the model inputs of the request to {size_mb:,} MiB; the limit is {limit:,} MiB"
            raise InputError(message, field=field, limit=limit)


class ImageReader:
    """Converts image files to the input of one model. Stateless, so threads may share it."""

    def __init__(self, settings: ImageSettings, manifest: Manifest, limits: Limits = DEFAULT_LIMITS) -> None:
        self._settings, self._limits = settings, limits
        self._fixed_size = manifest.limits.get("width"), manifest.limits.get("height")

    def budget(self, images: Mapping[str, bytes]) -> ImageBudget:
        """The budget of a new request with these images by field; pass it with each of them."""
        return ImageBudget(self._limits, images)

    def read(self, data: bytes, field: str = "image", budget: ImageBudget | None = None) -> PreparedImage:
        max_pixels = self._limits.pixels
        image = decode(data, max_pixels=max_pixels, field=field, budget=budget)
        pixels = prepare(image, self._settings, max_pixels=max_pixels, field=field, budget=budget)
        _, height, width = pixels.shape
        expected = self._fixed_size[0] or width, self._fixed_size[1] or height
        if (width, height) != expected:  # possible if preprocessing does not resize
            raise InputError(
                f"{field} has {width:,} × {height:,} pixels; this model requires {expected[0]} × {expected[1]}",
                field=field,
            )
        return PreparedImage(pixels, image.width, image.height)


def decode(
    data: bytes, *, max_pixels: int = MAX_PIXELS, field: str = "image", budget: ImageBudget | None = None
) -> Image.Image:
    """Decode the (first) image of a file and rotate it according to its EXIF orientation. The mode is not converted.

    16-bit greyscale is reduced to its upper 8 bits, as Pillow does for 16-bit colours. Raises `InputError`.
    """
    if not data:
        raise InputError(f"{field} is empty", field=field)
    if budget is not None:
        budget.check_pixels()
    image = _open(data, max_pixels, field)
    if image.width * image.height > max_pixels:
        raise InputError(
            f"{field} has {image.width:,} × {image.height:,} pixels; the limit is {max_pixels:,} in total",
            field=field,
            limit=max_pixels,
        )
    if data.startswith(_JPEG) and data.count(_START_OF_SCAN) > _MAX_SCANS:
        raise InputError(
            f"{field} is a JPEG with too many scans; the limit is {_MAX_SCANS}", field=field, limit=_MAX_SCANS
        )
    try:
        image.load()
    except Exception as error:  # parsers raise many types for corrupt files
        raise InputError(f"{field} is corrupt or truncated; a complete image file is required", field=field) from error
    transposition = _transposition(image)
    image = _to_8_bits(image) if image.mode == "I;16" else image
    return image if transposition is None else image.transpose(transposition)


def prepare(
    image: Image.Image,
    settings: ImageSettings,
    *,
    max_pixels: int = MAX_PIXELS,
    field: str = "image",
    budget: ImageBudget | None = None,
) -> NDArray[np.float32]:
    """Convert an image to float32 [3, height, width]. `max_pixels` limits the size after resizing."""
    target = None if settings.resize is None else _target_size(image, settings.resize, max_pixels, field)
    if budget is not None:
        budget.charge_preparation(*(target or image.size), field)
    image = _to_rgb(image, settings.white_behind_transparency)
    if target is not None:
        image = image.resize(target, Image.Resampling[settings.resample.upper()])
    if settings.crop is not None:
        image = _crop_centre(image, settings.crop)
    return _scale(np.asarray(image), settings)


def _open(data: bytes, max_pixels: int, field: str) -> Image.Image:
    """Open an image without decoding its pixels."""
    try:
        return Image.open(BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise InputError(
            f"{field} has too many pixels; the limit is {max_pixels:,}", field=field, limit=max_pixels
        ) from error
    except Exception as error:  # parsers raise many types for corrupt headers
        raise InputError(
            f"{field} is not an image in a supported format: JPEG, PNG, WebP and GIF", field=field
        ) from error


def _transposition(image: Image.Image) -> Image.Transpose | None:
    try:
        return _EXIF_TRANSPOSE.get(image.getexif()[ExifTags.Base.Orientation])
    except Exception:  # missing or invalid metadata is ignored, as in browsers
        return None


def _to_8_bits(image: Image.Image) -> Image.Image:
    grey = np.asarray(image)
    upper = Image.fromarray((grey >> 8).astype(np.uint8))
    transparent = image.info.get("transparency")
    if transparent is not None:
        upper.putalpha(Image.fromarray(np.where(grey == transparent, 0, 255).astype(np.uint8)))
    return upper


def _to_rgb(image: Image.Image, white_behind_transparency: bool) -> Image.Image:
    transparent = "A" in image.getbands() or image.info.get("transparency") is not None
    if transparent and white_behind_transparency:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _target_size(image: Image.Image, resize: ExactSize | ShortestEdge, max_pixels: int, field: str) -> tuple[int, int]:
    if isinstance(resize, ExactSize):
        return resize.width, resize.height
    width, height = _resized_size(image.width, image.height, resize)
    if resize.multiple is not None:
        width, height = width - width % resize.multiple, height - height % resize.multiple
    if not (width and height):
        raise InputError(f"{field} of {image.width} × {image.height} pixels is too narrow for this model", field=field)
    if width * height > max_pixels:
        raise InputError(
            f"{field} of {image.width:,} × {image.height:,} pixels is too narrow for this model: resized it has "
            f"{width:,} × {height:,}; the limit is {max_pixels:,} in total",
            field=field,
            limit=max_pixels,
        )
    return width, height


def _resized_size(width: int, height: int, edge: ShortestEdge) -> tuple[int, int]:
    shorter, longer = min(width, height), max(width, height)
    exact: float = edge.shortest
    if edge.longest is not None and longer / shorter * edge.shortest > edge.longest:
        exact = edge.longest * shorter / longer
    target = round(exact)
    # As in transformers: a shorter edge of the right length is kept, except for portrait images in YOLOS.
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
    for channel, values in enumerate(_lookup_table(settings)):
        np.take(values, pixels[:, :, channel], out=scaled[channel], mode="clip")
    return scaled


@lru_cache(maxsize=64)
def _lookup_table(settings: ImageSettings) -> NDArray[np.float32]:
    """Return the scaled value of each 8-bit value per channel, [3, 256]."""
    values = np.arange(256, dtype=np.float64)
    if settings.rescale is not None:
        values *= settings.rescale
    channels = np.tile(values.astype(np.float32), (3, 1))
    if settings.mean is not None and settings.std is not None:
        channels -= np.array(settings.mean, dtype=np.float32)[:, None]
        channels /= np.array(settings.std, dtype=np.float32)[:, None]
    return channels
