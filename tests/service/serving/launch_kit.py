"""Run `headwaiter serve` with the applications of a test module (default: stub_app).

Usage: `python -m tests.service.serving.launch_kit FILE MODE [APP]`
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from headwaiter.cli.serve import serve
from headwaiter.serving.config import Service
from headwaiter.serving.ray_config import render


def render_with(app: str, service: Service) -> dict[str, Any]:
    rendered = render(service)
    for application in rendered["applications"]:
        application["import_path"] = application["import_path"].replace(
            "headwaiter.serving.application", f"tests.service.serving.{app}"
        )
    return rendered


if __name__ == "__main__":
    file, mode, app = [*sys.argv[1:], "stub_app"][:3]
    serve(Path(file), partial(render_with, app), mode=mode)
