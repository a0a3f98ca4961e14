from headwaiter.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CaptionRequest(_message.Message):
    __slots__ = ("image", "prompt", "decoding")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    DECODING_FIELD_NUMBER: _ClassVar[int]
    image: _containers.RepeatedCompositeFieldContainer[_common_pb2.Image]
    prompt: str
    decoding: _common_pb2.Decoding
    def __init__(self, image: _Optional[_Iterable[_Union[_common_pb2.Image, _Mapping]]] = ..., prompt: _Optional[str] = ..., decoding: _Optional[_Union[_common_pb2.Decoding, _Mapping]] = ...) -> None: ...

class CaptionResponse(_message.Message):
    __slots__ = ("results", "model", "usage", "timing")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CaptionResult]
    model: _common_pb2.Model
    usage: _common_pb2.Usage
    timing: _common_pb2.Timing
    def __init__(self, results: _Optional[_Iterable[_Union[CaptionResult, _Mapping]]] = ..., model: _Optional[_Union[_common_pb2.Model, _Mapping]] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_common_pb2.Timing, _Mapping]] = ...) -> None: ...

class CaptionResult(_message.Message):
    __slots__ = ("hypotheses",)
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    hypotheses: _containers.RepeatedCompositeFieldContainer[_common_pb2.Hypothesis]
    def __init__(self, hypotheses: _Optional[_Iterable[_Union[_common_pb2.Hypothesis, _Mapping]]] = ...) -> None: ...

class CaptionStreamRequest(_message.Message):
    __slots__ = ("image", "prompt", "decoding")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    DECODING_FIELD_NUMBER: _ClassVar[int]
    image: _common_pb2.Image
    prompt: str
    decoding: _common_pb2.Decoding
    def __init__(self, image: _Optional[_Union[_common_pb2.Image, _Mapping]] = ..., prompt: _Optional[str] = ..., decoding: _Optional[_Union[_common_pb2.Decoding, _Mapping]] = ...) -> None: ...

class CaptionStreamResponse(_message.Message):
    __slots__ = ("delta", "done")
    DELTA_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    delta: str
    done: _common_pb2.Done
    def __init__(self, delta: _Optional[str] = ..., done: _Optional[_Union[_common_pb2.Done, _Mapping]] = ...) -> None: ...
