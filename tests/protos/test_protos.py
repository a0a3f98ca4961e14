from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from zipfile import ZipFile

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from headwaiter.v1 import common_pb2, policy_pb2, translation_pb2
from protos.generate import PROTOS, compile_protos, generate

ROOT = PROTOS.parent
STUBS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")
WITH_ACCOUNT = ("Translate", "Caption", "Classify", "Detect", "Act", "Episode", "Generate", "GenerateImages")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[FileDescriptorProto]:
    out = tmp_path_factory.mktemp("descriptors") / "set"
    compile_protos(sorted(PROTOS.rglob("*.proto")), f"--descriptor_set_out={out}", "--include_source_info")
    return list(FileDescriptorSet.FromString(out.read_bytes()).file)


def test_stubs_are_fresh(tmp_path: Path) -> None:
    generate(tmp_path)
    assert _contents(tmp_path) == _contents(PROTOS), "make protos"


def test_everything_has_a_comment(files: list[FileDescriptorProto]) -> None:
    for file in files:
        commented = {tuple(place.path) for place in file.source_code_info.location if place.leading_comments.strip()}
        for path, name in _worth_a_comment(file):
            assert path in commented, f"{file.name}: {name}"


def test_methods_are_unique_and_name_their_messages(files: list[FileDescriptorProto]) -> None:
    methods = [method for file in files for service in file.service for method in service.method]
    assert [name for name, count in Counter(method.name for method in methods).items() if count > 1] == []
    for method in methods:
        assert method.input_type == f".headwaiter.v1.{method.name}Request"
        assert method.output_type == f".headwaiter.v1.{method.name}Response"
        assert method.server_streaming == (method.name.endswith("Stream") or method.name == "Episode")


def test_one_service_per_file(files: list[FileDescriptorProto]) -> None:
    for file in files:
        stem = Path(file.name).stem
        assert [service.name.lower() for service in file.service] == ([] if stem == "common" else [stem])


def test_answers_carry_their_account(files: list[FileDescriptorProto]) -> None:
    messages = {message.name: message for file in files for message in file.message_type}
    for message in [messages[f"{method}Response"] for method in WITH_ACCOUNT] + [messages["Done"]]:
        types = {field.name: field.type_name.removeprefix(".headwaiter.v1.") for field in message.field}
        assert types.items() >= {"model": "Model", "usage": "Usage", "timing": "Timing"}.items(), message.name


def test_every_way_of_decoding_may_be_left_out(files: list[FileDescriptorProto]) -> None:
    (decoding,) = [message for file in files for message in file.message_type if message.name == "Decoding"]
    assert len(decoding.field) == 12
    assert all(field.proto3_optional for field in decoding.field)
    assert not common_pb2.Decoding().HasField("beams")
    assert common_pb2.Decoding(top_k=0).HasField("top_k")


def test_naming(files: list[FileDescriptorProto]) -> None:
    for file in files:
        assert file.package == "headwaiter.v1"
        for message in file.message_type:
            assert re.fullmatch(r"([A-Z][a-z]+)+", message.name), message.name
            for field in message.field:
                assert re.fullmatch(r"[a-z]+(_[a-z]+)*", field.name), field.name
            for enum in message.enum_type:
                assert enum.value[0].name.endswith("_UNSPECIFIED"), enum.name


def test_round_trip() -> None:
    request = translation_pb2.TranslateRequest(text=["你好。", ""], decoding=common_pb2.Decoding(beams=4))
    again = translation_pb2.TranslateRequest.FromString(request.SerializeToString())
    assert again == request
    assert not again.HasField("split")
    action = policy_pb2.Action(continuous=policy_pb2.Vector(values=[0.5, -1.0]))
    assert policy_pb2.Action.FromString(action.SerializeToString()).WhichOneof("choice") == "continuous"


@pytest.mark.parametrize("path", sorted(PROTOS.rglob("*_pb2_grpc.py")), ids=lambda path: path.stem)
def test_services_import(path: Path) -> None:
    name = path.stem.removesuffix("_pb2_grpc").capitalize()
    module = import_module(f"headwaiter.v1.{path.stem}")
    assert callable(getattr(module, f"add_{name}Servicer_to_server"))


def test_requirements_allow_no_version_that_the_stubs_refuse() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    protobuf = _found(r"# Protobuf Python Version: (.+)", PROTOS / "headwaiter/v1/models_pb2.py")
    grpcio = _found(r"GRPC_GENERATED_VERSION = '(.+)'", PROTOS / "headwaiter/v1/models_pb2_grpc.py")
    assert {f"protobuf>={protobuf}", f"grpcio>={grpcio}"} <= set(wanted)


def test_wheel_holds_the_protocol(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(PROTOS, source / "protos", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    protocol = source / "protos" / "headwaiter"
    held = {name for name in ZipFile(wheel).namelist() if name.startswith("headwaiter/")}
    assert held == {str(path.relative_to(protocol.parent)) for path in protocol.rglob("*.*")}


def _contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for pattern in STUBS for path in folder.rglob(pattern)}


def _found(pattern: str, path: Path) -> str:
    match = re.search(pattern, path.read_text())
    assert match
    return match[1]


def _worth_a_comment(file: FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    """Paths as `SourceCodeInfo` counts them: the number of the field in its message, then the place."""
    yield (FileDescriptorProto.SYNTAX_FIELD_NUMBER,), "the file itself"
    for index, service in enumerate(file.service):
        place = (FileDescriptorProto.SERVICE_FIELD_NUMBER, index)
        yield place, service.name
        for number, method in enumerate(service.method):
            yield (*place, 2, number), method.name
    for index, message in enumerate(file.message_type):
        place = (FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER, index)
        for number, field in enumerate(message.field):
            yield (*place, DescriptorProto.FIELD_FIELD_NUMBER, number), f"{message.name}.{field.name}"
        oneofs = {field.oneof_index for field in message.field if _of_a_real_oneof(field)}
        for number in oneofs:
            yield (*place, DescriptorProto.ONEOF_DECL_FIELD_NUMBER, number), message.oneof_decl[number].name


def _of_a_real_oneof(field: FieldDescriptorProto) -> bool:
    return field.HasField("oneof_index") and not field.proto3_optional
