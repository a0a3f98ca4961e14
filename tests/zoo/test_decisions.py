"""Systems that act: their episodes through the engine beside the models themselves, and what they learn from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import DecisionTransformerConfig, DecisionTransformerModel

from export.errors import SourceError
from export.pipeline import Order, export
from export.zoo.checkpoint import Checkpoint
from export.zoo.data.cartpole import CartPole, cartpole
from export.zoo.data.episodes import Played, Player, chosen_now, windows
from export.zoo.kit.attention import CausalAttention
from export.zoo.model import Actor, Moments
from export.zoo.registry import find
from export.zoo.training import train
from service import open_model
from service.model import PolicyModel
from service.package import Preprocessing
from service.tasks.errors import InputError
from service.tasks.policy import Moment

NAMES = ("decision-transformer", "dtqn")
CONTEXT, TIMESTEPS, STATE, ACTIONS = 6, 40, 3, 4
TARGET = 30.0


def made(name: str) -> Actor:
    torch.manual_seed(4)
    kind = find(name).model
    sizes = {"size": 32, "heads": 2, "context": CONTEXT, "timesteps": TIMESTEPS, "state": STATE, "actions": ACTIONS}
    model = kind(kind.Sizes.read(sizes, name))
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    assert isinstance(model, Actor)
    return model.eval()


class Lived:
    """An episode as it went, to ask the model itself about."""

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

    def history(self) -> list[Moment]:
        lived = zip(self.states, self.actions, self.rewards, strict=False)
        return [*(Moment(s, a, r) for s, a, r in lived), Moment(self.states[-1])]

    def expected(self, model: Actor, window: int = CONTEXT) -> np.ndarray:
        """Chances of the actions by the model itself, without a cache, from the last moments alone."""
        count = len(self.states)
        first = max(0, count - window)
        to_go = TARGET - np.concatenate([[0.0], np.cumsum(self.rewards)])
        actions = np.eye(ACTIONS, dtype=np.float32)[[*self.actions, 0]]
        moments = Moments(
            torch.arange(first, count)[None],
            torch.tensor(to_go[first:].astype(np.float32))[None],
            torch.tensor(np.array(self.states[first:]))[None],
            torch.tensor(actions[first:])[None],
        )
        with torch.no_grad():
            return np.asarray(model(moments)[0, -1].softmax(0))


@pytest.fixture(scope="module", params=NAMES)
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Actor, Path]:
    model, root = made(request.param), tmp_path_factory.mktemp("decisions")
    Checkpoint(model, Preprocessing()).save(root / "checkpoint")
    return model, export(Order(str(root / "checkpoint"), name=request.param, out=root / "models")).folder


@pytest.fixture
def served(packed: tuple[Actor, Path]) -> Iterator[PolicyModel]:
    with open_model(packed[1], rows=3, threads=1) as opened:
        yield opened


def test_episodes_side_by_side_and_histories_are_the_models_own(
    packed: tuple[Actor, Path], served: PolicyModel
) -> None:
    lives = [Lived(seed) for seed in range(3)]
    episodes = [served.episode(TARGET) for _ in lives]
    for _ in range(CONTEXT):
        pending = [episode.submit(*life.next()) for life, episode in zip(lives, episodes, strict=True)]
        for life, episode, future in zip(lives, episodes, pending, strict=True):
            action = episode.answer(future.result(20))
            np.testing.assert_allclose(action.scores, life.expected(packed[0]), atol=1e-4)
            np.testing.assert_allclose(served.act(life.history(), TARGET).scores, action.scores, atol=1e-5)
            assert action.discrete == int(np.argmax(action.scores))
            life.actions.append(action.discrete)


def test_past_the_context_the_window_is_rebuilt_from_its_later_half(
    packed: tuple[Actor, Path], served: PolicyModel
) -> None:
    life, window = Lived(1), 0
    with served.episode(TARGET) as episode:
        for _ in range(3 * CONTEXT):
            window = (CONTEXT // 2 if window == CONTEXT else window) + 1
            action = episode.step(*life.next())
            np.testing.assert_allclose(action.scores, life.expected(packed[0], window), atol=1e-4)
            life.actions.append(action.discrete)
    life.next()
    np.testing.assert_allclose(served.act(life.history(), TARGET).scores, life.expected(packed[0]), atol=1e-4)


def test_only_the_decision_transformer_minds_what_is_asked_and_done(served: PolicyModel) -> None:
    def scores(target: float, action: int, reward: float, state: float) -> tuple[float, ...]:
        seen = [Moment([state] * STATE, action, reward), Moment([0.5] * STATE)]
        return served.act(seen, target).scores

    plain = scores(TARGET, 0, 1.0, 0.0)
    changed = (scores(-50 * TARGET, 0, 1.0, 0.0), scores(TARGET, 1, 1.0, 0.0), scores(TARGET, 0, 900.0, 0.0))
    minds = served.manifest.family == "decision-transformer"
    assert [not np.allclose(each, plain, atol=1e-4) for each in changed] == [minds] * 3
    assert not np.allclose(scores(TARGET, 0, 1.0, 1.0), plain, atol=1e-4)


class Wandering:
    """An environment that minds no action and never ends."""

    def __init__(self) -> None:
        self._life = Lived(2)

    def reset(self, *, seed: int) -> tuple[np.ndarray, dict[str, Any]]:  # noqa: ARG002
        return self._life.next()[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        state, reward = self._life.next()
        assert reward is not None
        return state, reward, False, False, {}


def test_while_learning_it_recalls_as_much_as_when_it_is_served(
    packed: tuple[Actor, Path], served: PolicyModel
) -> None:
    player = Player(Wandering()).begun(np.random.default_rng(0))
    with served.episode(TARGET) as episode:
        for _ in range(3 * CONTEXT):
            action = episode.step(player.states[-1], player.rewards[-1] if player.rewards else None).discrete
            assert chosen_now(packed[0], [player], TARGET) == [action]
            player.step(action)


@pytest.mark.parametrize(
    ("history", "sentence"),
    [
        ([], "history is empty; it has at least the present state"),
        ([Moment([0.0] * 4)], "history[0].state has 4 numbers; the model takes 3"),
        ([Moment([0.0, np.nan, 0.0])], "history[0].state has a value that is not a number"),
        ([Moment([0.0] * 3, 4, 1.0), Moment([0.0] * 3)], "history[0].action is 4; actions are 0 to 3"),
        ([Moment([0.0] * 3, [1.0, 0.0], 1.0), Moment([0.0] * 3)], "history[0].action is [1.0, 0.0]; actions are 0 to"),
        ([Moment([0.0] * 3, 1), Moment([0.0] * 3)], "history[0].reward is None; it has to be a number"),
        ([Moment([0.0] * 3, 1, 1.0)] * 40 + [Moment([0.0] * 3)], "history has 41 steps; the model knows 40"),
    ],
)
def test_bad_histories_are_refused_in_a_sentence(served: PolicyModel, history: list[Moment], sentence: str) -> None:
    with pytest.raises(InputError, match="^" + re.escape(sentence)):
        served.act(history, TARGET)


@pytest.mark.parametrize(
    ("sizes", "sentence"), [({"heads": 5}, "size is 64, which heads 5"), ({"state": 0}, "state: ")]
)
@pytest.mark.parametrize("name", NAMES)
def test_sizes_that_do_not_fit_are_refused(name: str, sizes: dict[str, int], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        find(name).model.Sizes.read(sizes, name)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp16", 0.02), ("int8", 0.2)])
@pytest.mark.parametrize("name", NAMES)
def test_other_precisions(name: str, precision: Any, tolerance: float, tmp_path: Path) -> None:
    """The pipeline itself refuses one that loses too much; what is exported acts nearly as fp32 does."""
    model, life = made(name), Lived(7)
    Checkpoint(model, Preprocessing()).save(tmp_path / "checkpoint")
    order = Order(str(tmp_path / "checkpoint"), name=name, out=tmp_path / "models", precision=precision)
    with open_model(export(order).folder, threads=1) as served:
        for _ in range(CONTEXT):
            life.next()
            action = served.act(life.history(), TARGET)
            np.testing.assert_allclose(action.scores, life.expected(model), atol=tolerance)
            life.actions.append(action.discrete)


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_later_changes_nothing_before(name: str) -> None:
    model = made(name)
    before = Moments(torch.arange(6)[None], torch.randn(1, 6), torch.randn(1, 6, STATE), torch.randn(1, 6, ACTIONS))
    after = Moments(before.timesteps, *(each.clone() for each in before[1:]))
    for each in after[1:]:
        each[:, 4:] += 1.0
    after.actions[:, 3] += 1.0  # what was done in a moment is not known when it is chosen
    with torch.no_grad():
        first, second = model(before), model(after)
    torch.testing.assert_close(first[:, :4], second[:, :4])
    assert not torch.allclose(first[:, 4:], second[:, 4:], atol=1e-3)


def test_whoever_plays_gives_states_as_the_environment_does() -> None:
    """A model that learned in units of its own divides by them itself."""
    plain = made("dtqn")
    units = (2.0, 0.5, 10.0)
    divides = type(plain)(plain.Sizes.read({**plain.sizes.model_dump(), "units": units}, "dtqn"))
    divides.load_state_dict(plain.state_dict())
    raw = Moments(torch.arange(6)[None], torch.zeros(1, 6), torch.randn(1, 6, STATE), torch.zeros(1, 6, ACTIONS))
    with torch.no_grad():
        torch.testing.assert_close(divides(raw), plain(raw._replace(states=raw.states / torch.tensor(units))))
    with pytest.raises(SourceError, match="units are 2 and a state has 3 numbers"):
        plain.Sizes.read({"state": 3, "units": [1.0, 2.0]}, "dtqn")


def test_unread_tokens_are_as_if_they_were_not_there() -> None:
    attention, states = CausalAttention(16, 2, layer=0), torch.randn(2, 9, 16)
    unread = torch.tensor([True, False, True] * 3)[None].expand(2, -1)
    with torch.no_grad():
        torch.testing.assert_close(attention(states, unread)[:, 1::3], attention(states[:, 1::3]))


def test_the_decision_transformer_is_that_of_transformers() -> None:
    model = made("decision-transformer")
    moments = Moments(torch.arange(6)[None], torch.randn(1, 6), torch.randn(1, 6, STATE), torch.randn(1, 6, ACTIONS))
    with torch.no_grad():
        expected = _of_transformers(model)(
            states=moments.states,
            actions=moments.actions,
            rewards=None,
            returns_to_go=moments.returns[:, :, None] / model.sizes.unit,
            timesteps=moments.timesteps,
        ).action_preds
        torch.testing.assert_close(model(moments), expected, atol=1e-5, rtol=1e-4)


def _of_transformers(model: Actor) -> DecisionTransformerModel:
    sizes, ours = model.sizes, model.state_dict()
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
    theirs = DecisionTransformerModel(config).eval()
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
        there, here = f"encoder.h.{layer}", f"blocks.{layer}"
        names |= {f"{there}.ln_1": f"{here}.causal_norm", f"{there}.ln_2": f"{here}.feed_norm"}
        names |= {f"{there}.attn.c_proj": f"{here}.causal.out"}
        names |= {f"{there}.mlp.c_fc": f"{here}.feed_forward.0", f"{there}.mlp.c_proj": f"{here}.feed_forward.2"}

    def weight(name: str) -> Tensor | None:
        part, _, kind = name.rpartition(".")
        if part.endswith("c_attn"):
            layer = part.split(".")[2]
            three = [ours[f"blocks.{layer}.causal.{each}.{kind}"] for each in ("query", "key", "value")]
            return torch.cat(three).t()
        if part not in names:
            return None
        value = ours[f"{names[part]}.{kind}"]
        return value.t() if ".c_" in name else value  # their products are transposed

    state = {name: found for name in theirs.state_dict() if (found := weight(name)) is not None}
    missing = set(theirs.state_dict()) - set(state)
    assert all(name.startswith(("predict_state", "predict_return", "encoder.wpe", "encoder.wte")) for name in missing)
    theirs.load_state_dict(state, strict=False)
    nn.init.zeros_(theirs.encoder.wpe.weight)
    return theirs


def test_behaviour_is_mixed_and_the_bar_is_far_above_it() -> None:
    behaviour = CartPole().behaviour
    gained = np.array([episode.rewards.sum() for episode in behaviour])
    assert (gained < 15).sum() > 50
    assert (gained > 200).sum() > 50
    assert find("decision-transformer").recipe.bar >= 2 * gained.mean()
    again = CartPole(episodes=5).behaviour
    assert [episode.actions.tolist() for episode in again] == [episode.actions.tolist() for episode in behaviour[:5]]


def test_windows_tell_what_was_still_to_come() -> None:
    states, actions = np.arange(10, dtype=np.float32).reshape(5, 2), np.array([1, 0, 0, 1, 1])
    fallen = Played(states, actions, np.array([1, 2, 3, 4, 5], np.float32), ended=True)
    stopped = Played(states, actions, np.ones(5, np.float32), ended=False)
    found = windows([fallen, fallen, stopped], [0, 3, 2], length=3, choices=2)
    assert found.moments.returns.tolist() == [[15, 14, 12], [9, 5, 0], [3, 2, 1]]
    assert found.moments.timesteps.tolist() == [[0, 1, 2], [3, 4, 4], [2, 3, 4]]
    assert found.moments.states[1].tolist() == [[6, 7], [8, 9], [0, 0]]
    assert found.moments.actions[1].tolist() == [[0, 1], [0, 1], [0, 0]]
    assert found.actions.tolist() == [[1, 0, 0], [1, 1, -1], [0, 1, 1]]
    assert found.ends.tolist() == [[False] * 3, [False, True, False], [False] * 3]


def test_a_player_sees_what_it_acts_on() -> None:
    """Played again from the same seed, the same actions bring the same states."""
    player, rng = Player(cartpole()), np.random.default_rng(3)
    seed = int(np.random.default_rng(3).integers(2**31))
    while (played := player.begun(rng).step(1)) is None:
        pass
    environment = cartpole()
    seen = [environment.reset(seed=seed)[0], *(environment.step(1)[0] for _ in range(played.length))]
    np.testing.assert_array_equal(played.states, np.array(seen[:-1], np.float32))
    assert played.ended
    assert played.rewards.sum() == played.length


@pytest.mark.slow
def test_returns_grow_with_what_is_asked(tmp_path: Path) -> None:
    system = find("decision-transformer")
    data, _ = train(system, tmp_path / "checkpoint")
    assert isinstance(data, CartPole)
    package = export(Order(str(tmp_path / "checkpoint"), name=system.name, out=tmp_path / "models"))
    with open_model(package.folder, threads=1) as served:
        reached = [data.reached(served, target, most=5) for target in (10, 60, 200)]
    assert reached[0] < 20 < reached[1] < 120 < reached[2]
