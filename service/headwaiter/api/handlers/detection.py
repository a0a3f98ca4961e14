from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.api.endpoint import Handlers
from headwaiter.api.executor import RequestExecutor, attach_total_usage
from headwaiter.tasks.detection import Detections, check_options
from headwaiter.v1 import detection_pb2 as pb


def detection(executor: RequestExecutor, model: Any) -> Handlers:
    async def detect(request: pb.DetectRequest, context: RequestContext) -> Message:
        threshold = request.threshold if request.HasField("threshold") else None
        max_boxes = request.max_boxes if request.HasField("max_boxes") else None
        check_options(threshold, max_boxes)
        options = {"threshold": threshold, "max_boxes": max_boxes, "deadline": context.deadline}
        submits = [
            partial(model.submit_image, image.data, field=f"image[{index}]", **options)
            for index, image in enumerate(request.image)
        ]
        outputs = await executor.execute("image", submits, cost=None)
        response = pb.DetectResponse(results=[_result(output.answer) for output in outputs])
        return attach_total_usage(executor, context, response, outputs)

    return {"Detect": detect}


def _result(detections: Detections) -> pb.DetectResult:
    boxes = [pb.Box(**asdict(box)) for box in detections.boxes]
    return pb.DetectResult(width=detections.width, height=detections.height, boxes=boxes)
