"""Episodes and whole histories beside the DecisionTransformer of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import DecisionTransformerConfig, DecisionTransformerModel

from export.pipeline import Order, export
from service import open_model
from service.engine.episodes import EpisodeGoneError, EpisodesFullError
from service.engine.memory import DeviceMemory, Memory
from service.engine.session import Session
from service.model import Options, PolicyModel
from service.package import open_package
from service.tasks.errors import InputError
from service.tasks.policy import Moment

CONTEXT, TIMESTEPS, STATE, ACTION = 8, 64, 5, 3
TARGET = 4.0


@pytest.fixture(scope="module")
def original() -> DecisionTransformerModel:
    torch.manual_seed(3)
    config = DecisionTransformerConfig(
        state_dim=STATE,
        act_dim=ACTION,
        hidden_size=32,
        max_ep_len=TIMESTEPS,
        n_layer=2,
        n_head=2,
        n_positions=3 * CONTEXT,
        vocab_size=1,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = DecisionTransformerModel(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


@pytest.fixture(scope="module")
def folder(original: DecisionTransformerModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("policy")
    original.save_pretrained(root / "walker")
    return export(Order(str(root / "walker"), out=root / "models")).folder


@pytest.fixture
def model(folder: Path) -> Iterator[PolicyModel]:
    with open_model(folder, rows=3, threads=1) as opened:
        yield opened


class Walk:
    """An episode as it was lived, to ask the original about."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.states: list[np.ndarray] = []
        self.actions: list[np.ndarray] = []
        self.rewards: list[float] = []

    def next(self) -> tuple[np.ndarray, float | None]:
        reward = float(self.rng.standard_normal()) if self.states else None
        if reward is not None:
            self.rewards.append(reward)
        self.states.append(self.rng.standard_normal(STATE).astype(np.float32))
        return self.states[-1], reward

    def history(self) -> list[Moment]:
        lived = zip(self.states, self.actions, self.rewards, strict=False)
        return [*(Moment(s, a.tolist(), r) for s, a, r in lived), Moment(self.states[-1])]

    def expected(self, model: DecisionTransformerModel, window: int) -> np.ndarray:
        """The original's answer from the last steps alone."""
        count = len(self.states)
        first = max(0, count - window)
        to_go = TARGET - np.concatenate([[0.0], np.cumsum(self.rewards)])
        actions = [*self.actions, np.zeros(ACTION)]
        with torch.no_grad():
            answer = model(
                states=torch.tensor(np.array(self.states[first:]))[None],
                actions=torch.tensor(np.array(actions[first:], np.float32))[None],
                rewards=None,
                returns_to_go=torch.tensor(to_go[first:].astype(np.float32))[None, :, None],
                timesteps=torch.arange(first, count)[None],
            )
        return np.asarray(answer.action_preds[0, -1])


def test_episodes_side_by_side_and_histories_are_the_originals(
    model: PolicyModel, original: DecisionTransformerModel
) -> None:
    walks = [Walk(seed) for seed in range(3)]
    episodes = [model.episode(TARGET) for _ in walks]
    order = np.random.default_rng(9)
    for _ in range(CONTEXT):
        pending = []
        for walk, episode in zip(walks, episodes, strict=True):
            if order.random() < 0.8 or not walk.states:
                pending.append((walk, episode, episode.submit(*walk.next())))
        for walk, episode, future in pending:
            action = np.array(episode.answer(future.result(20)).continuous)
            np.testing.assert_allclose(action, walk.expected(original, CONTEXT), atol=1e-4)
            asked = model.act(walk.history(), TARGET)
            np.testing.assert_allclose(asked.continuous, action, atol=1e-5)
            walk.actions.append(action)


def test_past_the_context_the_window_is_rebuilt_from_its_later_half(
    model: PolicyModel, original: DecisionTransformerModel
) -> None:
    walk, window = Walk(1), 0
    rebuilt = 0
    with model.episode(TARGET) as episode:
        for _ in range(4 * CONTEXT):
            if window == CONTEXT:
                window, rebuilt = CONTEXT // 2, rebuilt + 1
            window += 1
            action = np.array(episode.step(*walk.next()).continuous)
            np.testing.assert_allclose(action, walk.expected(original, window), atol=1e-4)
            walk.actions.append(action)
    assert rebuilt == 6


