from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from export.attention import Scene
from export.cache import cache_of
from export.decoding import Decoder, Geometry
from export.family import family
from export.graph import Port
from export.parity import GRID, Differences, ragged_lengths
from export.rows import Rows
from export.runtime import Arrays, Runtime
from service.package import RETURN, STATE, Parity, Policy


@family("decision_transformer")
class DecisionTransformer(Decoder):
    """A step of the environment is three tokens: return to go, state, action. `kinds` says which of them each is; an
    action follows from the state token before it. Actions are continuous."""

    task = "policy"
    head = "DecisionTransformerModel"

    def geometry(self) -> Geometry:
        return Geometry(self.config.n_layer, self.config.n_head, self.config.hidden_size // self.config.n_head)

    def limits(self) -> dict[str, int]:
        return {"timesteps": self.config.max_ep_len, "room": 3 * self.config.max_ep_len}

    def policy(self) -> Policy:
        return Policy(
            state_size=self.config.state_dim,
            action_size=self.config.act_dim,
            actions="continuous",
            context=self.config.n_positions // 3,
        )

    def step_ports(self) -> dict[str, Port]:
        each = ("rows", "steps")
        return {
            "kinds": Port(torch.int64, each),
            "timesteps": Port(torch.int64, each),
            "returns": Port(torch.float32, each),
            "states": Port(torch.float32, (*each, self.config.state_dim)),
            "actions": Port(torch.float32, (*each, self.config.act_dim)),
        }

    def answer_ports(self) -> dict[str, Port]:
        return {"action": Port(torch.float32, ("rows", self.config.act_dim))}

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, scene: Scene) -> Tensor:
        kinds = inputs["kinds"][:, :, None]
        embedded = torch.where(
            kinds == RETURN,
            self.model.embed_return(inputs["returns"][:, :, None]),
            torch.where(
                kinds == STATE, self.model.embed_state(inputs["states"]), self.model.embed_action(inputs["actions"])
            ),
        )
        hidden: Tensor = self.model.encoder(
            inputs_embeds=self.model.embed_ln(embedded + self.model.embed_timestep(inputs["timesteps"])),
            position_ids=torch.zeros_like(positions),  # the model tells time by timesteps alone
            past_key_values=cache_of(scene),
            use_cache=True,
        ).last_hidden_state
        return hidden

    def answer(self, last: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:  # noqa: ARG002
        return {"action": self.model.predict_action(last).float()}

    def check(self, runtime: Runtime) -> Parity:
        rng = np.random.default_rng(0)
        found = Differences()
        for rows, length in GRID:
            episodes = self._episodes(rows, length, rng)
            expected = self._original(episodes)
            stepped = self._stepped(runtime, episodes)
            lengths = ragged_lengths(rows, expected.shape[1], rng)
            last = expected[np.arange(rows), lengths - 1]
            alone = [self._stepped(runtime, _slice(episodes, slice(index, index + 1))) for index in range(rows)]
            found.add("logits", stepped, expected, self._spread(expected))
            found.add("cached", self._at_once(runtime, episodes, lengths), last, self._spread(expected))
            found.add("batched", np.concatenate(alone), stepped, self._spread(expected))
            if rows > 1:
                beside = self._beside(runtime, episodes)
                found.add("positions", beside, expected[[0, 1], [2, 0]], self._spread(expected))
        return found.parity()

    def trial(self, runtime: Runtime, rng: np.random.Generator) -> Arrays:
        rows, length = GRID[-1]
        episodes = self._episodes(rows, length, rng)
        alone = [self._stepped(runtime, _slice(episodes, slice(index, index + 1))) for index in range(rows)]
        return {"action": self._stepped(runtime, episodes), "action:alone": np.concatenate(alone)}

    def _spread(self, actions: np.ndarray) -> float:
        return 2.0 if self.config.action_tanh else float(actions.max() - actions.min())

    def _episodes(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:
        length = min(length, self.config.max_ep_len)
        return {
            "returns": rng.standard_normal((rows, length, 1)).astype(np.float32),
            "states": rng.standard_normal((rows, length, self.config.state_dim)).astype(np.float32),
            "actions": rng.standard_normal((rows, length, self.config.act_dim)).astype(np.float32),
        }

    def _original(self, episodes: Arrays) -> np.ndarray:
        """Actions [rows, length, size] at every step of the episodes, run whole and without a cache."""
        rows, length = episodes["returns"].shape[:2]
        with torch.no_grad():
            answer = self.model(
                states=torch.from_numpy(episodes["states"]),
                actions=torch.from_numpy(episodes["actions"]),
                rewards=None,
                returns_to_go=torch.from_numpy(episodes["returns"]),
                timesteps=torch.arange(length)[None].expand(rows, -1),
            )
        return np.asarray(answer.action_preds)

    def _stepped(self, runtime: Runtime, episodes: Arrays) -> np.ndarray:
        rows, length = episodes["returns"].shape[:2]
        started = Rows.begin(runtime, {}, rows, 3 * length)
        return np.stack([self._step(started, episodes, time) for time in range(length)], 1)

    def _step(self, rows: Rows, episodes: Arrays, time: int) -> np.ndarray:
        """The three tokens of a step go in one after another: several at once fit only an empty cache."""
        tokens = _tokens(episodes)
        ones = np.ones(len(rows.positions), np.int32)
        for kind in range(3):
            answer = rows.advance(_slice_time(tokens, 3 * time + kind, 3 * time + kind + 1), ones)
            if kind == STATE:
                action = answer["action"]
        return action

    def _at_once(self, runtime: Runtime, episodes: Arrays, lengths: np.ndarray) -> np.ndarray:
        tokens = _slice_time(_tokens(episodes), 0, 3 * int(lengths.max()))
        until_state = (3 * lengths - 1).astype(np.int32)
        rows = Rows.begin(runtime, {}, len(lengths), tokens["kinds"].shape[1])
        return rows.advance(tokens, until_state)["action"]

    def _beside(self, runtime: Runtime, episodes: Arrays) -> np.ndarray:
        """The first episode in its third step beside the second in its first."""
        first, second = (_slice(_tokens(episodes), slice(index, index + 1)) for index in (0, 1))
        ones = np.ones(1, np.int32)
        early, late = (Rows.begin(runtime, {}, 1, 9) for _ in range(2))
        late.advance(_slice_time(first, 0, 7), 7 * ones)
        early.advance(_slice_time(second, 0, 1), ones)
        both = {name: np.concatenate([first[name][:, 7:8], second[name][:, 1:2]]) for name in first}
        return late.beside(early).advance(both, np.ones(2, np.int32))["action"]


def _tokens(episodes: Arrays) -> Arrays:
    """Episodes as the token sequences that the decoder reads."""
    rows, length = episodes["returns"].shape[:2]
    tripled = {name: np.repeat(value, 3, axis=1) for name, value in episodes.items()}
    return {
        "kinds": np.tile(np.arange(3), (rows, length)),
        "timesteps": np.tile(np.repeat(np.arange(length), 3), (rows, 1)),
        "returns": tripled["returns"][:, :, 0],
        "states": tripled["states"],
        "actions": tripled["actions"],
    }


def _slice(arrays: Arrays, which: slice) -> Arrays:
    return {name: value[which] for name, value in arrays.items()}


def _slice_time(tokens: Arrays, begin: int, end: int) -> Arrays:
    return {name: value[:, begin:end] for name, value in tokens.items()}
