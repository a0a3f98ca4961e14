"""`python -m loadtest.abuse.sick_service FILE MODE FOLDER`: `headwaiter serve` with replicas that can be made sick.

It does not import Ray, which reads its environment on import; `headwaiter serve` sets that first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from headwaiter.cli.serve import serve
from headwaiter.serving.config import Service
from headwaiter.serving.ray_config import render

FOLDER = "folder_of_sick_replicas"
"""Argument of a replica: the directory with one file per sick process."""


def render_sick(service: Service, folder: str) -> dict[str, Any]:
    """The configuration of `headwaiter serve`, with the application of `sick_app`."""
    rendered = render(service)
    for application in rendered["applications"]:
        path: str = application["import_path"]
        application["import_path"] = path.replace("headwaiter.serving.application", "loadtest.abuse.sick_app")
        if path.endswith(":model"):
            application["args"][FOLDER] = folder
    return rendered


if __name__ == "__main__":
    file, mode, sick_folder = sys.argv[1:]
    serve(Path(file), lambda service: render_sick(service, sick_folder), mode=mode)
