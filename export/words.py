"""Decoders of words: translation, captioning, generation."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from export.decoding import Decoder, best_words, word_ports
from export.graph import Port
from export.parity import GRID, STEPS, Differences, padded, ragged_lengths
from export.rows import Rows
from export.runtime import Arrays, Runtime
from service.package import Decoding, Parity, padded_length

_DEFAULT_NEW_TOKENS = 256
_FOLLOWED = 12  # tokens over which two precisions are compared, where there is room


class WordDecoder(Decoder):
    reads_text = True
    one_by_one = False  # a step takes one token and no more, as recurrent decoders do

    @abstractmethod
    def vocabulary(self) -> int: ...

    @abstractmethod
    def logits(self, last: Tensor) -> Tensor: ...

    @abstractmethod
    def original(self, source: dict[str, Tensor], tokens: Tensor) -> Tensor:
        """Logits [rows, length, vocabulary] of the original, run whole and without a cache."""

    @abstractmethod
    def sample_source(self, rows: int, length: int, rng: np.random.Generator) -> Arrays: ...

    def prompts(self, rows: int, rng: np.random.Generator) -> list[list[int]]:
        """What decoding begins with: of different lengths where a prompt is the user's."""
        return [rng.integers(0, self.vocabulary(), length).tolist() for length in ragged_lengths(rows, 6, rng)]

    def step_ports(self) -> dict[str, Port]:
        return {"tokens": Port(torch.int64, ("rows", 1 if self.one_by_one else "steps")), "k": Port(torch.int64, (1,))}

    def answer_ports(self) -> dict[str, Port]:
        return word_ports(self.vocabulary())

    def answer(self, last: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return best_words(self.logits(last), inputs["k"])

    def reference(self, source: Arrays, tokens: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            inputs = {name: torch.from_numpy(value) for name, value in source.items()}
            return np.asarray(self.original(inputs, torch.from_numpy(tokens)))

    def check(self, runtime: Runtime) -> Parity:
        rng = np.random.default_rng(0)
        found = Differences()
        for rows, length in GRID:
            source, prompts = self.sample_source(rows, length, rng), self.prompts(rows, rng)
            tokens, logits = self._check_original(found, runtime, source, prompts)
            if not self.one_by_one:
                self._check_prompt(found, runtime, source, prompts, tokens, logits)
            self._check_alone(found, runtime, source, prompts, logits)
            if rows > 1:
                self._check_positions(found, runtime, source, prompts)
        return found.parity()

    def trial(self, runtime: Runtime, rng: np.random.Generator) -> Arrays:
        rows, length = GRID[-1]
        source, prompts = self.sample_source(rows, length, rng), self.prompts(rows, rng)
        tokens = rng.integers(0, self.vocabulary(), (rows, min(_FOLLOWED, self._steps(prompts))))

        def logits(which: slice) -> np.ndarray:
            batch = _slice(source, which)
            started = Rows.begin(runtime, batch, len(prompts[which]), self._room(prompts))
            first = started.read(prompts[which])["logits"]
            return np.concatenate([first[:, None], started.follow(tokens[which])], 1)

        together = logits(slice(None))
        alone = np.concatenate([logits(slice(index, index + 1)) for index in range(rows)])
        return {"logits": together, "logits:alone": alone, "tokens": together.argmax(-1)}

    def decoding(self) -> Decoding:
        return decoding_defaults(self.model, start=self.start(), room=self.limits()["room"])

    def start(self) -> tuple[int, ...]:
        return ()

    def _room(self, prompts: list[list[int]]) -> int:
        return max(len(prompt) for prompt in prompts) + self._steps(prompts) + 1

    def _steps(self, prompts: list[list[int]]) -> int:
        """Forty, or as many as a model with fewer positions has."""
        return min(STEPS, self.limits()["room"] - max(len(prompt) for prompt in prompts))

    def _check_original(
        self, found: Differences, runtime: Runtime, source: Arrays, prompts: list[list[int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        steps = self._steps(prompts)
        tokens, logits = Rows.begin(runtime, source, len(prompts), self._room(prompts)).greedy(prompts, steps)
        whole = padded([*prompt, *chosen] for prompt, chosen in zip(prompts, tokens.tolist(), strict=True))
        reference = self.reference(source, whole)
        for index, prompt in enumerate(prompts):
            expected = reference[index, len(prompt) - 1 : len(prompt) - 1 + steps]
            found.add("logits", logits[index], expected)
            found.add_tokens(tokens[index], expected.argmax(-1))
        return tokens, logits

    def _check_prompt(
        self,
        found: Differences,
        runtime: Runtime,
        source: Arrays,
        prompts: list[list[int]],
        tokens: np.ndarray,
        logits: np.ndarray,
    ) -> None:
        """The same tokens read at once onto an empty cache."""
        whole = [[*prompt, *chosen[:-1]] for prompt, chosen in zip(prompts, tokens.tolist(), strict=True)]
        answer = Rows.begin(runtime, source, len(prompts), self._room(prompts)).read(whole)
        found.add("cached", answer["logits"], logits[:, -1])

    def _check_alone(
        self, found: Differences, runtime: Runtime, source: Arrays, prompts: list[list[int]], logits: np.ndarray
    ) -> None:
        for index in range(len(prompts)):
            which = slice(index, index + 1)
            alone = Rows.begin(runtime, _slice(source, which), 1, self._room(prompts))
            steps = min(10, logits.shape[1])
            found.add("batched", alone.greedy(prompts[which], steps)[1], logits[which, :steps])

    def _check_positions(self, found: Differences, runtime: Runtime, source: Arrays, prompts: list[list[int]]) -> None:
        """A row in the middle of its sentence beside one at its beginning."""
        started, expected, following = [], [], []
        for index, steps in ((0, min(9, self._steps(prompts) - 1)), (1, 2)):
            which = slice(index, index + 1)
            rows = Rows.begin(runtime, _slice(source, which), 1, self._room(prompts))
            tokens, _ = rows.greedy(prompts[which], steps)
            whole = Rows.begin(runtime, _slice(source, which), 1, self._room(prompts)).greedy(prompts[which], steps + 1)
            started.append(rows)
            following.append([int(tokens[0, -1])])
            expected.append(whole[1][:, -1])
        answer = started[0].beside(started[1]).read(following)
        found.add("positions", answer["logits"], np.concatenate(expected))


class Translator(WordDecoder):
    """Text to text: the source is tokens."""

    task = "translation"

    def source_ports(self) -> dict[str, Port]:
        return {"tokens": Port(torch.int64, ("rows", "source")), "lengths": Port(torch.int32, ("rows",))}

    def sample_source(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:
        longest = self.limits()["source"]
        lengths = ragged_lengths(rows, min(length, longest), rng)
        width = min(padded_length(int(lengths.max())), longest)
        tokens = rng.integers(0, self.source_vocabulary(), (rows, width))
        return {"tokens": tokens, "lengths": lengths}

    def source_vocabulary(self) -> int:
        return int(self.config.vocab_size)

    def start(self) -> tuple[int, ...]:
        return (int(first(self.model.generation_config.decoder_start_token_id, self.config.decoder_start_token_id)),)

    def prompts(self, rows: int, rng: np.random.Generator) -> list[list[int]]:  # noqa: ARG002
        return [list(self.start())] * rows

    def original(self, source: dict[str, Tensor], tokens: Tensor) -> Tensor:
        mask = (torch.arange(source["tokens"].shape[1])[None] < source["lengths"][:, None]).long()
        answer: Tensor = self.model(
            input_ids=source["tokens"], attention_mask=mask, decoder_input_ids=tokens, use_cache=False
        ).logits
        return answer


def decoding_defaults(model: Any, *, start: tuple[int, ...], room: int) -> Decoding:
    """A model's generation config in our words. What it does not state is greedy."""
    config = model.generation_config
    stop = first(config.eos_token_id, getattr(model.config, "eos_token_id", None), [])
    never = [word[0] for word in config.bad_words_ids or [] if len(word) == 1] + list(config.suppress_tokens or [])
    longest = first(config.max_new_tokens, config.max_length, _DEFAULT_NEW_TOKENS)
    return Decoding(
        start=start,
        stop=tuple(stop) if isinstance(stop, list) else (stop,),
        never=tuple(never),
        forced_first=config.forced_bos_token_id,
        forced_last=config.forced_eos_token_id,
        max_new_tokens=min(longest, room - max(1, len(start))),
        beams=first(config.num_beams, 1),
        length_penalty=first(config.length_penalty, 1.0),
        early_stopping=config.early_stopping is True,
        sample=bool(config.do_sample),
        temperature=first(config.temperature, 1.0),
        top_k=first(config.top_k, 50),
        top_p=first(config.top_p, 1.0),
        repetition_penalty=first(config.repetition_penalty, 1.0),
        no_repeat_ngram_size=first(config.no_repeat_ngram_size, 0),
    )


def first(*values: Any) -> Any:
    """The first value that is stated."""
    return next((value for value in values if value is not None), None)


def _slice(arrays: Arrays, which: slice) -> Arrays:
    """Some rows of a source, without the padding they had beside longer ones."""
    cut = {name: value[which] for name, value in arrays.items()}
    if "lengths" in cut:
        cut["tokens"] = cut["tokens"][:, : padded_length(int(cut["lengths"].max()))]
    return cut
