from __future__ import annotations

from export.family import family
from export.onepass import Detector


@family("detr")
class Detr(Detector):
    head = "DetrForObjectDetection"
    queries = "num_queries"


@family("yolos")
class Yolos(Detector):
    head = "YolosForObjectDetection"
    queries = "num_detection_tokens"
