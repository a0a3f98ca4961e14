"""Checks of families that decode text."""

from __future__ import annotations

import numpy as np

from headwaiter.package.manifest import Parity, padded_length
from headwaiter_export.arrays import Arrays, pad_rows
from headwaiter_export.families.text_decoder import TextDecoderFamily
from headwaiter_export.validation.decoding_loop import DecodingBatch
from headwaiter_export.validation.parity import GREEDY_STEPS, PARITY_GRID, SINGLE_ROW, TOKENS, Differences
from headwaiter_export.validation.runtime import Runtime

_COMPARED_TOKENS = 12  # number of tokens over which precisions are compared, at most max_length


class TextDecodingChecks:
    """Compares greedy decoding with the original model, cached with uncached, and batched with single rows."""

    def __init__(self, family: TextDecoderFamily) -> None:
        self.family = family

    def check_parity(self, runtime: Runtime) -> Parity:
        rng = np.random.default_rng(0)
        differences = Differences()
        for rows, length in PARITY_GRID:
            source, prompts = self.family.sample_source(rows, length, rng), self.family.prompts(rows, rng)
            tokens, logits = self._check_reference(differences, runtime, source, prompts)
            if not self.family.single_token_steps:
                self._check_prefill(differences, runtime, source, prompts, tokens, logits)
            self._check_batch_invariance(differences, runtime, source, prompts, logits)
            if rows > 1:
                self._check_mixed_positions(differences, runtime, source, prompts)
        return differences.parity()

    def sample_outputs(self, runtime: Runtime, rng: np.random.Generator) -> Arrays:
        rows, length = PARITY_GRID[-1]
        source, prompts = self.family.sample_source(rows, length, rng), self.family.prompts(rows, rng)
        tokens = rng.integers(0, self.family.vocabulary(), (rows, min(_COMPARED_TOKENS, self._num_steps(prompts))))

        def logits(which: slice) -> np.ndarray:
            source_rows = _select_rows(source, which)
            batch = DecodingBatch.begin(runtime, source_rows, len(prompts[which]), self._max_length(prompts))
            first_logits = batch.feed_tokens(prompts[which])["logits"]
            return np.concatenate([first_logits[:, None], batch.teacher_force(tokens[which])], 1)

        batched = logits(slice(None))
        single_rows = np.concatenate([logits(slice(index, index + 1)) for index in range(rows)])
        return {"logits": batched, f"logits{SINGLE_ROW}": single_rows, TOKENS: batched.argmax(-1)}

    def _max_length(self, prompts: list[list[int]]) -> int:
        return max(len(prompt) for prompt in prompts) + self._num_steps(prompts) + 1

    def _num_steps(self, prompts: list[list[int]]) -> int:
        """Return `GREEDY_STEPS`, or fewer if the model has fewer positions."""
        return min(GREEDY_STEPS, self.family.limits()["max_length"] - max(len(prompt) for prompt in prompts))

    def _check_reference(
        self, differences: Differences, runtime: Runtime, source: Arrays, prompts: list[list[int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        steps = self._num_steps(prompts)
        batch = DecodingBatch.begin(runtime, source, len(prompts), self._max_length(prompts))
        tokens, logits = batch.greedy(prompts, steps)
        sequences = pad_rows([*prompt, *generated] for prompt, generated in zip(prompts, tokens.tolist(), strict=True))
        reference = self.family.reference(source, sequences)
        for index, prompt in enumerate(prompts):
            expected = reference[index, len(prompt) - 1 : len(prompt) - 1 + steps]
            differences.add("logits", logits[index], expected)
            differences.add_tokens(tokens[index], expected.argmax(-1))
        return tokens, logits

    def _check_prefill(
        self,
        differences: Differences,
        runtime: Runtime,
        source: Arrays,
        prompts: list[list[int]],
        tokens: np.ndarray,
        logits: np.ndarray,
    ) -> None:
        """Compare stepwise decoding with feeding the same tokens at once to an empty cache."""
        sequences = [[*prompt, *generated[:-1]] for prompt, generated in zip(prompts, tokens.tolist(), strict=True)]
        batch = DecodingBatch.begin(runtime, source, len(prompts), self._max_length(prompts))
        differences.add("cached", batch.feed_tokens(sequences)["logits"], logits[:, -1])

    def _check_batch_invariance(
        self, differences: Differences, runtime: Runtime, source: Arrays, prompts: list[list[int]], logits: np.ndarray
    ) -> None:
        for index in range(len(prompts)):
            which = slice(index, index + 1)
            single = DecodingBatch.begin(runtime, _select_rows(source, which), 1, self._max_length(prompts))
            steps = min(10, logits.shape[1])
            differences.add("batched", single.greedy(prompts[which], steps)[1], logits[which, :steps])

    def _check_mixed_positions(
        self, differences: Differences, runtime: Runtime, source: Arrays, prompts: list[list[int]]
    ) -> None:
        """Check a batch with one row further in its sequence than the other."""
        batches, expected, next_tokens = [], [], []
        for index, steps in ((0, min(9, self._num_steps(prompts) - 1)), (1, 2)):
            which = slice(index, index + 1)
            batch, uninterrupted = (
                DecodingBatch.begin(runtime, _select_rows(source, which), 1, self._max_length(prompts))
                for _ in range(2)
            )
            tokens, _ = batch.greedy(prompts[which], steps)
            _, logits = uninterrupted.greedy(prompts[which], steps + 1)
            batches.append(batch)
            next_tokens.append([int(tokens[0, -1])])
            expected.append(logits[:, -1])
        output = batches[0].merge(batches[1]).feed_tokens(next_tokens)
        differences.add("positions", output["logits"], np.concatenate(expected))


def _select_rows(arrays: Arrays, which: slice) -> Arrays:
    """Return some rows of a source, without the padding to longer rows."""
    selected = {name: value[which] for name, value in arrays.items()}
    if "lengths" in selected:
        selected["tokens"] = selected["tokens"][:, : padded_length(int(selected["lengths"].max()))]
    return selected
