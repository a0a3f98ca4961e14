"""Image decoding matches transformers; invalid and oversized files are rejected."""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import textwrap
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from transformers import AutoImageProcessor

from headwaiter.package.preprocessing import ImageSettings, ShortestEdge
from headwaiter.tasks.errors import InputError
from headwaiter.tasks.images import decode, prepare
from headwaiter_export.packaging.image_processors import convert_image_processor
from tests.images_kit import write_image_processor

LIMIT = 1_000_000
WIDTH, HEIGHT = 37, 52


def sample_image(mode: str = "RGB") -> Image.Image:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    colours = np.stack([x * 255 // WIDTH, y * 255 // HEIGHT, (x * y) % 256, (x + y) * 255 // 89], -1).astype(np.uint8)
    image = Image.fromarray(colours)
    if mode == "LA":
        return image.convert("LA")
    return image if mode == "RGBA" else image.convert("RGB").convert(mode)


def encode(image: Image.Image, file_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def animation(file_format: str) -> bytes:
    frames = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("red", "blue")]
    return encode(sample_image(), file_format, save_all=True, append_images=frames, duration=50)


FILES: dict[str, bytes] = {
    "jpeg": encode(sample_image(), "JPEG"),
    "jpeg, progressive": encode(sample_image(), "JPEG", progressive=True),
    "jpeg, grey": encode(sample_image("L"), "JPEG"),
    "jpeg, cmyk": encode(sample_image("CMYK"), "JPEG"),
    "jpeg, several images": encode(sample_image(), "MPO", save_all=True, append_images=[sample_image("L")]),
    "png": encode(sample_image(), "PNG"),
    "png, 1 bit": encode(sample_image("1"), "PNG"),
    "png, grey": encode(sample_image("L"), "PNG"),
    "png, grey, alpha": encode(sample_image("LA"), "PNG"),
    "png, grey, transparent colour": encode(sample_image("L"), "PNG", transparency=77),
    "png, palette": encode(sample_image("P"), "PNG"),
    "png, palette, transparent colour": encode(sample_image("P"), "PNG", transparency=7),
    "png, palette, alpha": encode(sample_image("P"), "PNG", transparency=bytes(range(0, 250, 3))),
    "png, transparent colour": encode(sample_image(), "PNG", transparency=(0, 0, 0)),
    "png, alpha": encode(sample_image("RGBA"), "PNG"),
    "png, animated": animation("PNG"),
    "webp": encode(sample_image(), "WEBP"),
    "webp, lossless": encode(sample_image(), "WEBP", lossless=True),
    "webp, alpha": encode(sample_image("RGBA"), "WEBP"),
    "webp, animated": animation("WEBP"),
    "gif": encode(sample_image("P"), "GIF"),
    "gif, grey": encode(sample_image("L"), "GIF"),
    "gif, transparent": encode(sample_image("P"), "GIF", transparency=9),
    "gif, interlaced": encode(sample_image("P"), "GIF", interlace=1),
    "gif, animated": animation("GIF"),
}


@pytest.mark.parametrize("white", [False, True], ids=["no background", "white background"])
@pytest.mark.parametrize("data", FILES.values(), ids=FILES.keys())
def test_decode_matches_transformers(tmp_path: Path, data: bytes, white: bool) -> None:
    write_image_processor(tmp_path, "vit", **({"do_convert_rgb": True} if white else {}))
    opened = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    processor = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    expected = processor(opened if white else opened.convert("RGB"), return_tensors="np")["pixel_values"][0]
    actual = prepare(decode(data, max_pixels=LIMIT), convert_image_processor(tmp_path))
    assert np.array_equal(actual, expected)


ORIENTATIONS = range(1, 9)


def as_stored(image: Image.Image, orientation: int) -> Image.Image:
    """Return the image as a camera stores it with this EXIF orientation."""
    stored = {
        1: image,
        2: ImageOps.mirror(image),
        3: image.rotate(180),
        4: ImageOps.flip(image),
        5: ImageOps.mirror(image.rotate(-90, expand=True)),
        6: image.rotate(90, expand=True),
        7: ImageOps.mirror(image.rotate(90, expand=True)),
        8: image.rotate(-90, expand=True),
    }
    return stored[orientation]


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("file_format", ["PNG", "WEBP"])
def test_decode_applies_exif_orientation(file_format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if file_format == "WEBP" else {}
    data = encode(as_stored(sample_image(), orientation), file_format, exif=exif, **options)
    assert np.array_equal(np.asarray(decode(data, max_pixels=LIMIT)), np.asarray(sample_image()))


@pytest.mark.parametrize("orientation", [*ORIENTATIONS, 0, 9, 77])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_decode_jpeg_orientation_matches_pillow(mode: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(sample_image(mode), "JPEG", exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    image = decode(data, max_pixels=LIMIT)
    assert (image.mode, image.size) == (mode, expected.size)
    assert np.array_equal(np.asarray(image), np.asarray(expected))


def test_decode_rotated_palette_keeps_transparency() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = decode(encode(sample_image("P"), "PNG", exif=exif, transparency=7), max_pixels=LIMIT)
    expected = sample_image("P").rotate(-90, expand=True)
    expected.info["transparency"] = 7
    assert np.array_equal(np.asarray(image.convert("RGBA")), np.asarray(expected.convert("RGBA")))


INVALID_EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\x03\x01\x12\0\x05\xff\xff\xff\xff\0\0\0\x09"


def test_decode_ignores_invalid_metadata() -> None:
    data = encode(sample_image(), "JPEG", exif=INVALID_EXIF)
    assert np.array_equal(np.asarray(decode(data, max_pixels=LIMIT)), np.asarray(Image.open(io.BytesIO(data))))


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(values: np.ndarray, colour: int, *extra: bytes) -> bytes:
    """Encode a 16-bit PNG, because Pillow cannot write them in colour."""
    height, width = values.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = (chunk(b"IHDR", header), *extra, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


PIXELS_16_BIT = np.random.default_rng(0).integers(0, 1 << 16, (11, 13, 4), dtype=np.uint16)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (png(PIXELS_16_BIT[:, :, 0], 0), PIXELS_16_BIT[:, :, [0, 0, 0]]),
        (png(PIXELS_16_BIT[:, :, :3], 2), PIXELS_16_BIT[:, :, :3]),
        (png(PIXELS_16_BIT[:, :, [0, 3]], 4), PIXELS_16_BIT[:, :, [0, 0, 0]]),
        (png(PIXELS_16_BIT, 6), PIXELS_16_BIT[:, :, :3]),
    ],
    ids=["grey", "rgb", "grey, alpha", "rgba"],
)
def test_decode_16_bit_keeps_upper_8_bits(data: bytes, expected: np.ndarray) -> None:
    assert np.array_equal(np.asarray(decode(data, max_pixels=LIMIT).convert("RGB")), expected >> 8)


def test_decode_16_bit_transparent_grey_matches_exact_value() -> None:
    grey = np.array([[0x1234, 0x1235]], np.uint16)
    image = decode(png(grey, 0, chunk(b"tRNS", b"\x12\x34")), max_pixels=LIMIT)
    assert [image.getpixel((x, 0)) for x in (0, 1)] == [(0x12, 0), (0x12, 255)]


def jpeg_header(width: int, height: int) -> bytes:
    data = bytearray(encode(sample_image(), "JPEG"))
    start = data.index(b"\xff\xc0") + 5
    data[start : start + 4] = struct.pack(">HH", height, width)
    return bytes(data[: data.index(b"\xff\xda")]) + data[data.index(b"\xff\xda") :][:20]


def png_header(width: int, height: int) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"")


def gif_header(width: int, height: int, screen: tuple[int, int] | None = None) -> bytes:
    logical = struct.pack("<HH", *(screen or (width, height)))
    return b"GIF89a" + logical + b"\0\0\0," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x08\x01\0\0;"


def webp_canvas(width: int, height: int) -> bytes:
    frame = encode(Image.new("RGB", (8, 8)), "WEBP", lossless=True)[12:]
    size = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    body = b"WEBPVP8X" + struct.pack("<II", 10, 0) + size + frame
    return b"RIFF" + struct.pack("<I", len(body)) + body


OVERSIZED = {
    "jpeg": jpeg_header(65_000, 65_000),
    "jpeg, just too large": jpeg_header(1001, 1000),
    "png": png_header(2_000_000_000, 2_000_000_000),
    "png, just too large": png_header(1000, 1001),
    "png, one row": png_header(1_000_001, 1),
    "gif": gif_header(65_535, 65_535),
    "gif, frame larger than the screen": gif_header(65_535, 65_535, screen=(1, 1)),
    "gif, just too large": gif_header(1000, 1001),
    "webp": webp_canvas(16_777_216, 200),
    "webp, largest still image": encode(Image.new("L", (16_383, 62)), "WEBP", lossless=True),
    "png, complete file": encode(Image.new("1", (1200, 1200)), "PNG"),
}


@pytest.mark.parametrize("data", OVERSIZED.values(), ids=OVERSIZED.keys())
def test_decode_oversized_image_is_rejected_by_header(data: bytes) -> None:
    # Most files have no pixel data, so decoding them would give another error.
    with pytest.raises(InputError, match=r"^image\[3\] has .*pixels; the limit is 1,000,000") as caught:
        decode(data, max_pixels=LIMIT, field="image[3]")
    assert (caught.value.field, caught.value.limit) == ("image[3]", LIMIT)


def many_scans() -> bytes:
    data = encode(sample_image(), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * 200 + data[-2:]


INVALID_IMAGES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "text": (b"a plate of soup", "JPEG, PNG, WebP and GIF"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "JPEG, PNG, WebP and GIF"),
    "bmp": (encode(sample_image(), "BMP"), "JPEG, PNG, WebP and GIF"),
    "tiff": (encode(sample_image(), "TIFF"), "JPEG, PNG, WebP and GIF"),
    "signature only": (b"\x89PNG\r\n\x1a\n", "JPEG, PNG, WebP and GIF"),
    "no pixels": (png_header(9, 9), "corrupt"),
    "no size": (png_header(0, 9), "JPEG, PNG, WebP and GIF"),
    "jpeg, too many scans": (many_scans(), "scans"),
    **{f"truncated {name}": (FILES[name][: len(FILES[name]) // 2], "") for name in ("jpeg", "png", "webp", "gif")},
}


@pytest.mark.parametrize(("data", "hint"), INVALID_IMAGES.values(), ids=INVALID_IMAGES.keys())
def test_decode_invalid_image_is_rejected(data: bytes, hint: str) -> None:
    with pytest.raises(InputError, match=r"^image ") as caught:
        decode(data, max_pixels=LIMIT)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.field == "image"


def test_decode_ignores_frames_after_first() -> None:
    data = FILES["gif, animated"]
    second = data.index(b"\x21\xf9", data.index(b",", 800) + 1)
    assert np.array_equal(
        np.asarray(decode(data[:second] + b"garbage", max_pixels=LIMIT)),
        np.asarray(decode(data, max_pixels=LIMIT)),
    )


@settings(deadline=None, max_examples=300)
@given(
    name=st.sampled_from(sorted(FILES)),
    length=st.floats(0, 1),
    changes=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=6),
)
def test_decode_corrupt_file_raises_only_input_error(
    name: str, length: float, changes: list[tuple[float, int]]
) -> None:
    data = bytearray(FILES[name])
    for position, value in changes:
        data[int(position * len(data))] = value
    with suppress(InputError):
        image = decode(bytes(data[: int(length * len(data)) + 1]), max_pixels=LIMIT)
        assert 0 < image.width * image.height <= LIMIT
        image.convert("RGB")


def shortest_edge(length: int, **options: Any) -> ImageSettings:
    return ImageSettings(
        white_behind_transparency=False, resize=ShortestEdge(shortest=length, **options), resample="bilinear"
    )


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1)], ids=["tall", "wide"])
def test_prepare_narrow_image_too_large_after_resize_is_rejected(size: tuple[int, int]) -> None:
    image = decode(encode(Image.new("RGB", size), "PNG"), max_pixels=LIMIT)
    with pytest.raises(InputError, match=r"picture .*too narrow.* the limit is 1,000,000") as caught:
        prepare(image, shortest_edge(224), max_pixels=LIMIT, field="picture")
    assert (caught.value.field, caught.value.limit) == ("picture", LIMIT)
    with pytest.raises(InputError, match="too narrow"):
        prepare(image, shortest_edge(224, longest=800), field="picture")
    assert prepare(image, shortest_edge(14), max_pixels=LIMIT).shape[1:] == (14 * size[1], 14 * size[0])


def test_decode_is_thread_safe() -> None:
    def pixels(data: bytes) -> bytes:
        return decode(data, max_pixels=LIMIT).convert("RGB").tobytes()

    expected = [pixels(data) for data in FILES.values()]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(pixels, [*FILES.values()] * 8, timeout=60)) == expected * 8


def test_decode_emits_no_warnings(tmp_path: Path) -> None:
    # A subprocess, because pytest installs warning filters.
    files = {
        "invalid_exif": encode(sample_image(), "JPEG", exif=INVALID_EXIF),
        "palette": FILES["png, palette, alpha"],
        "large": encode(Image.new("1", (10_000, 9_000)), "PNG"),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    script = """
        import sys
        from pathlib import Path
        from headwaiter.package.preprocessing import ImageSettings
        from headwaiter.tasks.images import decode, prepare
        settings = ImageSettings(white_behind_transparency=False, resample="box")
        for file in Path(sys.argv[1]).iterdir():
            image = decode(file.read_bytes(), max_pixels=10**9)
            if file.name != "large":
                prepare(image, settings)
    """
    command = [sys.executable, "-W", "always", "-c", textwrap.dedent(script), str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


def test_input_error_pickle_keeps_field_and_limit() -> None:
    error = pickle.loads(pickle.dumps(InputError("text has 3 words; the limit is 2", field="text", limit=2)))
    assert (str(error), error.field, error.limit) == ("text has 3 words; the limit is 2", "text", 2)
