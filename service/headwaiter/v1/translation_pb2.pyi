from headwaiter.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TranslateRequest(_message.Message):
    __slots__ = ("text", "source_language", "target_language", "split", "decoding")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    DECODING_FIELD_NUMBER: _ClassVar[int]
    text: _containers.RepeatedScalarFieldContainer[str]
    source_language: str
    target_language: str
    split: bool
    decoding: _common_pb2.Decoding
    def __init__(self, text: _Optional[_Iterable[str]] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., split: _Optional[bool] = ..., decoding: _Optional[_Union[_common_pb2.Decoding, _Mapping]] = ...) -> None: ...

class TranslateResponse(_message.Message):
    __slots__ = ("results", "model", "usage", "timing")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[TranslateResult]
    model: _common_pb2.Model
    usage: _common_pb2.Usage
    timing: _common_pb2.Timing
    def __init__(self, results: _Optional[_Iterable[_Union[TranslateResult, _Mapping]]] = ..., model: _Optional[_Union[_common_pb2.Model, _Mapping]] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_common_pb2.Timing, _Mapping]] = ...) -> None: ...

class TranslateResult(_message.Message):
    __slots__ = ("hypotheses", "sentences")
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    SENTENCES_FIELD_NUMBER: _ClassVar[int]
    hypotheses: _containers.RepeatedCompositeFieldContainer[_common_pb2.Hypothesis]
    sentences: _containers.RepeatedCompositeFieldContainer[_common_pb2.Hypothesis]
    def __init__(self, hypotheses: _Optional[_Iterable[_Union[_common_pb2.Hypothesis, _Mapping]]] = ..., sentences: _Optional[_Iterable[_Union[_common_pb2.Hypothesis, _Mapping]]] = ...) -> None: ...

class TranslateStreamRequest(_message.Message):
    __slots__ = ("text", "source_language", "target_language", "split", "decoding")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    DECODING_FIELD_NUMBER: _ClassVar[int]
    text: str
    source_language: str
    target_language: str
    split: bool
    decoding: _common_pb2.Decoding
    def __init__(self, text: _Optional[str] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., split: _Optional[bool] = ..., decoding: _Optional[_Union[_common_pb2.Decoding, _Mapping]] = ...) -> None: ...

class TranslateStreamResponse(_message.Message):
    __slots__ = ("delta", "done")
    DELTA_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    delta: str
    done: _common_pb2.Done
    def __init__(self, delta: _Optional[str] = ..., done: _Optional[_Union[_common_pb2.Done, _Mapping]] = ...) -> None: ...
