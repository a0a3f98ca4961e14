"""The models behind all peers: the same weights, the same ONNX file, so that what differs is the serving.

Runs in the peers' own environments: each class imports what it needs and nothing of Headwaiter.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_MOST_TOKENS = 200
_LABELS = 5
BATCH = {"translation": 64, "images": 16}
"""The most that peers with batches run together: of sentences as many as Headwaiter has rows."""


class CTranslate2:
    """int8, greedy."""

    def __init__(self, folder: Path, threads: int, workers: int = 1) -> None:
        import ctranslate2
        from sentencepiece import SentencePieceProcessor

        self._pieces = SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
        self._translator = ctranslate2.Translator(
            str(folder), compute_type="int8", inter_threads=workers, intra_threads=threads // workers
        )

    def __call__(self, texts: Sequence[str]) -> list[str]:
        tokens = [self._pieces.encode(text, out_type=str) for text in texts]
        found = self._translator.translate_batch(tokens, beam_size=1, max_decoding_length=_MOST_TOKENS)
        return ["".join(each.hypotheses[0]).replace("▁", " ").strip() for each in found]


class Transformers:
    """fp32, greedy, sdpa."""

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        from sentencepiece import SentencePieceProcessor
        from transformers import AutoModelForSeq2SeqLM

        torch.set_num_threads(threads)
        folder = folder / "torch"  # beside CTranslate2's
        about = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
        self._pieces = SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
        self._tokens, self._eos = about["tokens"], about["tokens"].index(about["eos"])
        self._ends = [self._eos] if about["appends_eos"] else []
        self._index = {token: index for index, token in enumerate(self._tokens)}
        self._unknown = self._index[about["unk"]]
        self._model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()

    def __call__(self, texts: Sequence[str]) -> list[str]:
        import torch

        rows = [self._encode(text) for text in texts]
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        with torch.inference_mode():
            found = self._model.generate(tokens, attention_mask=mask, num_beams=1, max_new_tokens=_MOST_TOKENS)
        return [self._decode(row) for row in found[:, 1:].tolist()]

    def _encode(self, text: str) -> list[int]:
        pieces = self._pieces.encode(text, out_type=str)
        return [self._index.get(piece, self._unknown) for piece in pieces] + self._ends

    def _decode(self, row: Sequence[int]) -> str:
        kept = row[: row.index(self._eos)] if self._eos in row else row
        return "".join(self._tokens[each] for each in kept).replace("▁", " ").strip()


class Onnx:
    """ONNX Runtime on the very file that Headwaiter serves."""

    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime

        self._about = json.loads((folder / "pixels.json").read_text(encoding="utf-8"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(self._about["file"], options, providers=["CPUExecutionProvider"])

    def __call__(self, images: Sequence[str]) -> list[str]:
        import numpy as np

        pixels = np.stack([pixels_of(image, self._about) for image in images])
        return likeliest(self._session.run(["scores"], {"pixels": pixels})[0])


class Torch:
    """The checkpoint that the ONNX file was made from."""

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        from transformers import AutoModelForImageClassification

        torch.set_num_threads(threads)
        self._about = json.loads((folder / "pixels.json").read_text(encoding="utf-8"))
        self._model = AutoModelForImageClassification.from_pretrained(self._about["checkpoint"]).eval()

    def __call__(self, images: Sequence[str]) -> list[str]:
        import numpy as np
        import torch

        pixels = torch.from_numpy(np.stack([pixels_of(image, self._about) for image in images]))
        with torch.inference_mode():
            return likeliest(self._model(pixel_values=pixels).logits.numpy())


def pixels_of(image: str, about: dict[str, Any]) -> Any:
    """From base64 to what the model takes."""
    import numpy as np
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")
    picture = picture.resize((about["width"], about["height"]), Image.Resampling[about["resample"].upper()])
    mean, deviation = (np.array(about[name], np.float32) for name in ("mean", "std"))
    values = (np.asarray(picture, np.float32) * np.float32(about["rescale"]) - mean) / deviation
    return values.transpose(2, 0, 1)


def likeliest(scores: Any) -> list[str]:
    """Indices of the labels that fit best, best first."""
    return [" ".join(map(str, row)) for row in (-scores).argsort(1)[:, :_LABELS].tolist()]


Engine = Callable[[Sequence[str]], Sequence[str]]
"""A batch of texts, or of images as base64, to a batch of texts, or of labels."""
_FIELDS = {"translation": "text", "images": "image"}
FAST: dict[str, Callable[[Path, int], Engine]] = {"translation": CTranslate2, "images": Onnx}
TORCH: dict[str, Callable[[Path, int], Engine]] = {"translation": Transformers, "images": Torch}


def options() -> argparse.Namespace:
    """What every peer is started with."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=list(_FIELDS), required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    found = parser.parse_args()
    found.field = _FIELDS[found.task]
    return found
