"""Importing a module does not read the machine: environment variables, files, cores, terminals."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("service/headwaiter", "export/headwaiter_export", "deploy", "loadtest")
READS = {
    *("environ", "getenv", "cpu_count", "process_cpu_count", "sched_getaffinity", "sysconf", "getuid", "gethostname"),
    *("open", "read_text", "read_bytes", "exists", "is_file", "is_dir", "glob", "iterdir", "cwd", "home"),
    *("gettempdir", "mkdtemp", "isatty", "Console", "which", "platform", "processor", "uname", "run", "Popen"),
}
EXCEPTIONS = {
    "service/headwaiter/__init__.py": ["line 9: environ"]
}  # sets ONNX Runtime's telemetry off before its import
OWN_ENVIRONMENTS = ROOT / "loadtest/peers"  # NAME/serve.py are programs of other environments


def _is_main_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _evaluated_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: without the bodies of functions, with their default values."""
    if _is_main_guard(node):
        return
    yield node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        children: list[ast.AST] = [*node.args.defaults, *(default for default in node.args.kw_defaults if default)]
        if not isinstance(node, ast.Lambda):
            children += node.decorator_list
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _evaluated_at_import(child)


def _machine_reads(tree: ast.Module) -> Iterator[str]:
    for node in _evaluated_at_import(tree):
        function = node.func if isinstance(node, ast.Call) else None
        name = getattr(function, "attr", getattr(function, "id", None))
        if isinstance(node, ast.Attribute) and node.attr == "environ":
            name = "environ"
        if name in READS:
            yield f"line {getattr(node, 'lineno', 0)}: {name}"


def test_importing_a_module_does_not_read_the_machine() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    reads = {
        str(file.relative_to(ROOT)): found
        for file in files
        if not (file.name == "serve.py" and file.is_relative_to(OWN_ENVIRONMENTS))
        if (found := list(_machine_reads(ast.parse(file.read_text(encoding="utf-8")))))
    }
    assert reads == EXCEPTIONS


def test_machine_reads_are_found_in_constants_defaults_and_classes() -> None:
    source = (
        "import os\nCORES = os.cpu_count()\ndef f(x=os.environ['A']):\n    open('b')\nclass C:\n    d = open('e')\n"
    )
    assert list(_machine_reads(ast.parse(source))) == ["line 2: cpu_count", "line 3: environ", "line 6: open"]
