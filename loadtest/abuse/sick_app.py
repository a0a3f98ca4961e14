"""Application of models whose engine can be made to fail; see `sick_service`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ray import serve

from headwaiter.serving.application import catalog
from headwaiter.serving.replica import ModelReplica
from loadtest.abuse.sick_service import FOLDER

__all__ = ["catalog", "model"]


class SickReplica(ModelReplica):
    """Every step fails from the moment at which a file with the number of this process exists in the folder."""

    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]
        sick = Path(args[FOLDER], str(os.getpid()))
        arguments = {name: value for name, value in args.items() if name != FOLDER}
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
