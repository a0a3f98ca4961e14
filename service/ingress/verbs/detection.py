from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from google.protobuf.message import Message

from headwaiter.v1 import detection_pb2 as pb
from service.ingress.calls import Call
from service.ingress.desk import Desk, account
from service.ingress.endpoint import Verbs
from service.tasks.detection import Detected, demand_choice


def detection(desk: Desk, model: Any) -> Verbs:
    async def detect(request: pb.DetectRequest, call: Call) -> Message:
        threshold = request.threshold if request.HasField("threshold") else None
        max_boxes = request.max_boxes if request.HasField("max_boxes") else None
        demand_choice(threshold, max_boxes)
        how = {"threshold": threshold, "max_boxes": max_boxes, "deadline": call.deadline}
        submits = [
            partial(model.submit_image, image.data, field=f"image[{index}]", **how)
            for index, image in enumerate(request.image)
        ]
        answers = await desk.answers("image", submits, characters=None)
        response = pb.DetectResponse(results=[_result(each.answer) for each in answers])
        return account(desk, call, response, answers)

    return {"Detect": detect}


def _result(found: Detected) -> pb.DetectResult:
    return pb.DetectResult(width=found.width, height=found.height, boxes=[pb.Box(**asdict(box)) for box in found.boxes])
