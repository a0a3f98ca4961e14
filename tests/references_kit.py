"""What the originals answer, run by transformers alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import GenerationConfig

from tests.graphs_kit import Arrays


def original(kind: str, folder: Path) -> Any:
    model = getattr(transformers, kind).from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    return model.eval()


def one_pass(model: Any, feeds: Arrays) -> Arrays:
    inputs = {name: torch.from_numpy(value) for name, value in feeds.items()}
    with torch.no_grad():
        if "pixels" in inputs:
            answer = model(pixel_values=inputs["pixels"])
        else:
            mask = torch.arange(inputs["tokens"].shape[1])[None] < inputs["lengths"][:, None]
            extra = {"token_type_ids": inputs["segments"]} if "segments" in inputs else {}
            answer = model(input_ids=inputs["tokens"], attention_mask=mask.long(), **extra)
    boxes = {"boxes": answer.pred_boxes.numpy()} if hasattr(answer, "pred_boxes") else {}
    return {"scores": answer.logits.numpy(), **boxes}


def generated(model: Any, source: Arrays, prompt: Sequence[int], steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [steps] and the logits [steps, vocabulary] they were chosen from, of one row without padding."""
    model.generation_config = GenerationConfig(
        max_new_tokens=steps,
        do_sample=False,
        pad_token_id=0,
        decoder_start_token_id=prompt[0],
        output_logits=True,
        return_dict_in_generate=True,
    )
    given = torch.tensor([list(prompt)])
    if "pixels" in source:
        inputs = {"pixel_values": torch.from_numpy(source["pixels"]), "decoder_input_ids": given}
    elif source:
        tokens = torch.from_numpy(source["tokens"][:, : int(source["lengths"][0])])
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "decoder_input_ids": given}
    else:
        inputs = {"input_ids": given, "attention_mask": torch.ones_like(given)}
    with torch.no_grad():
        answer = model.generate(**inputs)
    tokens, logits = answer.sequences[0, len(prompt) :].numpy(), torch.cat(answer.logits).numpy()
    assert tokens.shape == (steps,)
    return tokens, logits


def difference(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest, as a share of the expected values' spread."""
    assert got.shape == expected.shape
    return float(np.abs(got.astype(np.float64) - expected).max() / (expected.max() - expected.min()))
