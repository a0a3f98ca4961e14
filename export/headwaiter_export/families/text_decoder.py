"""Families that decode text: translation, captioning and generation."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwaiter.package.manifest import DecodingDefaults, padded_length
from headwaiter_export.arrays import Arrays, ragged_lengths
from headwaiter_export.families.decoder import DecoderFamily, token_output_specs, token_outputs
from headwaiter_export.tracing.graph import TensorSpec

_DEFAULT_MAX_NEW_TOKENS = 256


class TextDecoderFamily(DecoderFamily):
    reads_text = True
    single_token_steps = False  # recurrent decoders take exactly one token per step

    @abstractmethod
    def vocabulary(self) -> int: ...

    @abstractmethod
    def logits(self, last: Tensor) -> Tensor:
        """Return logits [rows, vocabulary] for hidden states [rows, size]."""

    @abstractmethod
    def run_original(self, source: dict[str, Tensor], tokens: Tensor) -> Tensor:
        """Run the original model on whole sequences without a cache; returns logits [rows, length, vocabulary]."""

    @abstractmethod
    def sample_source(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:
        """Return random encoder inputs; empty if there is no encoder."""

    def prompts(self, rows: int, rng: np.random.Generator) -> list[list[int]]:
        """Return random prompts of different lengths, as a client may send them."""
        return [rng.integers(0, self.vocabulary(), length).tolist() for length in ragged_lengths(rows, 6, rng)]

    def step_inputs(self) -> dict[str, TensorSpec]:
        return {
            "tokens": TensorSpec(torch.int64, ("rows", 1 if self.single_token_steps else "steps")),
            "k": TensorSpec(torch.int64, (1,)),
        }

    def step_outputs(self) -> dict[str, TensorSpec]:
        return token_output_specs(self.vocabulary())

    def output(self, last: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return token_outputs(self.logits(last), inputs["k"])

    def reference(self, source: Arrays, tokens: np.ndarray) -> np.ndarray:
        """Run the original model in torch; returns logits [rows, length, vocabulary]."""
        with torch.no_grad():
            inputs = {name: torch.from_numpy(value) for name, value in source.items()}
            return np.asarray(self.run_original(inputs, torch.from_numpy(tokens)))

    def decoding(self) -> DecodingDefaults:
        return decoding_defaults(
            self.model, decoder_start_token_ids=self.decoder_start_token_ids(), max_length=self.limits()["max_length"]
        )

    def decoder_start_token_ids(self) -> tuple[int, ...]:
        return ()


class Translator(TextDecoderFamily):
    """Text to text: the encoder reads tokens."""

    task = "translation"

    def encoder_inputs(self) -> dict[str, TensorSpec]:
        return {"tokens": TensorSpec(torch.int64, ("rows", "source")), "lengths": TensorSpec(torch.int32, ("rows",))}

    def sample_source(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:
        longest = self.limits()["source"]
        lengths = ragged_lengths(rows, min(length, longest), rng)
        width = min(padded_length(int(lengths.max())), longest)
        tokens = rng.integers(0, self.source_vocabulary(), (rows, width))
        return {"tokens": tokens, "lengths": lengths}

    def source_vocabulary(self) -> int:
        return int(self.config.vocab_size)

    def decoder_start_token_ids(self) -> tuple[int, ...]:
        generation = self.model.generation_config
        return (int(first_not_none(generation.decoder_start_token_id, self.config.decoder_start_token_id)),)

    def prompts(self, rows: int, rng: np.random.Generator) -> list[list[int]]:  # noqa: ARG002
        return [list(self.decoder_start_token_ids())] * rows

    def run_original(self, source: dict[str, Tensor], tokens: Tensor) -> Tensor:
        mask = (torch.arange(source["tokens"].shape[1])[None] < source["lengths"][:, None]).long()
        output: Tensor = self.model(
            input_ids=source["tokens"], attention_mask=mask, decoder_input_ids=tokens, use_cache=False
        ).logits
        return output


def decoding_defaults(model: Any, *, decoder_start_token_ids: tuple[int, ...], max_length: int) -> DecodingDefaults:
    """Convert the generation config of a model to decoding defaults; values that it does not set mean greedy search."""
    config = model.generation_config
    eos_token_ids = first_not_none(config.eos_token_id, getattr(model.config, "eos_token_id", None), [])
    suppress_tokens = [token_ids[0] for token_ids in config.bad_words_ids or [] if len(token_ids) == 1]
    suppress_tokens += list(config.suppress_tokens or [])
    max_new_tokens = first_not_none(config.max_new_tokens, config.max_length, _DEFAULT_MAX_NEW_TOKENS)
    return DecodingDefaults(
        decoder_start_token_ids=decoder_start_token_ids,
        eos_token_ids=tuple(eos_token_ids) if isinstance(eos_token_ids, list) else (eos_token_ids,),
        suppress_tokens=tuple(suppress_tokens),
        forced_bos_token_id=config.forced_bos_token_id,
        forced_eos_token_id=config.forced_eos_token_id,
        max_new_tokens=min(max_new_tokens, max_length - max(1, len(decoder_start_token_ids))),
        num_beams=first_not_none(config.num_beams, 1),
        length_penalty=first_not_none(config.length_penalty, 1.0),
        early_stopping=config.early_stopping is True,
        do_sample=bool(config.do_sample),
        temperature=first_not_none(config.temperature, 1.0),
        top_k=first_not_none(config.top_k, 50),
        top_p=first_not_none(config.top_p, 1.0),
        repetition_penalty=first_not_none(config.repetition_penalty, 1.0),
        no_repeat_ngram_size=first_not_none(config.no_repeat_ngram_size, 0),
    )


def first_not_none(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
