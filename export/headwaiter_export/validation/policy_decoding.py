"""Checks of families that decode actions."""

from __future__ import annotations

import numpy as np
import torch

from headwaiter.package.manifest import STATE, Parity
from headwaiter_export.arrays import Arrays, ragged_lengths
from headwaiter_export.families.policy_decoder import PolicyDecoderFamily
from headwaiter_export.validation.decoding_loop import DecodingBatch
from headwaiter_export.validation.parity import PARITY_GRID, SINGLE_ROW, TOP_ANSWERS, Differences
from headwaiter_export.validation.runtime import Runtime


class PolicyDecodingChecks:
    """Compares stepwise decoding with the original model on whole episodes, with prefill, and with single rows."""

    def __init__(self, family: PolicyDecoderFamily) -> None:
        self.family = family

    def check_parity(self, runtime: Runtime) -> Parity:
        rng = np.random.default_rng(0)
        differences = Differences()
        for rows, length in PARITY_GRID:
            episodes = self._sample_episodes(rows, length, rng)
            with torch.no_grad():
                expected = np.asarray(
                    self.family.run_original({name: torch.from_numpy(value) for name, value in episodes.items()})
                )
            stepped = self._run_stepwise(runtime, episodes)
            lengths = ragged_lengths(rows, expected.shape[1], rng)
            last, value_range = expected[np.arange(rows), lengths - 1], self.family.value_range(expected)
            differences.add("logits", stepped, expected, value_range)
            differences.add("cached", self._run_prefill(runtime, episodes, lengths), last, value_range)
            differences.add("batched", self._run_single_rows(runtime, episodes), stepped, value_range)
            if rows > 1:
                differences.add(
                    "positions", self._run_mixed_positions(runtime, episodes), expected[[0, 1], [2, 0]], value_range
                )
        return differences.parity()

    def sample_outputs(self, runtime: Runtime, rng: np.random.Generator) -> Arrays:
        episodes, name = self._sample_episodes(*PARITY_GRID[-1], rng), self.family.output_name()
        outputs = {
            name: self._run_stepwise(runtime, episodes),
            f"{name}{SINGLE_ROW}": self._run_single_rows(runtime, episodes),
        }
        if self.family.policy().actions == "discrete":
            outputs[TOP_ANSWERS] = outputs[name].argmax(-1)
        return outputs

    def _sample_episodes(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:
        """Return random episodes that fit into the context of the policy."""
        policy = self.family.policy()
        length = min(length, policy.context, self.family.timesteps())
        if policy.actions == "discrete":
            actions = np.eye(policy.action_size)[rng.integers(policy.action_size, size=(rows, length))]
        else:
            actions = rng.standard_normal((rows, length, policy.action_size))
        return {
            "timesteps": np.tile(np.arange(length), (rows, 1)),
            "returns": rng.standard_normal((rows, length, 1)).astype(np.float32),
            "states": rng.standard_normal((rows, length, policy.state_size)).astype(np.float32),
            "actions": actions.astype(np.float32),
        }

    def _run_stepwise(self, runtime: Runtime, episodes: Arrays) -> np.ndarray:
        """Feed the tokens one by one, because only an empty cache accepts several at once."""
        tokens, (rows, length) = _token_sequences(episodes), episodes["timesteps"].shape
        batch, ones = DecodingBatch.begin(runtime, {}, rows, 3 * length), np.ones(rows, np.int32)
        outputs = [
            batch.advance(_slice_tokens(tokens, index, index + 1), ones)[self.family.output_name()]
            for index in range(3 * length)
        ]
        return np.stack(outputs[STATE::3], 1)

    def _run_single_rows(self, runtime: Runtime, episodes: Arrays) -> np.ndarray:
        rows = range(episodes["timesteps"].shape[0])
        return np.concatenate([self._run_stepwise(runtime, _select_row(episodes, index)) for index in rows])

    def _run_prefill(self, runtime: Runtime, episodes: Arrays, lengths: np.ndarray) -> np.ndarray:
        tokens = _slice_tokens(_token_sequences(episodes), 0, 3 * int(lengths.max()))
        lengths_to_state = (3 * lengths - 1).astype(np.int32)
        batch = DecodingBatch.begin(runtime, {}, len(lengths), tokens["kinds"].shape[1])
        return batch.advance(tokens, lengths_to_state)[self.family.output_name()]

    def _run_mixed_positions(self, runtime: Runtime, episodes: Arrays) -> np.ndarray:
        """Run one batch with the first episode in its third step and the second in its first."""
        first, second = (_select_row(_token_sequences(episodes), index) for index in (0, 1))
        ones = np.ones(1, np.int32)
        early, late = (DecodingBatch.begin(runtime, {}, 1, 9) for _ in range(2))
        late.advance(_slice_tokens(first, 0, 7), 7 * ones)
        early.advance(_slice_tokens(second, 0, 1), ones)
        both = {name: np.concatenate([first[name][:, 7:8], second[name][:, 1:2]]) for name in first}
        return late.merge(early).advance(both, np.ones(2, np.int32))[self.family.output_name()]


def _token_sequences(episodes: Arrays) -> Arrays:
    """Return episodes as decoder inputs with three tokens per environment step."""
    repeated = {name: np.repeat(value, 3, axis=1) for name, value in episodes.items()}
    return {
        "kinds": np.tile(np.arange(3), episodes["timesteps"].shape),
        **repeated,
        "returns": repeated["returns"][:, :, 0],
    }


def _select_row(arrays: Arrays, index: int) -> Arrays:
    return {name: value[index : index + 1] for name, value in arrays.items()}


def _slice_tokens(tokens: Arrays, begin: int, end: int) -> Arrays:
    return {name: value[:, begin:end] for name, value in tokens.items()}
