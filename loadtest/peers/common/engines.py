"""Inference engines shared by the peers, on the same weights and ONNX files, so that only the serving differs.

This module runs in the peers' environments: each class imports only what it needs and nothing from Headwaiter.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_MAX_TOKENS = 200
_LABELS = 5
MAX_BATCH_SIZE = {"translation": 64, "images": 16}
"""Maximum batch size of peers with dynamic batching; for sentences as many as Headwaiter has slots."""


class CTranslate2:
    """CTranslate2 with int8 weights and greedy search."""

    def __init__(self, folder: Path, threads: int, workers: int = 1) -> None:
        import ctranslate2
        from sentencepiece import SentencePieceProcessor

        self._pieces = SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
        self._translator = ctranslate2.Translator(
            str(folder), compute_type="int8", inter_threads=workers, intra_threads=threads // workers
        )

    def __call__(self, texts: Sequence[str]) -> list[str]:
        tokens = [self._pieces.encode(text, out_type=str) for text in texts]
        results = self._translator.translate_batch(tokens, beam_size=1, max_decoding_length=_MAX_TOKENS)
        return ["".join(result.hypotheses[0]).replace("▁", " ").strip() for result in results]


class Transformers:
    """transformers in fp32 with greedy search and SDPA attention."""

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        from sentencepiece import SentencePieceProcessor
        from transformers import AutoModelForSeq2SeqLM

        torch.set_num_threads(threads)
        folder = folder / "torch"  # next to CTranslate2's files
        vocabulary = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
        self._pieces = SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
        self._tokens, self._eos = vocabulary["tokens"], vocabulary["tokens"].index(vocabulary["eos"])
        self._ends = [self._eos] if vocabulary["appends_eos"] else []
        self._index = {token: index for index, token in enumerate(self._tokens)}
        self._unknown = self._index[vocabulary["unk"]]
        self._model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()

    def __call__(self, texts: Sequence[str]) -> list[str]:
        import torch

        rows = [self._encode(text) for text in texts]
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        with torch.inference_mode():
            generated = self._model.generate(tokens, attention_mask=mask, num_beams=1, max_new_tokens=_MAX_TOKENS)
        return [self._decode(row) for row in generated[:, 1:].tolist()]

    def _encode(self, text: str) -> list[int]:
        pieces = self._pieces.encode(text, out_type=str)
        return [self._index.get(piece, self._unknown) for piece in pieces] + self._ends

    def _decode(self, row: Sequence[int]) -> str:
        tokens = row[: row.index(self._eos)] if self._eos in row else row
        return "".join(self._tokens[token] for token in tokens).replace("▁", " ").strip()


class Onnx:
    """ONNX Runtime on the file that Headwaiter serves."""

    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime

        self._config = json.loads((folder / "pixels.json").read_text(encoding="utf-8"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(self._config["file"], options, providers=["CPUExecutionProvider"])

    def __call__(self, images: Sequence[str]) -> list[str]:
        import numpy as np

        pixels = np.stack([preprocess_image(image, self._config) for image in images])
        return top_labels(self._session.run(["scores"], {"pixels": pixels})[0])


class Torch:
    """torch on the checkpoint that the ONNX file was exported from."""

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        from transformers import AutoModelForImageClassification

        torch.set_num_threads(threads)
        self._config = json.loads((folder / "pixels.json").read_text(encoding="utf-8"))
        self._model = AutoModelForImageClassification.from_pretrained(self._config["checkpoint"]).eval()

    def __call__(self, images: Sequence[str]) -> list[str]:
        import numpy as np
        import torch

        pixels = torch.from_numpy(np.stack([preprocess_image(image, self._config) for image in images]))
        with torch.inference_mode():
            return top_labels(self._model(pixel_values=pixels).logits.numpy())


def preprocess_image(image: str, config: dict[str, Any]) -> Any:
    """Decode a base64 image and return the normalised pixels as (channels, height, width)."""
    import numpy as np
    from PIL import Image

    decoded = Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")
    resized = decoded.resize((config["width"], config["height"]), Image.Resampling[config["resample"].upper()])
    mean, deviation = (np.array(config[name], np.float32) for name in ("mean", "std"))
    values = (np.asarray(resized, np.float32) * np.float32(config["rescale"]) - mean) / deviation
    return values.transpose(2, 0, 1)


def top_labels(scores: Any) -> list[str]:
    """Return the indices of the top labels per row, best first."""
    return [" ".join(map(str, row)) for row in (-scores).argsort(1)[:, :_LABELS].tolist()]


Engine = Callable[[Sequence[str]], Sequence[str]]
"""Maps a batch of texts or base64 images to a batch of texts or labels."""
_FIELDS = {"translation": "text", "images": "image"}
FAST_ENGINES: dict[str, Callable[[Path, int], Engine]] = {"translation": CTranslate2, "images": Onnx}
TORCH_ENGINES: dict[str, Callable[[Path, int], Engine]] = {"translation": Transformers, "images": Torch}


def options() -> argparse.Namespace:
    """Parse the command line that every peer is started with."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=list(_FIELDS), required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    arguments.field = _FIELDS[arguments.task]
    return arguments
