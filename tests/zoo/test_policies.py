"""Policies: episodes through the engine compared with the models, and their training data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import DecisionTransformerConfig, DecisionTransformerModel

from headwaiter import open_model
from headwaiter.api.http.model import build_app
from headwaiter.api.model_server import ModelServer, ModelServerArgs
from headwaiter.package.manifest import Preprocessing
from headwaiter.tasks.episode import HistoryStep
from headwaiter.tasks.errors import InputError
from headwaiter.tasks.policy import PolicyModel
from headwaiter_export.errors import SourceError
from headwaiter_export.pipeline import ExportRequest, export
from headwaiter_export.zoo.checkpoint import Checkpoint
from headwaiter_export.zoo.data.cartpole import CartPole, cartpole
from headwaiter_export.zoo.data.episodes import Episode, EpisodeRecorder, greedy_actions, make_windows
from headwaiter_export.zoo.layers.attention import CausalAttention
from headwaiter_export.zoo.model import Actor, Trajectories
from headwaiter_export.zoo.registry import find_architecture
from headwaiter_export.zoo.training import train
from tests.counts_kit import Counts
from tests.http_kit import get, http_server
from tests.openapi_kit import check_bound, stated_bounds

NAMES = ("decision-transformer", "dtqn")
CONTEXT, TIMESTEPS, STATE, ACTIONS = 6, 40, 3, 4
TARGET = 30.0


def make_model(name: str) -> Actor:
    torch.manual_seed(4)
    model_class = find_architecture(name).model
    sizes = {"size": 32, "heads": 2, "context": CONTEXT, "timesteps": TIMESTEPS, "state": STATE, "actions": ACTIONS}
    model = model_class(model_class.Sizes.read(sizes, name))
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    assert isinstance(model, Actor)
    return model.eval()


class RandomEpisode:
    """Random states and rewards with the actions taken, and the expected scores of a model for them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.states: list[np.ndarray] = []
        self.actions: list[int] = []
        self.rewards: list[float] = []

    def next(self) -> tuple[np.ndarray, float | None]:
        if self.states:
            self.rewards.append(float(self.rng.uniform(0, 3)))
        self.states.append(self.rng.standard_normal(STATE).astype(np.float32))
        return self.states[-1], self.rewards[-1] if self.rewards else None

    def history(self) -> list[HistoryStep]:
        past = zip(self.states, self.actions, self.rewards, strict=False)
        return [*(HistoryStep(s, a, r) for s, a, r in past), HistoryStep(self.states[-1])]

    def expected(self, model: Actor, window: int = CONTEXT) -> np.ndarray:
        """Action probabilities of the model itself, without a cache, from the last `window` steps."""
        count = len(self.states)
        first = max(0, count - window)
        return_to_go = TARGET - np.concatenate([[0.0], np.cumsum(self.rewards)])
        actions = np.eye(ACTIONS, dtype=np.float32)[[*self.actions, 0]]
        trajectories = Trajectories(
            torch.arange(first, count)[None],
            torch.tensor(return_to_go[first:].astype(np.float32))[None],
            torch.tensor(np.array(self.states[first:]))[None],
            torch.tensor(actions[first:])[None],
        )
        with torch.no_grad():
            return np.asarray(model(trajectories)[0, -1].softmax(0))


@pytest.fixture(scope="module", params=NAMES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Actor, Path]:
    model, root = make_model(request.param), tmp_path_factory.mktemp("policies")
    Checkpoint(model, Preprocessing()).save(root / "checkpoint")
    return model, export(ExportRequest(str(root / "checkpoint"), name=request.param, out=root / "models")).folder


@pytest.fixture
def served(exported: tuple[Actor, Path]) -> Iterator[PolicyModel]:
    with open_model(exported[1], max_sequences=3, threads=1) as opened:
        yield opened


def test_episodes_concurrent_match_model_and_history(exported: tuple[Actor, Path], served: PolicyModel) -> None:
    references = [RandomEpisode(seed) for seed in range(3)]
    episodes = [served.episode(TARGET) for _ in references]
    for _ in range(CONTEXT):
        pending = [episode.submit(*reference.next()) for reference, episode in zip(references, episodes, strict=True)]
        for reference, episode, future in zip(references, episodes, pending, strict=True):
            action = episode.answer(future.result(20))
            np.testing.assert_allclose(action.scores, reference.expected(exported[0]), atol=1e-4)
            np.testing.assert_allclose(served.act(reference.history(), TARGET).scores, action.scores, atol=1e-5)
            assert action.discrete == int(np.argmax(action.scores))
            reference.actions.append(action.discrete)


