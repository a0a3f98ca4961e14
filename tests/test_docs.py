"""Links of the documentation resolve, docs/architecture.md names symbols that exist, and docs/api.md's example runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.echo_server_kit import EchoServer, run_server

ROOT = Path(__file__).parents[1]
ARCHITECTURE = ROOT / "docs/architecture.md"
DOCUMENTS = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *ROOT.glob("docs/**/*.md")]

FENCED_BLOCK = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
SYMBOL = re.compile(r"`([A-Za-z_][\w.]*)`")
SYMBOLS_IN_FILE = re.compile(rf"\[`[^`]+`\]\(([^)\s]+\.py)\)((?:(?:,| and)? {SYMBOL.pattern})+)")


def _prose(document: Path) -> str:
    return FENCED_BLOCK.sub("", document.read_text(encoding="utf-8"))


def _anchors(document: Path) -> set[str]:
    """Anchors of the headings, as GitHub forms them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(_prose(document))}


def _broken_links(document: Path) -> Iterator[str]:
    for link in LINK.findall(_prose(document)):
        if EXTERNAL.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        is_broken_anchor = anchor and target.suffix == ".md" and target.is_file() and anchor not in _anchors(target)
        if not target.exists() or is_broken_anchor:
            yield link


def _assigned_names(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def _defined_symbols(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Names of the functions, classes with their members, and variables that the statements define."""
    symbols = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            symbols.add(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            symbols |= _defined_symbols(node.body, f"{prefix}{node.name}.")
        symbols |= {prefix + name for name in _assigned_names(node)}
    return symbols


def _symbol_references() -> list[tuple[str, str]]:
    """Pairs of a linked Python file and a symbol named after the link on the same line."""
    return [
        (file, symbol)
        for line in ARCHITECTURE.read_text(encoding="utf-8").splitlines()
        for file, symbols, _ in SYMBOLS_IN_FILE.findall(line)
        for symbol in SYMBOL.findall(symbols)
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_relative_links_point_to_existing_files_and_headings(document: Path) -> None:
    assert list(_broken_links(document)) == []


def test_architecture_names_symbol_after_every_python_file() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    linked = re.findall(r"\[`[^`]+`\]\([^)\s]+\.py\)", text)
    assert linked
    assert len(SYMBOLS_IN_FILE.findall(text)) == len(linked)


@pytest.mark.parametrize("file", sorted({file for file, _ in _symbol_references()}))
def test_architecture_symbols_are_defined_in_linked_file(file: str) -> None:
    source = (ARCHITECTURE.parent / file).read_text(encoding="utf-8")
    defined = _defined_symbols(ast.parse(source).body)
    assert [symbol for path, symbol in _symbol_references() if path == file and symbol not in defined] == []


def test_api_episode_example_plays_an_episode() -> None:
    document = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", document, re.MULTILINE | re.DOTALL)
    with run_server(EchoServer()) as server:
        program = code.replace("localhost:9000", server.address)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        observations = [request.observation for request in server.requests if request.HasField("observation")]
    assert (done.returncode, done.stdout) == (0, "5 steps\n"), done.stderr
    assert server.ended == ["closed"]
    assert [item.reward for item in observations if item.HasField("reward")] == [1.0] * 4
