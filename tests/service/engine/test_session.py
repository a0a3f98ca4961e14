"""Settings of ONNX Runtime that a session chooses by its package."""

from __future__ import annotations

import pytest

from headwaiter.engine.session import Session
from tests.conftest import Packages


@pytest.mark.parametrize(("kind", "expected"), [("detr", False), ("vit", True), ("bert", True), ("gpt2", True)])
def test_session_arena_is_off_only_for_images_of_any_size(kind: str, expected: bool, packages: Packages) -> None:
    session = Session(packages(kind, "fp32").package, threads=1)
    options = [graph.get_session_options() for graph in session._graphs.values()]
    assert {option.enable_cpu_mem_arena for option in options} == {expected}
