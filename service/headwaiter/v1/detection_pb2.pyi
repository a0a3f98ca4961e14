from headwaiter.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DetectRequest(_message.Message):
    __slots__ = ("image", "threshold", "max_boxes")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MAX_BOXES_FIELD_NUMBER: _ClassVar[int]
    image: _containers.RepeatedCompositeFieldContainer[_common_pb2.Image]
    threshold: float
    max_boxes: int
    def __init__(self, image: _Optional[_Iterable[_Union[_common_pb2.Image, _Mapping]]] = ..., threshold: _Optional[float] = ..., max_boxes: _Optional[int] = ...) -> None: ...

class DetectResponse(_message.Message):
    __slots__ = ("results", "model", "usage", "timing")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[DetectResult]
    model: _common_pb2.Model
    usage: _common_pb2.Usage
    timing: _common_pb2.Timing
    def __init__(self, results: _Optional[_Iterable[_Union[DetectResult, _Mapping]]] = ..., model: _Optional[_Union[_common_pb2.Model, _Mapping]] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_common_pb2.Timing, _Mapping]] = ...) -> None: ...

class DetectResult(_message.Message):
    __slots__ = ("width", "height", "boxes")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    BOXES_FIELD_NUMBER: _ClassVar[int]
    width: int
    height: int
    boxes: _containers.RepeatedCompositeFieldContainer[Box]
    def __init__(self, width: _Optional[int] = ..., height: _Optional[int] = ..., boxes: _Optional[_Iterable[_Union[Box, _Mapping]]] = ...) -> None: ...

class Box(_message.Message):
    __slots__ = ("name", "index", "score", "x_min", "y_min", "x_max", "y_max")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    X_MIN_FIELD_NUMBER: _ClassVar[int]
    Y_MIN_FIELD_NUMBER: _ClassVar[int]
    X_MAX_FIELD_NUMBER: _ClassVar[int]
    Y_MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    index: int
    score: float
    x_min: float
    y_min: float
    x_max: float
    y_max: float
    def __init__(self, name: _Optional[str] = ..., index: _Optional[int] = ..., score: _Optional[float] = ..., x_min: _Optional[float] = ..., y_min: _Optional[float] = ..., x_max: _Optional[float] = ..., y_max: _Optional[float] = ...) -> None: ...
