"""Image files become what transformers makes of them, and files that are not what they seem are refused."""

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

from export.images import convert_image_processor
from service.preprocessing import ImageSettings, ShortestEdge
from service.tasks.errors import InputError
from service.tasks.images import decode, prepare
from tests.images_kit import write_image_processor

LIMIT = 1_000_000
WIDTH, HEIGHT = 37, 52


def picture(mode: str = "RGB") -> Image.Image:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    colours = np.stack([x * 255 // WIDTH, y * 255 // HEIGHT, (x * y) % 256, (x + y) * 255 // 89], -1).astype(np.uint8)
    image = Image.fromarray(colours)
    if mode == "LA":
        return image.convert("LA")
    return image if mode == "RGBA" else image.convert("RGB").convert(mode)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def animation(kind: str) -> bytes:
    others = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("red", "blue")]
    return saved(picture(), kind, save_all=True, append_images=others, duration=50)


FILES: dict[str, bytes] = {
    "jpeg": saved(picture(), "JPEG"),
    "jpeg, progressive": saved(picture(), "JPEG", progressive=True),
    "jpeg, grey": saved(picture("L"), "JPEG"),
    "jpeg, cmyk": saved(picture("CMYK"), "JPEG"),
    "jpeg, several pictures": saved(picture(), "MPO", save_all=True, append_images=[picture("L")]),
    "png": saved(picture(), "PNG"),
    "png, black and white": saved(picture("1"), "PNG"),
    "png, grey": saved(picture("L"), "PNG"),
    "png, grey, alpha": saved(picture("LA"), "PNG"),
    "png, grey, one transparent": saved(picture("L"), "PNG", transparency=77),
    "png, palette": saved(picture("P"), "PNG"),
    "png, palette, one transparent": saved(picture("P"), "PNG", transparency=7),
    "png, palette, alpha": saved(picture("P"), "PNG", transparency=bytes(range(0, 250, 3))),
    "png, one transparent": saved(picture(), "PNG", transparency=(0, 0, 0)),
    "png, alpha": saved(picture("RGBA"), "PNG"),
    "png, animated": animation("PNG"),
    "webp": saved(picture(), "WEBP"),
    "webp, lossless": saved(picture(), "WEBP", lossless=True),
    "webp, alpha": saved(picture("RGBA"), "WEBP"),
    "webp, animated": animation("WEBP"),
    "gif": saved(picture("P"), "GIF"),
    "gif, grey": saved(picture("L"), "GIF"),
    "gif, transparent": saved(picture("P"), "GIF", transparency=9),
    "gif, interlaced": saved(picture("P"), "GIF", interlace=1),
    "gif, animated": animation("GIF"),
}


@pytest.mark.parametrize("white", [False, True], ids=["as is", "white behind"])
@pytest.mark.parametrize("data", FILES.values(), ids=FILES.keys())
def test_decodes_as_transformers(tmp_path: Path, data: bytes, white: bool) -> None:
    write_image_processor(tmp_path, "vit", **({"do_convert_rgb": True} if white else {}))
    opened = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    processor = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    expected = processor(opened if white else opened.convert("RGB"), return_tensors="np")["pixel_values"][0]
    found = prepare(decode(data, max_pixels=LIMIT), convert_image_processor(tmp_path))
    assert np.array_equal(found, expected)


ORIENTATIONS = range(1, 9)


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """The picture as a camera held that way stores it."""
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
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_is_upright(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    found = decode(saved(turned(picture(), orientation), kind, exif=exif, **options), max_pixels=LIMIT)
    assert np.array_equal(np.asarray(found), np.asarray(picture()))


@pytest.mark.parametrize("orientation", [*ORIENTATIONS, 0, 9, 77])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_turns_photographs_as_transformers(mode: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(picture(mode), "JPEG", exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    found = decode(data, max_pixels=LIMIT)
    assert (found.mode, found.size) == (mode, expected.size)
    assert np.array_equal(np.asarray(found), np.asarray(expected))


def test_turns_a_palette_with_its_transparency() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    found = decode(saved(picture("P"), "PNG", exif=exif, transparency=7), max_pixels=LIMIT)
    upright = picture("P").rotate(-90, expand=True)
    upright.info["transparency"] = 7
    assert np.array_equal(np.asarray(found.convert("RGBA")), np.asarray(upright.convert("RGBA")))


BROKEN_EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\x03\x01\x12\0\x05\xff\xff\xff\xff\0\0\0\x09"


def test_broken_metadata_does_not_matter() -> None:
    data = saved(picture(), "JPEG", exif=BROKEN_EXIF)
    assert np.array_equal(np.asarray(decode(data, max_pixels=LIMIT)), np.asarray(Image.open(io.BytesIO(data))))


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(values: np.ndarray, colour: int, *extra: bytes) -> bytes:
    """A 16-bit PNG; Pillow writes none with colours."""
    height, width = values.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = (chunk(b"IHDR", header), *extra, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


DEEP = np.random.default_rng(0).integers(0, 1 << 16, (11, 13, 4), dtype=np.uint16)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (png(DEEP[:, :, 0], 0), DEEP[:, :, [0, 0, 0]]),
        (png(DEEP[:, :, :3], 2), DEEP[:, :, :3]),
        (png(DEEP[:, :, [0, 3]], 4), DEEP[:, :, [0, 0, 0]]),
        (png(DEEP, 6), DEEP[:, :, :3]),
    ],
    ids=["grey", "rgb", "grey, alpha", "rgba"],
)
def test_of_16_bits_the_upper_8_are_kept(data: bytes, expected: np.ndarray) -> None:
    assert np.array_equal(np.asarray(decode(data, max_pixels=LIMIT).convert("RGB")), expected >> 8)


def test_transparent_grey_of_16_bits_is_one_grey_exactly() -> None:
    grey = np.array([[0x1234, 0x1235]], np.uint16)
    image = decode(png(grey, 0, chunk(b"tRNS", b"\x12\x34")), max_pixels=LIMIT)
    assert [image.getpixel((x, 0)) for x in (0, 1)] == [(0x12, 0), (0x12, 255)]


def jpeg_header(width: int, height: int) -> bytes:
    data = bytearray(saved(picture(), "JPEG"))
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
    frame = saved(Image.new("RGB", (8, 8)), "WEBP", lossless=True)[12:]
    size = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    body = b"WEBPVP8X" + struct.pack("<II", 10, 0) + size + frame
    return b"RIFF" + struct.pack("<I", len(body)) + body


BOMBS = {
    "jpeg": jpeg_header(65_000, 65_000),
    "jpeg, just too large": jpeg_header(1001, 1000),
    "png": png_header(2_000_000_000, 2_000_000_000),
    "png, just too large": png_header(1000, 1001),
    "png, a line": png_header(1_000_001, 1),
    "gif": gif_header(65_535, 65_535),
    "gif, frame larger than the screen": gif_header(65_535, 65_535, screen=(1, 1)),
    "gif, just too large": gif_header(1000, 1001),
    "webp": webp_canvas(16_777_216, 200),
    "webp, largest still one": saved(Image.new("L", (16_383, 62)), "WEBP", lossless=True),
    "png, real": saved(Image.new("1", (1200, 1200)), "PNG"),
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS.keys())
def test_bombs_are_refused_by_their_header(data: bytes) -> None:
    """Most have no pixels at all: whoever looked for them would complain of that instead."""
    with pytest.raises(InputError, match=r"^image\[3\] has .*pixels; the limit is 1,000,000") as caught:
        decode(data, max_pixels=LIMIT, field="image[3]")
    assert (caught.value.field, caught.value.limit) == ("image[3]", LIMIT)


def many_scans() -> bytes:
    data = saved(picture(), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * 200 + data[-2:]


NO_IMAGES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "empty"),
    "text": (b"a plate of soup", "JPEG, PNG, WebP and GIF"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "JPEG, PNG, WebP and GIF"),
    "bmp": (saved(picture(), "BMP"), "JPEG, PNG, WebP and GIF"),
    "tiff": (saved(picture(), "TIFF"), "JPEG, PNG, WebP and GIF"),
    "signature alone": (b"\x89PNG\r\n\x1a\n", "JPEG, PNG, WebP and GIF"),
    "no pixels": (png_header(9, 9), "damaged"),
    "no size": (png_header(0, 9), "JPEG, PNG, WebP and GIF"),
    "endless jpeg": (many_scans(), "scans"),
    **{f"half of {kind}": (FILES[kind][: len(FILES[kind]) // 2], "") for kind in ("jpeg", "png", "webp", "gif")},
}


@pytest.mark.parametrize(("data", "hint"), NO_IMAGES.values(), ids=NO_IMAGES.keys())
def test_what_is_no_whole_image_is_refused(data: bytes, hint: str) -> None:
    with pytest.raises(InputError, match=r"^image ") as caught:
        decode(data, max_pixels=LIMIT)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.field == "image"


def test_frames_after_the_first_are_not_looked_at() -> None:
    data = FILES["gif, animated"]
    second = data.index(b"\x21\xf9", data.index(b",", 800) + 1)
    assert np.array_equal(
        np.asarray(decode(data[:second] + b"rubbish", max_pixels=LIMIT)),
        np.asarray(decode(data, max_pixels=LIMIT)),
    )


@settings(deadline=None, max_examples=300)
@given(
    kind=st.sampled_from(sorted(FILES)),
    cut=st.floats(0, 1),
    changes=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=6),
)
def test_damage_is_refused_or_harmless(kind: str, cut: float, changes: list[tuple[float, int]]) -> None:
    data = bytearray(FILES[kind])
    for place, value in changes:
        data[int(place * len(data))] = value
    with suppress(InputError):
        image = decode(bytes(data[: int(cut * len(data)) + 1]), max_pixels=LIMIT)
        assert 0 < image.width * image.height <= LIMIT
        image.convert("RGB")


def shortest(edge: int, **more: Any) -> ImageSettings:
    return ImageSettings(
        white_behind_transparency=False, resize=ShortestEdge(shortest=edge, **more), resample="bilinear"
    )


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1)], ids=["high", "wide"])
def test_narrow_images_that_would_grow_huge_are_refused(size: tuple[int, int]) -> None:
    image = decode(saved(Image.new("RGB", size), "PNG"), max_pixels=LIMIT)
    with pytest.raises(InputError, match=r"picture .*too narrow.* the limit is 1,000,000") as caught:
        prepare(image, shortest(224), max_pixels=LIMIT, field="picture")
    assert (caught.value.field, caught.value.limit) == ("picture", LIMIT)
    with pytest.raises(InputError, match="too narrow"):
        prepare(image, shortest(224, longest=800), field="picture")
    assert prepare(image, shortest(14), max_pixels=LIMIT).shape[1:] == (14 * size[1], 14 * size[0])


def test_threads_may_decode_at_once() -> None:
    def pixels(data: bytes) -> bytes:
        return decode(data, max_pixels=LIMIT).convert("RGB").tobytes()

    one_by_one = [pixels(data) for data in FILES.values()]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(pixels, [*FILES.values()] * 8)) == one_by_one * 8


def test_nothing_is_printed(tmp_path: Path) -> None:
    """In a process of its own: pytest has filters of its own."""
    files = {
        "broken": saved(picture(), "JPEG", exif=BROKEN_EXIF),
        "palette": FILES["png, palette, alpha"],
        "large": saved(Image.new("1", (10_000, 9_000)), "PNG"),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    script = """
        import sys
        from pathlib import Path
        from service.preprocessing import ImageSettings
        from service.tasks.images import decode, prepare
        settings = ImageSettings(white_behind_transparency=False, resample="box")
        for file in Path(sys.argv[1]).iterdir():
            image = decode(file.read_bytes(), max_pixels=10**9)
            if file.name != "large":
                prepare(image, settings)
    """
    command = [sys.executable, "-W", "always", "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_errors_cross_processes() -> None:
    error = pickle.loads(pickle.dumps(InputError("text has 3 words; the limit is 2", field="text", limit=2)))
    assert (str(error), error.field, error.limit) == ("text has 3 words; the limit is 2", "text", 2)
