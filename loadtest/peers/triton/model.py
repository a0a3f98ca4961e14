"""Model for Triton's Python backend; `execute` receives the requests of a batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton
from engines import FAST_ENGINES


class TritonPythonModel:
    def initialize(self, arguments: dict[str, str]) -> None:
        parameters = json.loads(arguments["model_config"])["parameters"]
        values = {name: parameter["string_value"] for name, parameter in parameters.items()}
        self._engine = FAST_ENGINES[values["task"]](Path(values["folder"]), int(values["threads"]))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        inputs = [triton.get_input_tensor_by_name(request, "INPUT").as_numpy().reshape(-1) for request in requests]
        answers = iter(self._engine([value.decode() for batch in inputs for value in batch]))
        responses = []
        for batch in inputs:
            values = np.array([[str(next(answers)).encode()] for _ in batch], dtype=np.object_)
            responses.append(triton.InferenceResponse([triton.Tensor("OUTPUT", values)]))
        return responses
