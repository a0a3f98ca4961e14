"""An episode as its owner knows it: enough to begin it again on another replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwaiter.v1 import policy_pb2
from service.client import answers, requests
from service.client.requests import Numbers, Step, Taken, fill, given_step
from service.client.results import Action


class Script:
    """Steps that were answered, and the observation that was not yet."""

    def __init__(self, start: policy_pb2.Start, history: Sequence[Step] = ()) -> None:
        self._start = start
        self._steps = [requests.step(each, f"history[{index}].") for index, each in enumerate(history)]
        self._observation = policy_pb2.Observation()

    def observe(self, state: Numbers, reward: float | None, taken: Taken | None) -> None:
        values: dict[str, Any] = {"state": state, "reward": reward, "taken": requests.taken(taken)}
        self._observation = fill(policy_pb2.Observation(), values)

    def opening(self) -> policy_pb2.EpisodeRequest:
        start = policy_pb2.Start(history=self._steps)
        start.MergeFrom(self._start)
        return policy_pb2.EpisodeRequest(start=start)

    def observation(self) -> policy_pb2.EpisodeRequest:
        return policy_pb2.EpisodeRequest(observation=self._observation)

    def answered(self, reply: policy_pb2.EpisodeResponse) -> Action:
        self._settle_last()
        done = policy_pb2.Action(discrete=reply.action.discrete)
        if reply.action.WhichOneof("choice") == "continuous":
            done = policy_pb2.Action(continuous=reply.action.continuous)
        self._steps.append(policy_pb2.Step(state=self._observation.state, action=done))
        return answers.action(reply.action, answers.account(reply))

    def history(self) -> list[Step]:
        """Of the last step only what is known; its reward comes with the next observation."""
        return [given_step(each) for each in self._steps]

    def _settle_last(self) -> None:
        """What the observation told about the step before it."""
        if self._steps:
            last = self._steps[-1]
            if self._observation.HasField("reward"):
                last.reward = self._observation.reward
            if self._observation.HasField("taken"):
                last.action.CopyFrom(self._observation.taken)
