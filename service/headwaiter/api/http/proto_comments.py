"""Comments of the `.proto` files, for the OpenAPI documents. Generated stubs do not contain them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

# Field numbers of descriptor.proto, which source locations are paths of.
_MESSAGE, _ENUM, _SERVICE, _METHOD = 4, 5, 6, 2
_FIELD, _NESTED, _NESTED_ENUM, _ONEOF = 2, 3, 4, 8

Path = tuple[int, ...]


@cache
def comments() -> dict[str, str]:
    """Comments by full name, such as `headwaiter.v1.Decoding.num_beams`."""
    content = files("headwaiter.v1").joinpath("descriptors.binpb").read_bytes()
    return {name: text for file in FileDescriptorSet.FromString(content).file for name, text in _comments_of(file)}


def comment(full_name: str) -> str:
    """The comment of a message, field, service or method, as one line; empty if there is none."""
    return comments().get(full_name, "")


def _comments_of(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    text = {tuple(place.path): " ".join(place.leading_comments.split()) for place in file.source_code_info.location}
    for path, name in _names(file):
        if text.get(path):
            yield f"{file.package}.{name}", text[path]


def _names(file: FileDescriptorProto) -> Iterator[tuple[Path, str]]:
    for index, message in enumerate(file.message_type):
        yield from _names_of_message((_MESSAGE, index), message.name, message)
    for index, enum in enumerate(file.enum_type):
        yield (_ENUM, index), enum.name
    for index, service in enumerate(file.service):
        yield (_SERVICE, index), service.name
        for position, method in enumerate(service.method):
            yield (_SERVICE, index, _METHOD, position), f"{service.name}.{method.name}"


def _names_of_message(path: Path, name: str, message: DescriptorProto) -> Iterator[tuple[Path, str]]:
    yield path, name
    for index, field in enumerate(message.field):
        yield (*path, _FIELD, index), f"{name}.{field.name}"
    for index, oneof in enumerate(message.oneof_decl):
        yield (*path, _ONEOF, index), f"{name}.{oneof.name}"
    for index, enum in enumerate(message.enum_type):
        yield (*path, _NESTED_ENUM, index), f"{name}.{enum.name}"
    for index, nested in enumerate(message.nested_type):
        yield from _names_of_message((*path, _NESTED, index), f"{name}.{nested.name}", nested)
