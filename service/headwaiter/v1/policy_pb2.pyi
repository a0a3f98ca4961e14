from headwaiter.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ActRequest(_message.Message):
    __slots__ = ("history", "greedy", "seed")
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    GREEDY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    history: _containers.RepeatedCompositeFieldContainer[History]
    greedy: bool
    seed: int
    def __init__(self, history: _Optional[_Iterable[_Union[History, _Mapping]]] = ..., greedy: _Optional[bool] = ..., seed: _Optional[int] = ...) -> None: ...

class History(_message.Message):
    __slots__ = ("steps", "target_return")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TARGET_RETURN_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    target_return: float
    def __init__(self, steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., target_return: _Optional[float] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("state", "action", "reward")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    state: _containers.RepeatedScalarFieldContainer[float]
    action: Action
    reward: float
    def __init__(self, state: _Optional[_Iterable[float]] = ..., action: _Optional[_Union[Action, _Mapping]] = ..., reward: _Optional[float] = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("discrete", "continuous", "scores")
    DISCRETE_FIELD_NUMBER: _ClassVar[int]
    CONTINUOUS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    discrete: int
    continuous: Vector
    scores: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, discrete: _Optional[int] = ..., continuous: _Optional[_Union[Vector, _Mapping]] = ..., scores: _Optional[_Iterable[float]] = ...) -> None: ...

class Vector(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class ActResponse(_message.Message):
    __slots__ = ("results", "model", "usage", "timing")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Action]
    model: _common_pb2.Model
    usage: _common_pb2.Usage
    timing: _common_pb2.Timing
    def __init__(self, results: _Optional[_Iterable[_Union[Action, _Mapping]]] = ..., model: _Optional[_Union[_common_pb2.Model, _Mapping]] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_common_pb2.Timing, _Mapping]] = ...) -> None: ...

class EpisodeRequest(_message.Message):
    __slots__ = ("start", "observation")
    START_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    start: Start
    observation: Observation
    def __init__(self, start: _Optional[_Union[Start, _Mapping]] = ..., observation: _Optional[_Union[Observation, _Mapping]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("target_return", "greedy", "seed", "history")
    TARGET_RETURN_FIELD_NUMBER: _ClassVar[int]
    GREEDY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    target_return: float
    greedy: bool
    seed: int
    history: _containers.RepeatedCompositeFieldContainer[Step]
    def __init__(self, target_return: _Optional[float] = ..., greedy: _Optional[bool] = ..., seed: _Optional[int] = ..., history: _Optional[_Iterable[_Union[Step, _Mapping]]] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("state", "reward", "taken")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    state: _containers.RepeatedScalarFieldContainer[float]
    reward: float
    taken: Action
    def __init__(self, state: _Optional[_Iterable[float]] = ..., reward: _Optional[float] = ..., taken: _Optional[_Union[Action, _Mapping]] = ...) -> None: ...

class EpisodeResponse(_message.Message):
    __slots__ = ("action", "model", "usage", "timing")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    action: Action
    model: _common_pb2.Model
    usage: _common_pb2.Usage
    timing: _common_pb2.Timing
    def __init__(self, action: _Optional[_Union[Action, _Mapping]] = ..., model: _Optional[_Union[_common_pb2.Model, _Mapping]] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_common_pb2.Timing, _Mapping]] = ...) -> None: ...
