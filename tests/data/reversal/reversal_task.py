"""Reverses texts with a graph that reverses sequences of code points."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import reversal_pb2 as pb

from headwaiter.engine.futures import Pending
from headwaiter.engine.session import Arrays
from headwaiter.tasks.errors import check_inputs, check_length
from headwaiter.tasks.forward_pass import ForwardPassTask, WithUsage
from headwaiter.tasks.task import Submission, TaskMethod, UnaryMethod


class Reversal(ForwardPassTask):
    def methods(self) -> Mapping[str, TaskMethod]:
        return {"Reverse": UnaryMethod(self.parse, _format)}

    def warm_up(self) -> None:
        self.reverse("warm").result()

    def parse(self, request: pb.ReverseRequest, deadline: float | None) -> Submission[WithUsage[str]]:
        check_inputs(request.text, "text")
        inputs = [
            partial(self.reverse, text, deadline=deadline, field=f"text[{index}]")
            for index, text in enumerate(request.text)
        ]
        return Submission(inputs, cost=sum(map(len, request.text)))

    def reverse(self, text: str, *, deadline: float | None = None, field: str = "text") -> Pending[WithUsage[str]]:
        started = time.monotonic()
        check_length(len(text), self.manifest.limits["length"], field, "characters")
        code_points = np.array([ord(character) for character in text or " "], np.int64)

        def postprocess(outputs: Arrays) -> str:
            return "".join(map(chr, outputs["reversed"][: len(text)].tolist()))

        return self.submit({"tokens": code_points}, postprocess, started=started, deadline=deadline)


def _format(results: Sequence[WithUsage[str]]) -> pb.ReverseResponse:
    return pb.ReverseResponse(results=[pb.ReverseResult(text=result.answer) for result in results])
