"""The .proto files follow the conventions of `headwaiter.v1`, and the generated stubs are current."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

from headwaiter.v1 import common_pb2, policy_pb2, translation_pb2
from protos.generate import DESCRIPTORS, OUTPUT, PROTOS, compile_protos, generate

ROOT = PROTOS.parent
STUBS = OUTPUT / "headwaiter" / "v1"
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", Path(DESCRIPTORS).name)
WITH_COMMON_FIELDS = ("Translate", "Caption", "Classify", "Detect", "Act", "Episode", "Generate", "GenerateImages")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[FileDescriptorProto]:
    out = tmp_path_factory.mktemp("descriptors") / "set"
    compile_protos(sorted(PROTOS.rglob("*.proto")), f"--descriptor_set_out={out}", "--include_source_info")
    return list(FileDescriptorSet.FromString(out.read_bytes()).file)


def test_stubs_equal_fresh_generation(tmp_path: Path) -> None:
    generate(tmp_path)
    fresh, current = _generated_files(tmp_path), _generated_files(OUTPUT)
    assert fresh.keys() == current.keys(), "run `make protos`"
    assert [name for name in fresh if fresh[name] != current[name]] == [], "run `make protos`"
    assert DESCRIPTORS in fresh


def test_files_services_methods_and_fields_have_comments(files: list[FileDescriptorProto]) -> None:
    for file in files:
        commented = {tuple(place.path) for place in file.source_code_info.location if place.leading_comments.strip()}
        for path, name in _commentable(file):
            assert path in commented, f"{file.name}: {name}"


def test_method_names_are_unique_and_match_messages(files: list[FileDescriptorProto]) -> None:
    methods = [method for file in files for service in file.service for method in service.method]
    assert [name for name, count in Counter(method.name for method in methods).items() if count > 1] == []
    for method in methods:
        assert method.input_type == f".headwaiter.v1.{method.name}Request"
        assert method.output_type == f".headwaiter.v1.{method.name}Response"
        assert method.server_streaming == (method.name.endswith("Stream") or method.name == "Episode")


def test_file_has_one_service_named_after_it(files: list[FileDescriptorProto]) -> None:
    for file in files:
        stem = Path(file.name).stem
        assert [service.name.lower() for service in file.service] == ([] if stem == "common" else [stem])


def test_responses_have_model_usage_and_timing(files: list[FileDescriptorProto]) -> None:
    messages = {message.name: message for file in files for message in file.message_type}
    for message in [messages[f"{method}Response"] for method in WITH_COMMON_FIELDS] + [messages["Done"]]:
        types = {field.name: field.type_name.removeprefix(".headwaiter.v1.") for field in message.field}
        assert types.items() >= {"model": "Model", "usage": "Usage", "timing": "Timing"}.items(), message.name


def test_decoding_fields_are_optional(files: list[FileDescriptorProto]) -> None:
    (decoding,) = [message for file in files for message in file.message_type if message.name == "Decoding"]
    assert len(decoding.field) == 12
    assert all(field.proto3_optional for field in decoding.field)
    assert not common_pb2.Decoding().HasField("num_beams")
    assert common_pb2.Decoding(top_k=0).HasField("top_k")


def test_names_follow_protobuf_style(files: list[FileDescriptorProto]) -> None:
    for file in files:
        assert file.package == "headwaiter.v1"
        for message in file.message_type:
            assert re.fullmatch(r"([A-Z][a-z]+)+", message.name), message.name
            for field in message.field:
                assert re.fullmatch(r"[a-z]+(_[a-z]+)*", field.name), field.name
            for enum in message.enum_type:
                assert enum.value[0].name.endswith("_UNSPECIFIED"), enum.name


def test_messages_survive_serialization_round_trip() -> None:
    request = translation_pb2.TranslateRequest(text=["你好。", ""], decoding=common_pb2.Decoding(num_beams=4))
    parsed = translation_pb2.TranslateRequest.FromString(request.SerializeToString())
    assert parsed == request
    assert not parsed.HasField("split")
    action = policy_pb2.Action(continuous=policy_pb2.Vector(values=[0.5, -1.0]))
    assert policy_pb2.Action.FromString(action.SerializeToString()).WhichOneof("choice") == "continuous"


@pytest.mark.parametrize("path", sorted(STUBS.glob("*_pb2_grpc.py")), ids=lambda path: path.stem)
def test_service_stub_is_importable(path: Path) -> None:
    name = path.stem.removesuffix("_pb2_grpc").capitalize()
    module = import_module(f"headwaiter.v1.{path.stem}")
    assert callable(getattr(module, f"add_{name}Servicer_to_server"))


def test_minimum_dependency_versions_support_stubs() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    protobuf = _first_group(r"# Protobuf Python Version: (.+)", STUBS / "models_pb2.py")
    grpcio = _first_group(r"GRPC_GENERATED_VERSION = '(.+)'", STUBS / "models_pb2_grpc.py")
    assert {f"protobuf>={protobuf}", f"grpcio>={grpcio}"} <= set(dependencies)


def _generated_files(root: Path) -> dict[str, bytes]:
    paths = [path for pattern in GENERATED for path in root.rglob(pattern)]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def _first_group(pattern: str, path: Path) -> str:
    match = re.search(pattern, path.read_text())
    assert match
    return match[1]


def _commentable(file: FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    """`SourceCodeInfo` paths and names of everything that needs a comment."""
    yield (FileDescriptorProto.SYNTAX_FIELD_NUMBER,), "file"
    for index, service in enumerate(file.service):
        path = (FileDescriptorProto.SERVICE_FIELD_NUMBER, index)
        yield path, service.name
        for position, method in enumerate(service.method):
            yield (*path, ServiceDescriptorProto.METHOD_FIELD_NUMBER, position), method.name
    for index, message in enumerate(file.message_type):
        path = (FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER, index)
        for position, field in enumerate(message.field):
            yield (*path, DescriptorProto.FIELD_FIELD_NUMBER, position), f"{message.name}.{field.name}"
        oneofs = {field.oneof_index for field in message.field if _is_oneof_member(field)}
        for position in oneofs:
            yield (*path, DescriptorProto.ONEOF_DECL_FIELD_NUMBER, position), message.oneof_decl[position].name


def _is_oneof_member(field: FieldDescriptorProto) -> bool:
    return field.HasField("oneof_index") and not field.proto3_optional
