from headwaiter.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClassifyRequest(_message.Message):
    __slots__ = ("input", "top_k", "threshold")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    input: _containers.RepeatedCompositeFieldContainer[Input]
    top_k: int
    threshold: float
    def __init__(self, input: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., top_k: _Optional[int] = ..., threshold: _Optional[float] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("image", "text", "text_pair")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TEXT_PAIR_FIELD_NUMBER: _ClassVar[int]
    image: _common_pb2.Image
    text: str
    text_pair: TextPair
    def __init__(self, image: _Optional[_Union[_common_pb2.Image, _Mapping]] = ..., text: _Optional[str] = ..., text_pair: _Optional[_Union[TextPair, _Mapping]] = ...) -> None: ...

class TextPair(_message.Message):
    __slots__ = ("first", "second")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    first: str
    second: str
    def __init__(self, first: _Optional[str] = ..., second: _Optional[str] = ...) -> None: ...

class ClassifyResponse(_message.Message):
    __slots__ = ("results", "model", "usage", "timing")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ClassifyResult]
    model: _common_pb2.Model
    usage: _common_pb2.Usage
    timing: _common_pb2.Timing
    def __init__(self, results: _Optional[_Iterable[_Union[ClassifyResult, _Mapping]]] = ..., model: _Optional[_Union[_common_pb2.Model, _Mapping]] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_common_pb2.Timing, _Mapping]] = ...) -> None: ...

class ClassifyResult(_message.Message):
    __slots__ = ("labels",)
    LABELS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    def __init__(self, labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ...) -> None: ...

class Label(_message.Message):
    __slots__ = ("name", "index", "score")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    name: str
    index: int
    score: float
    def __init__(self, name: _Optional[str] = ..., index: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...
