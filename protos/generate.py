"""`make protos`: writes the Python stubs beside the `.proto` files."""

from __future__ import annotations

from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).parent


def generate(out: Path) -> None:
    sources = sorted(PROTOS.rglob("*.proto"))
    with_service = [path for path in sources if "\nservice " in path.read_text(encoding="utf-8")]
    compile_protos(sources, f"--python_out={out}", f"--pyi_out={out}")
    compile_protos(with_service, f"--grpc_python_out={out}")


def compile_protos(sources: list[Path], *options: str) -> None:
    names = [str(path.relative_to(PROTOS)) for path in sources]
    if protoc.main(["protoc", f"-I{PROTOS}", *options, *names]):
        raise SystemExit("protoc refused the protos; its own words are above.")


if __name__ == "__main__":
    generate(PROTOS)
