"""`make protos`: generate the Python stubs and the descriptor set of `headwaiter.v1` from the `.proto` files."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

PROTOS = Path(__file__).parent
OUTPUT = PROTOS.parent / "service"
DESCRIPTORS = "headwaiter/v1/descriptors.binpb"


def generate(output: Path) -> None:
    """Write stubs and descriptors below `output`, in the folders of their packages."""
    sources = sorted(PROTOS.rglob("*.proto"))
    with_service = [path for path in sources if "\nservice " in path.read_text(encoding="utf-8")]
    compile_protos(sources, f"--python_out={output}", f"--pyi_out={output}")
    compile_protos(with_service, f"--grpc_python_out={output}")
    # Stubs carry no comments; the service reads them from here for its OpenAPI documents.
    compile_protos(sources, f"--descriptor_set_out={output / DESCRIPTORS}", "--include_source_info")
    _keep_only_comments(output / DESCRIPTORS)


def _keep_only_comments(file: Path) -> None:
    """Remove the source positions, which are a third of the file and change with every line that is inserted."""
    descriptors = FileDescriptorSet.FromString(file.read_bytes())
    for source in descriptors.file:
        commented = [location for location in source.source_code_info.location if location.leading_comments]
        del source.source_code_info.location[:]
        for location in commented:
            source.source_code_info.location.add(path=location.path, leading_comments=location.leading_comments)
    file.write_bytes(descriptors.SerializeToString(deterministic=True))


def compile_protos(sources: list[Path], *options: str) -> None:
    names = [str(path.relative_to(PROTOS)) for path in sources]
    if protoc.main(["protoc", f"-I{PROTOS}", *options, *names]):
        raise SystemExit("protoc failed; its messages are above.")


if __name__ == "__main__":
    generate(OUTPUT)
