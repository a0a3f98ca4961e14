"""Client-side record of an episode, from which it can be restarted on another replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwaiter.client import requests, responses
from headwaiter.client.requests import ActionLike, Numbers, Step, set_fields, step_from_message
from headwaiter.client.results import Action
from headwaiter.v1 import policy_pb2


class EpisodeReplay:
    """The completed steps of an episode and the observation that awaits its action."""

    def __init__(self, start: policy_pb2.Start, history: Sequence[Step] = ()) -> None:
        self._start = start
        self._steps = [requests.step(step, f"history[{index}].") for index, step in enumerate(history)]
        self._observation = policy_pb2.Observation()

    def record_observation(self, state: Numbers, reward: float | None, taken: ActionLike | None) -> None:
        values: dict[str, Any] = {"state": state, "reward": reward, "taken": requests.action(taken)}
        self._observation = set_fields(policy_pb2.Observation(), values)

    def start_request(self) -> policy_pb2.EpisodeRequest:
        start = policy_pb2.Start(history=self._steps)
        start.MergeFrom(self._start)
        return policy_pb2.EpisodeRequest(start=start)

    def observation(self) -> policy_pb2.EpisodeRequest:
        return policy_pb2.EpisodeRequest(observation=self._observation)

    def record_response(self, reply: policy_pb2.EpisodeResponse) -> Action:
        self._complete_last_step()
        action = policy_pb2.Action(discrete=reply.action.discrete)
        if reply.action.WhichOneof("choice") == "continuous":
            action = policy_pb2.Action(continuous=reply.action.continuous)
        self._steps.append(policy_pb2.Step(state=self._observation.state, action=action))
        return responses.action(reply.action, responses.common_fields(reply))

    def history(self) -> list[Step]:
        """The completed steps. The last one has no reward yet; it arrives with the next observation."""
        return [step_from_message(step) for step in self._steps]

    def _complete_last_step(self) -> None:
        """Add to the last step the reward and the action taken that the current observation reports."""
        if self._steps:
            last = self._steps[-1]
            if self._observation.HasField("reward"):
                last.reward = self._observation.reward
            if self._observation.HasField("taken"):
                last.action.CopyFrom(self._observation.taken)
