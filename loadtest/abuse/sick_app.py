"""Serve models whose engine can be made to fail: `python -m loadtest.abuse.sick_app FILE MODE FOLDER`.

Every step of a replica fails from the moment at which a file with the number of its process exists in the folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ray import serve

from headwaiter.cli import serve as serve_command
from headwaiter.serving.application import catalog
from headwaiter.serving.config import Service
from headwaiter.serving.ray_config import render
from headwaiter.serving.replica import ModelReplica

__all__ = ["catalog", "model"]

_FOLDER = "folder_of_sick_replicas"


class SickReplica(ModelReplica):
    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]
        sick = Path(args[_FOLDER], str(os.getpid()))
        arguments = {name: value for name, value in args.items() if name != _FOLDER}
        await super().__init__(arguments)  # type: ignore[misc]
        session: Any = self.model.engine.session
        run = session.run

        def run_or_fail(*inputs: Any, **options: Any) -> Any:
            if sick.exists():
                raise RuntimeError("this replica was made sick")
            return run(*inputs, **options)

        session.run = run_or_fail


def model(args: dict[str, Any]) -> serve.Application:
    return serve.deployment(name="model")(SickReplica).bind(args)


def _render(service: Service, folder: str) -> dict[str, Any]:
    """The configuration of `headwaiter serve`, with the replicas of this module."""
    rendered = render(service)
    for application in rendered["applications"]:
        path: str = application["import_path"]
        application["import_path"] = path.replace("headwaiter.serving.application", "loadtest.abuse.sick_app")
        if path.endswith(":model"):
            application["args"][_FOLDER] = folder
    return rendered


if __name__ == "__main__":
    file, mode, sick_folder = sys.argv[1:]
    serve_command.serve(Path(file), lambda service: _render(service, sick_folder), mode=mode)
