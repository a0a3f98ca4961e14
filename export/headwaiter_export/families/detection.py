from __future__ import annotations

from headwaiter_export.families.family import family
from headwaiter_export.families.single_pass import Detector


@family("detr")
class Detr(Detector):
    transformers_class = "DetrForObjectDetection"
    num_queries_attribute = "num_queries"


@family("yolos")
class Yolos(Detector):
    transformers_class = "YolosForObjectDetection"
    num_queries_attribute = "num_detection_tokens"
