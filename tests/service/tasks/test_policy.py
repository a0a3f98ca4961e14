"""Policy tasks compared with the DecisionTransformer of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import DecisionTransformerConfig, DecisionTransformerModel

from headwaiter import open_model
from headwaiter.engine.buffers import DeviceMemory, Memory
from headwaiter.engine.episodes import EpisodeClosedError, Episodes, EpisodesFullError
from headwaiter.engine.session import Session
from headwaiter.engine.settings import ModelSettings
from headwaiter.package.manifest import open_package
from headwaiter.tasks.episode import HistoryStep
from headwaiter.tasks.errors import InputError
from headwaiter.tasks.policy import PolicyModel, PolicyTask
from headwaiter_export.pipeline import ExportRequest, export

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
    return export(ExportRequest(str(root / "walker"), out=root / "models")).folder


@pytest.fixture
def model(folder: Path) -> Iterator[PolicyModel]:
    with open_model(folder, max_sequences=3, threads=1) as opened:
        yield opened


class Trajectory:
    """A random episode whose actions can be compared with the original model."""

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

    def history(self) -> list[HistoryStep]:
        past = zip(self.states, self.actions, self.rewards, strict=False)
        return [*(HistoryStep(s, a.tolist(), r) for s, a, r in past), HistoryStep(self.states[-1])]

    def expected(self, model: DecisionTransformerModel, window: int) -> np.ndarray:
        """Return the action of the original model for the last `window` steps."""
        count = len(self.states)
        first = max(0, count - window)
        return_to_go = TARGET - np.concatenate([[0.0], np.cumsum(self.rewards)])
        actions = [*self.actions, np.zeros(ACTION)]
        with torch.no_grad():
            output = model(
                states=torch.tensor(np.array(self.states[first:]))[None],
                actions=torch.tensor(np.array(actions[first:], np.float32))[None],
                rewards=None,
                returns_to_go=torch.tensor(return_to_go[first:].astype(np.float32))[None, :, None],
                timesteps=torch.arange(first, count)[None],
            )
        return np.asarray(output.action_preds[0, -1])


def test_concurrent_episodes_and_histories_match_original(
    model: PolicyModel, original: DecisionTransformerModel
) -> None:
    trajectories = [Trajectory(seed) for seed in range(3)]
    episodes = [model.episode(TARGET) for _ in trajectories]
    rng = np.random.default_rng(9)
    for _ in range(CONTEXT):
        pending = []
        for trajectory, episode in zip(trajectories, episodes, strict=True):
            if rng.random() < 0.8 or not trajectory.states:
                pending.append((trajectory, episode, episode.submit(*trajectory.next())))
        for trajectory, episode, future in pending:
            action = np.array(episode.answer(future.result(20)).continuous)
            np.testing.assert_allclose(action, trajectory.expected(original, CONTEXT), atol=1e-4)
            stateless = model.act(trajectory.history(), TARGET)
            np.testing.assert_allclose(stateless.continuous, action, atol=1e-5)
            trajectory.actions.append(action)


def test_episode_longer_than_context_continues_with_last_half(
    model: PolicyModel, original: DecisionTransformerModel
) -> None:
    trajectory, window = Trajectory(1), 0
    rebuilt = 0
    with model.episode(TARGET) as episode:
        for _ in range(4 * CONTEXT):
            if window == CONTEXT:
                window, rebuilt = CONTEXT // 2, rebuilt + 1
            window += 1
            action = np.array(episode.step(*trajectory.next()).continuous)
            np.testing.assert_allclose(action, trajectory.expected(original, window), atol=1e-4)
            trajectory.actions.append(action)
    assert rebuilt == 6


def test_episodes_in_device_memory_match_host_memory(folder: Path) -> None:
    np.testing.assert_allclose(_run_episodes(folder, DeviceMemory("cpu")), _run_episodes(folder, None), atol=1e-5)


def _run_episodes(folder: Path, memory: Memory | None) -> list[list[float]]:
    """Run batched and single steps beyond the context; closing the first episode moves the others to other slots."""
    package = open_package(folder)
    actions = []
    settings = ModelSettings(max_sequences=3)
    engine = Episodes(Session(package, threads=1, memory=memory), slots=3)
    with PolicyModel(PolicyTask(package, engine, settings)) as model:
        trajectories = [Trajectory(seed) for seed in range(3)]
        episodes = [model.episode(TARGET) for _ in trajectories]
        for step in range(2 * CONTEXT):
            if step == 5:
                episodes.pop(0).close()
                trajectories.pop(0)
            if step % 3:
                pending = [
                    episode.submit(*trajectory.next())
                    for trajectory, episode in zip(trajectories, episodes, strict=True)
                ]
                step_actions = [e.answer(future.result(20)) for e, future in zip(episodes, pending, strict=True)]
            else:
                step_actions = [
                    episode.step(*trajectory.next()) for trajectory, episode in zip(trajectories, episodes, strict=True)
                ]
            actions += [action.continuous for action in step_actions]
    return actions


def test_episode_step_taken_replaces_last_action(model: PolicyModel, original: DecisionTransformerModel) -> None:
    trajectory = Trajectory(2)
    with model.episode(TARGET) as episode:
        episode.step(*trajectory.next())
        trajectory.actions.append(np.array([0.5, -0.5, 0.25], np.float32))
        action = episode.step(*trajectory.next(), taken=[0.5, -0.5, 0.25])
        np.testing.assert_allclose(action.continuous, trajectory.expected(original, CONTEXT), atol=1e-4)


def test_act_history_longer_than_context_uses_last_part(model: PolicyModel, original: DecisionTransformerModel) -> None:
    trajectory = Trajectory(4)
    for _ in range(CONTEXT + 5):
        trajectory.next()
        trajectory.actions.append(trajectory.rng.standard_normal(ACTION).astype(np.float32))
    trajectory.actions.pop()
    action = model.act(trajectory.history(), TARGET)
    np.testing.assert_allclose(action.continuous, trajectory.expected(original, CONTEXT), atol=1e-4)


def test_episode_slots_full_evicts_least_recently_used_idle_episode(model: PolicyModel) -> None:
    state = np.zeros(STATE)
    first, second, third = (model.episode(TARGET) for _ in range(3))
    for episode in (second, third, first):
        episode.step(state)
    with pytest.raises(EpisodesFullError, match="3 episodes"):
        model.episode(TARGET)
    model.engine.idle_seconds = 0.0
    model.episode(TARGET).step(state)
    with pytest.raises(EpisodeClosedError, match="newer episode"):
        second.step(state, 0.0)
    assert first.step(state, 0.0).continuous is not None
    third.close()
    model.episode(TARGET).step(state)


def test_idle_episode_times_out(model: PolicyModel) -> None:
    episode = model.episode(TARGET)
    model.engine.timeout = 0.0
    with pytest.raises(EpisodeClosedError, match="not used"):
        episode.step(np.zeros(STATE))


@pytest.mark.parametrize(
    ("state", "reward", "field", "limit"),
    [
        ([0.0] * 4, 0.0, "state", STATE),
        ([0.0, 0.0, float("nan"), 0.0, 0.0], 0.0, "state", None),
        ([0.0] * 5, None, "reward", None),
        ([0.0] * 5, float("inf"), "reward", None),
    ],
)
def test_episode_invalid_step_is_rejected_and_episode_continues(
    model: PolicyModel, state: list[float], reward: float | None, field: str, limit: int | None
) -> None:
    with model.episode(TARGET) as episode:
        episode.step(np.zeros(STATE))
        with pytest.raises(InputError, match=f"^{field} (is|has) ") as error:
            episode.step(state, reward)
        assert (error.value.field, error.value.limit) == (field, limit)
        assert episode.step(np.zeros(STATE), 0.0).continuous is not None


def test_act_invalid_history_is_rejected(model: PolicyModel) -> None:
    state = [0.0] * STATE
    cases = {
        "history is empty": [],
        "history[0].action is missing": [HistoryStep(state), HistoryStep(state)],
        "history[0].action has 2 numbers; the model requires 3": [
            HistoryStep(state, [0.0, 0.0], 0.0),
            HistoryStep(state),
        ],
        "history has 65 steps; the limit is 64": [
            *[HistoryStep(state, [0.0] * ACTION, 0.0)] * TIMESTEPS,
            HistoryStep(state),
        ],
    }
    for message, history in cases.items():
        with pytest.raises(InputError) as error:
            model.act(history, TARGET)
        assert str(error.value).startswith(message)


def test_opening_episode_cancelled_after_slot_was_taken_frees_it(model: PolicyModel) -> None:
    opening = model.task.open_episode(TARGET)
    wait([*opening._futures], timeout=20)
    assert model.engine.counters.slots_in_use == 1
    opening.cancel()  # as a client that disconnects before the result is awaited
    model.episode(TARGET).close()  # a later job of the same queue
    assert model.engine.counters.slots_in_use == 0


def test_episode_release_after_model_is_closed_does_not_raise(model: PolicyModel) -> None:
    episode = model.episode(TARGET)
    model.close()
    assert episode.release().done()


def test_return_beyond_float32_is_rejected_and_episode_continues(model: PolicyModel) -> None:
    state, most = [0.0] * STATE, 3.4e38
    with pytest.raises(InputError, match=r"target_return is 1e\+39"):
        model.episode(1e39)
    history = [HistoryStep(state, [0.0] * ACTION, -most), HistoryStep(state)]
    with pytest.raises(InputError, match=r"^history\[0\].reward makes the remaining return 6.8e\+38") as caught:
        model.act(history, most)
    assert caught.value.field == "history[0].reward"
    with model.episode(most) as episode:
        episode.step(state)
        with pytest.raises(InputError, match=r"^reward makes"):
            episode.step(state, -most)
        assert episode.step(state, most).continuous is not None
