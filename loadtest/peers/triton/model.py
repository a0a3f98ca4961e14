"""What Triton's Python backend calls with the requests of a batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton
from engines import FAST


class TritonPythonModel:
    def initialize(self, told: dict[str, str]) -> None:
        stated = json.loads(told["model_config"])["parameters"]
        values = {name: each["string_value"] for name, each in stated.items()}
        self._engine = FAST[values["task"]](Path(values["folder"]), int(values["threads"]))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        inputs = [triton.get_input_tensor_by_name(each, "INPUT").as_numpy().reshape(-1) for each in requests]
        answers = iter(self._engine([value.decode() for part in inputs for value in part]))
        replies = []
        for part in inputs:
            values = np.array([[str(next(answers)).encode()] for _ in part], dtype=np.object_)
            replies.append(triton.InferenceResponse([triton.Tensor("OUTPUT", values)]))
        return replies
