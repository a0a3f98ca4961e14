"""Reference outputs of the original models, computed with transformers only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import GenerationConfig

from tests.graphs_kit import Arrays


def load_original(class_name: str, folder: Path) -> Any:
    model = getattr(transformers, class_name).from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    return model.eval()


def run_forward(model: Any, feeds: Arrays) -> Arrays:
    inputs = {name: torch.from_numpy(value) for name, value in feeds.items()}
    with torch.no_grad():
        if "pixels" in inputs:
            outputs = model(pixel_values=inputs["pixels"])
        else:
            mask = torch.arange(inputs["tokens"].shape[1])[None] < inputs["lengths"][:, None]
            extra = {"token_type_ids": inputs["segments"]} if "segments" in inputs else {}
            outputs = model(input_ids=inputs["tokens"], attention_mask=mask.long(), **extra)
    boxes = {"boxes": outputs.pred_boxes.numpy()} if hasattr(outputs, "pred_boxes") else {}
    return {"scores": outputs.logits.numpy(), **boxes}


def generate_greedy(model: Any, source: Arrays, prompt: Sequence[int], steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode one row greedily; returns tokens [steps] and their logits [steps, vocabulary]."""
    model.generation_config = GenerationConfig(
        max_new_tokens=steps,
        do_sample=False,
        pad_token_id=0,
        decoder_start_token_id=prompt[0],
        output_logits=True,
        return_dict_in_generate=True,
    )
    prompt_ids = torch.tensor([list(prompt)])
    if "pixels" in source:
        inputs = {"pixel_values": torch.from_numpy(source["pixels"]), "decoder_input_ids": prompt_ids}
    elif source:
        tokens = torch.from_numpy(source["tokens"][:, : int(source["lengths"][0])])
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "decoder_input_ids": prompt_ids}
    else:
        inputs = {"input_ids": prompt_ids, "attention_mask": torch.ones_like(prompt_ids)}
    with torch.no_grad():
        outputs = model.generate(**inputs)
    tokens, logits = outputs.sequences[0, len(prompt) :].numpy(), torch.cat(outputs.logits).numpy()
    assert tokens.shape == (steps,)
    return tokens, logits


def relative_difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference as a fraction of the range of `expected`."""
    assert actual.shape == expected.shape
    return float(np.abs(actual.astype(np.float64) - expected).max() / (expected.max() - expected.min()))