def test_episodes_in_the_memory_of_a_device_go_on_alike(folder: Path) -> None:
    """Side by side, alone, past the context, and moved when the first of them ends."""
    np.testing.assert_allclose(_lived(folder, DeviceMemory("cpu")), _lived(folder, None), atol=1e-5)


def _lived(folder: Path, memory: Memory | None) -> list[list[float]]:
    package = open_package(folder)
    actions = []
    with PolicyModel(package, Session(package, threads=1, memory=memory), Options(rows=3)) as model:
        walks = [Walk(seed) for seed in range(3)]
        episodes = [model.episode(TARGET) for _ in walks]
        for moment in range(2 * CONTEXT):
            if moment == 5:
                episodes.pop(0).close()
                walks.pop(0)
            if moment % 3:
                pending = [episode.submit(*walk.next()) for walk, episode in zip(walks, episodes, strict=True)]
                found = [e.answer(future.result(20)) for e, future in zip(episodes, pending, strict=True)]
            else:
                found = [episode.step(*walk.next()) for walk, episode in zip(walks, episodes, strict=True)]
            actions += [action.continuous for action in found]
    return actions


def test_what_was_taken_instead_counts(model: PolicyModel, original: DecisionTransformerModel) -> None:
    walk = Walk(2)
    with model.episode(TARGET) as episode:
        episode.step(*walk.next())
        walk.actions.append(np.array([0.5, -0.5, 0.25], np.float32))
        action = episode.step(*walk.next(), taken=[0.5, -0.5, 0.25])
        np.testing.assert_allclose(action.continuous, walk.expected(original, CONTEXT), atol=1e-4)


def test_a_history_longer_than_the_context_is_its_last_part(
    model: PolicyModel, original: DecisionTransformerModel
) -> None:
    walk = Walk(4)
    for _ in range(CONTEXT + 5):
        walk.next()
        walk.actions.append(walk.rng.standard_normal(ACTION).astype(np.float32))
    walk.actions.pop()
    got = model.act(walk.history(), TARGET)
    np.testing.assert_allclose(got.continuous, walk.expected(original, CONTEXT), atol=1e-4)


def test_rows_are_limited_and_the_least_recently_used_is_told(model: PolicyModel) -> None:
    state = np.zeros(STATE)
    first, second, third = (model.episode(TARGET) for _ in range(3))
    for episode in (second, third, first):
        episode.step(state)
    with pytest.raises(EpisodesFullError, match="3 episodes"):
        model.episode(TARGET)
    model.engine.idle_seconds = 0.0
    newcomer = model.episode(TARGET)
    newcomer.step(state)
    with pytest.raises(EpisodeGoneError, match="newer episode"):
        second.step(state, 0.0)
    assert first.step(state, 0.0).continuous is not None
    third.close()
    model.episode(TARGET).step(state)


def test_an_idle_episode_times_out(model: PolicyModel) -> None:
    episode = model.episode(TARGET)
    model.engine.timeout = 0.0
    with pytest.raises(EpisodeGoneError, match="not used"):
        episode.step(np.zeros(STATE))


@pytest.mark.parametrize(
    ("state", "reward", "message"),
    [
        ([0.0] * 4, 0.0, "state has 4 numbers; the model takes 5"),
        ([0.0, 0.0, float("nan"), 0.0, 0.0], 0.0, "state has a value that is not a number"),
        ([0.0] * 5, None, "reward is None; it has to be a number"),
        ([0.0] * 5, float("inf"), "reward is inf; it has to be a number"),
    ],
)
def test_bad_steps_are_named_and_the_episode_goes_on(
    model: PolicyModel, state: list[float], reward: float | None, message: str
) -> None:
    with model.episode(TARGET) as episode:
        episode.step(np.zeros(STATE))
        with pytest.raises(InputError) as error:
            episode.step(state, reward)
        assert str(error.value) == message
        assert episode.step(np.zeros(STATE), 0.0).continuous is not None


def test_bad_histories(model: PolicyModel) -> None:
    state = [0.0] * STATE
    cases = {
        "history is empty": [],
        "history[0].action is missing": [Moment(state), Moment(state)],
        "history[0].action has 2 numbers": [Moment(state, [0.0, 0.0], 0.0), Moment(state)],
        "history has 65 steps": [Moment(state, [0.0] * ACTION, 0.0)] * TIMESTEPS + [Moment(state)],
    }
    for message, history in cases.items():
        with pytest.raises(InputError) as error:
            model.act(history, TARGET)
        assert str(error.value).startswith(message)