def test_episode_past_context_continues_from_later_half(exported: tuple[Actor, Path], served: PolicyModel) -> None:
    reference, window = RandomEpisode(1), 0
    with served.episode(TARGET) as episode:
        for _ in range(3 * CONTEXT):
            window = (CONTEXT // 2 if window == CONTEXT else window) + 1
            action = episode.step(*reference.next())
            np.testing.assert_allclose(action.scores, reference.expected(exported[0], window), atol=1e-4)
            reference.actions.append(action.discrete)
    reference.next()
    np.testing.assert_allclose(
        served.act(reference.history(), TARGET).scores, reference.expected(exported[0]), atol=1e-4
    )


def test_act_only_decision_transformer_uses_returns_and_actions(served: PolicyModel) -> None:
    def scores(target: float, action: int, reward: float, state: float) -> tuple[float, ...]:
        history = [HistoryStep([state] * STATE, action, reward), HistoryStep([0.5] * STATE)]
        return served.act(history, target).scores

    baseline = scores(TARGET, 0, 1.0, 0.0)
    changed = (scores(-50 * TARGET, 0, 1.0, 0.0), scores(TARGET, 1, 1.0, 0.0), scores(TARGET, 0, 900.0, 0.0))
    uses_inputs = served.manifest.family == "decision-transformer"
    assert [not np.allclose(changed_scores, baseline, atol=1e-4) for changed_scores in changed] == [uses_inputs] * 3
    assert not np.allclose(scores(TARGET, 0, 1.0, 1.0), baseline, atol=1e-4)


def test_openapi_of_discrete_policy_states_enforced_bounds(exported: tuple[Actor, Path]) -> None:
    step = {"state": [0.5] * STATE, "action": {"discrete": 0}, "reward": 1.0}
    history = {"steps": [step, step], "target_return": TARGET}
    server = ModelServer(ModelServerArgs(name="policy", folder=exported[1], settings={"threads": 1}), Counts())
    with http_server(asyncio.run(build_app(server.endpoint, ready=server.is_ready))) as address:
        spec = get(f"{address}/openapi.json").json()
        bounds = stated_bounds(spec, spec["components"]["schemas"]["ActRequest"])
        actions = {(bound.keyword, bound.value) for bound in bounds if bound.path[-1] == "discrete"}
        assert actions == {("minimum", 0), ("maximum", ACTIONS - 1)}
        bodies = [{"history": history}, {"history": [history]}]
        unchecked = [
            bound for bound in bounds if not any(check_bound(f"{address}/act", body, bound) for body in bodies)
        ]
    server.close()
    assert unchecked == []


class RandomEnvironment:
    """An environment that ignores actions and never ends."""

    def __init__(self) -> None:
        self._episode = RandomEpisode(2)

    def reset(self, *, seed: int) -> tuple[np.ndarray, dict[str, Any]]:  # noqa: ARG002
        return self._episode.next()[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        state, reward = self._episode.next()
        assert reward is not None
        return state, reward, False, False, {}


def test_greedy_actions_past_context_match_served_policy(exported: tuple[Actor, Path], served: PolicyModel) -> None:
    recorder = EpisodeRecorder(RandomEnvironment()).ensure_started(np.random.default_rng(0))
    with served.episode(TARGET) as episode:
        for _ in range(3 * CONTEXT):
            action = episode.step(recorder.states[-1], recorder.rewards[-1] if recorder.rewards else None).discrete
            assert greedy_actions(exported[0], [recorder], TARGET) == [action]
            recorder.step(action)


@pytest.mark.parametrize(
    ("history", "field", "limit"),
    [
        ([], "history", None),
        ([HistoryStep([0.0] * 4)], "history[0].state", 3),
        ([HistoryStep([0.0, np.nan, 0.0])], "history[0].state", None),
        ([HistoryStep([0.0] * 3, 4, 1.0), HistoryStep([0.0] * 3)], "history[0].action", 3),
        ([HistoryStep([0.0] * 3, [1.0, 0.0], 1.0), HistoryStep([0.0] * 3)], "history[0].action", 3),
        ([HistoryStep([0.0] * 3, 1), HistoryStep([0.0] * 3)], "history[0].reward", None),
        ([HistoryStep([0.0] * 3, 1, 1.0)] * 40 + [HistoryStep([0.0] * 3)], "history", 40),
    ],
)
def test_act_invalid_history_rejected(
    served: PolicyModel, history: list[HistoryStep], field: str, limit: float | None
) -> None:
    with pytest.raises(InputError) as caught:
        served.act(history, TARGET)
    assert (caught.value.field, caught.value.limit) == (field, limit)
    assert str(caught.value).startswith(field)


@pytest.mark.parametrize(
    ("sizes", "message"), [({"heads": 5}, r"size is 64; .* heads \(5\)"), ({"state": 0}, "state: ")]
)
@pytest.mark.parametrize("name", NAMES)
def test_sizes_invalid_rejected(name: str, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        find_architecture(name).model.Sizes.read(sizes, name)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("fp16", 0.02), ("int8", 0.2)])
@pytest.mark.parametrize("name", NAMES)
def test_export_reduced_precision_acts_like_fp32(name: str, precision: Any, tolerance: float, tmp_path: Path) -> None:
    model, episode = make_model(name), RandomEpisode(7)
    Checkpoint(model, Preprocessing()).save(tmp_path / "checkpoint")
    request = ExportRequest(str(tmp_path / "checkpoint"), name=name, out=tmp_path / "models", precision=precision)
    with open_model(export(request).folder, threads=1) as served:
        for _ in range(CONTEXT):
            episode.next()
            action = served.act(episode.history(), TARGET)
            np.testing.assert_allclose(action.scores, episode.expected(model), atol=tolerance)
            episode.actions.append(action.discrete)


@pytest.mark.parametrize("name", NAMES)
def test_actor_later_steps_have_no_effect(name: str) -> None:
    model = make_model(name)
    before = Trajectories(
        torch.arange(6)[None], torch.randn(1, 6), torch.randn(1, 6, STATE), torch.randn(1, 6, ACTIONS)
    )
    after = Trajectories(before.timesteps, *(part.clone() for part in before[1:]))
    for part in after[1:]:
        part[:, 4:] += 1.0
    after.actions[:, 3] += 1.0  # the action of a step is an input of later steps only
    with torch.no_grad():
        first, second = model(before), model(after)
    torch.testing.assert_close(first[:, :4], second[:, :4])
    assert not torch.allclose(first[:, 4:], second[:, 4:], atol=1e-3)


def test_dtqn_units_divide_states() -> None:
    """A policy receives states in the units of the environment."""
    unscaled = make_model("dtqn")
    units = (2.0, 0.5, 10.0)
    scaled = type(unscaled)(unscaled.Sizes.read({**unscaled.sizes.model_dump(), "units": units}, "dtqn"))
    scaled.load_state_dict(unscaled.state_dict())
    trajectories = Trajectories(
        torch.arange(6)[None], torch.zeros(1, 6), torch.randn(1, 6, STATE), torch.zeros(1, 6, ACTIONS)
    )
    with torch.no_grad():
        torch.testing.assert_close(
            scaled(trajectories), unscaled(trajectories._replace(states=trajectories.states / torch.tensor(units)))
        )
    with pytest.raises(SourceError, match="units has 2 values; it must have 3"):
        unscaled.Sizes.read({"state": 3, "units": [1.0, 2.0]}, "dtqn")


def test_causal_attention_masked_keys_have_no_effect() -> None:
    attention, states = CausalAttention(16, 2, layer=0), torch.randn(2, 9, 16)
    masked_keys = torch.tensor([True, False, True] * 3)[None].expand(2, -1)
    with torch.no_grad():
        torch.testing.assert_close(attention(states, masked_keys)[:, 1::3], attention(states[:, 1::3]))


def test_decision_transformer_matches_transformers() -> None:
    model = make_model("decision-transformer")
    trajectories = Trajectories(
        torch.arange(6)[None], torch.randn(1, 6), torch.randn(1, 6, STATE), torch.randn(1, 6, ACTIONS)
    )
    with torch.no_grad():
        expected = _convert_to_transformers(model)(
            states=trajectories.states,
            actions=trajectories.actions,
            rewards=None,
            returns_to_go=trajectories.returns[:, :, None] / model.sizes.unit,
            timesteps=trajectories.timesteps,
        ).action_preds
        torch.testing.assert_close(model(trajectories), expected, atol=1e-5, rtol=1e-4)


def _convert_to_transformers(model: Actor) -> DecisionTransformerModel:
    sizes, tensors = model.sizes, model.state_dict()
    config = DecisionTransformerConfig(
        state_dim=STATE,
        act_dim=ACTIONS,
        hidden_size=sizes.size,
        max_ep_len=TIMESTEPS,
        n_layer=sizes.layers,
        n_head=sizes.heads,
        n_inner=sizes.hidden,
        activation_function="gelu",
        action_tanh=False,
    )
    reference = DecisionTransformerModel(config).eval()
    names = {
        "embed_return": "returns",
        "embed_state": "states",
        "embed_action": "actions",
        "embed_timestep": "times",
        "embed_ln": "first_norm",
        "encoder.ln_f": "norm",
        "predict_action.0": "head",
    }
    for layer in range(sizes.layers):
        reference_block, block = f"encoder.h.{layer}", f"blocks.{layer}"
        names |= {f"{reference_block}.ln_1": f"{block}.causal_norm", f"{reference_block}.ln_2": f"{block}.feed_norm"}
        names |= {f"{reference_block}.attn.c_proj": f"{block}.causal.out"}
        names |= {
            f"{reference_block}.mlp.c_fc": f"{block}.feed_forward.0",
            f"{reference_block}.mlp.c_proj": f"{block}.feed_forward.2",
        }

    def weight(name: str) -> Tensor | None:
        module, _, parameter = name.rpartition(".")
        if module.endswith("c_attn"):
            layer = module.split(".")[2]
            projections = [
                tensors[f"blocks.{layer}.causal.{projection}.{parameter}"] for projection in ("query", "key", "value")
            ]
            return torch.cat(projections).t()
        if module not in names:
            return None
        value = tensors[f"{names[module]}.{parameter}"]
        return value.t() if ".c_" in name else value  # transposed weights of transformers' Conv1D

    state = {name: tensor for name in reference.state_dict() if (tensor := weight(name)) is not None}
    missing = set(reference.state_dict()) - set(state)
    assert all(name.startswith(("predict_state", "predict_return", "encoder.wpe", "encoder.wte")) for name in missing)
    reference.load_state_dict(state, strict=False)
    nn.init.zeros_(reference.encoder.wpe.weight)
    return reference


def test_cartpole_training_episodes_have_mixed_returns_below_target() -> None:
    training_episodes = CartPole().training_episodes
    returns = np.array([episode.rewards.sum() for episode in training_episodes])
    assert (returns < 15).sum() > 50
    assert (returns > 200).sum() > 50
    assert find_architecture("decision-transformer").recipe.target >= 2 * returns.mean()
    again = CartPole(episodes=5).training_episodes
    assert [episode.actions.tolist() for episode in again] == [
        episode.actions.tolist() for episode in training_episodes[:5]
    ]


def test_make_windows_returns_to_go_and_padding() -> None:
    states, actions = np.arange(10, dtype=np.float32).reshape(5, 2), np.array([1, 0, 0, 1, 1])
    ended = Episode(states, actions, np.array([1, 2, 3, 4, 5], np.float32), ended=True)
    truncated = Episode(states, actions, np.ones(5, np.float32), ended=False)
    batch = make_windows([ended, ended, truncated], [0, 3, 2], length=3, num_actions=2)
    assert batch.trajectories.returns.tolist() == [[15, 14, 12], [9, 5, 0], [3, 2, 1]]
    assert batch.trajectories.timesteps.tolist() == [[0, 1, 2], [3, 4, 4], [2, 3, 4]]
    assert batch.trajectories.states[1].tolist() == [[6, 7], [8, 9], [0, 0]]
    assert batch.trajectories.actions[1].tolist() == [[0, 1], [0, 1], [0, 0]]
    assert batch.actions.tolist() == [[1, 0, 0], [1, 1, -1], [0, 1, 1]]
    assert batch.ends.tolist() == [[False] * 3, [False, True, False], [False] * 3]


def test_episode_recorder_states_match_environment() -> None:
    """Replaying the actions from the same seed gives the same states."""
    recorder, rng = EpisodeRecorder(cartpole()), np.random.default_rng(3)
    seed = int(np.random.default_rng(3).integers(2**31))
    while (episode := recorder.ensure_started(rng).step(1)) is None:
        pass
    environment = cartpole()
    states = [environment.reset(seed=seed)[0], *(environment.step(1)[0] for _ in range(episode.length))]
    np.testing.assert_array_equal(episode.states, np.array(states[:-1], np.float32))
    assert episode.ended
    assert episode.rewards.sum() == episode.length


@pytest.mark.slowest
def test_trained_policy_returns_increase_with_target(tmp_path: Path) -> None:
    architecture = find_architecture("decision-transformer")
    data, _ = train(architecture, tmp_path / "checkpoint")
    assert isinstance(data, CartPole)
    package = export(ExportRequest(str(tmp_path / "checkpoint"), name=architecture.name, out=tmp_path / "models"))
    with open_model(package.folder, threads=1) as served:
        returns = [data.mean_return(served, target, max_examples=5) for target in (10, 60, 200)]
    assert returns[0] < 20 < returns[1] < 120 < returns[2]
