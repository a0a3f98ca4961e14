"""The command `headwaiter` with an inference runtime that fails or hangs as the file $SICK_RUNTIME says.

The file contains `fail` or `hang`, and optionally the id of the process that is affected; without it, all are.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from headwaiter.engine.session import Session

VARIABLE = "SICK_RUNTIME"


class SickGraph:
    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    def run(self, *arguments: Any) -> Any:
        _fail_or_hang()
        return self._graph.run(*arguments)

    def run_with_iobinding(self, binding: Any) -> None:
        _fail_or_hang()
        self._graph.run_with_iobinding(binding)


def _fail_or_hang() -> None:
    file = Path(os.environ[VARIABLE])
    fault, *process = file.read_text().split() if file.exists() else [""]
    if fault and process in ([], [str(os.getpid())]):
        if fault == "hang":
            time.sleep(600)
        raise RuntimeError("simulated failure of the runtime")


def install() -> None:
    open_file = Session._open_file
    Session._open_file = lambda *arguments: SickGraph(open_file(*arguments))  # type: ignore[method-assign]


if __name__ == "__main__":
    from headwaiter.cli.main import main

    install()
    main()
