"""What SOURCE on the command line may be, and how each is opened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from export.argos import Argos, is_argos, load_argos, unpack
from export.checkpoint import licence_of, load_checkpoint
from export.errors import SourceError
from export.family import Family
from export.menu import Dish, fetch, menu

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "README.md"]


@dataclass(frozen=True, slots=True)
class Source:
    """A trained model, loaded, with what is known of where it came from."""

    family: Family
    origin: str
    license: str | None = None
    attribution: str | None = None
    languages: dict[str, str] | None = None


def default_name(text: str) -> str:
    """The last part of the source, in the letters that a package name may have."""
    stem = Path(text).name.removesuffix(".argosmodel").lower()
    return re.sub(r"[^a-z0-9.-]+", "-", stem).strip("-.") or "model"


def default_version(text: str) -> str:
    """The menu's, whose weights may be newer ones than were exported before; else the first."""
    dish = menu().get(text)
    return "1" if dish is None else dish.version


@contextmanager
def opened(text: str) -> Iterator[Source]:
    """The model behind SOURCE; files that had to be unpacked are there while inside."""
    path = Path(text)
    if (dish := menu().get(text)) is not None and not path.exists():
        with _of_menu(dish) as source:
            yield source
    elif is_argos(path) and path.is_file():
        with _unpacked(path) as argos:
            yield _from_argos(path.name, argos)
    elif is_argos(path):
        yield _from_argos(path.resolve().name, load_argos(path))
    elif path.is_dir():
        yield Source(load_checkpoint(path), origin=path.resolve().name, license=licence_of(path))
    elif _HUB_ID.fullmatch(text) and not path.exists():
        folder = _from_hub(text)
        yield Source(load_checkpoint(folder), origin=text, license=licence_of(folder))
    else:
        raise SourceError(
            f"{text} is neither a directory with config.json and safetensors, nor an Argos package, nor a model of the "
            f"menu ({', '.join(menu())})."
        )


@contextmanager
def _unpacked(package: Path) -> Iterator[Argos]:
    with TemporaryDirectory() as folder:
        yield load_argos(unpack(package, Path(folder)))


@contextmanager
def _of_menu(dish: Dish) -> Iterator[Source]:
    if dish.parcel is None:
        yield Source(load_checkpoint(dish.weights), f"headwaiter menu: {dish.name}", dish.license, dish.attribution)
        return
    with _unpacked(fetch(dish)) as argos:
        yield Source(argos.family, dish.parcel.requirement, dish.license, dish.attribution, argos.languages)


def _from_argos(origin: str, argos: Argos) -> Source:
    return Source(argos.family, origin, None, argos.attribution, argos.languages)


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise SourceError(
            f"{name} is not a directory here and could not be fetched from a model hub ({type(error).__name__}): "
            f"give a directory with config.json and safetensors, or one of the menu ({', '.join(menu())})."
        ) from error
