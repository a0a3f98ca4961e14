"""`python -m tests.service.launch_kit FILE MODE [APP]`: `headwaiter serve`, with the applications of a module of the
tests in place of ours; tiny ones unless told."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from service.config import Service
from service.rendering import render
from service.serving import serve


def render_with(app: str, service: Service) -> dict[str, Any]:
    rendered = render(service)
    for application in rendered["applications"]:
        application["import_path"] = application["import_path"].replace("service.app", f"tests.service.{app}")
    return rendered


if __name__ == "__main__":
    file, mode, app = [*sys.argv[1:], "tiny_app"][:3]
    serve(Path(file), partial(render_with, app), mode=mode)
