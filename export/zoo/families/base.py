"""What all systems of the zoo are to the pipeline."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from export.family import Family
from export.zoo.checkpoint import Checkpoint
from service.package import Decoding, Preprocessing
from service.preprocessing import TokenizerFile


class OfZoo(Family):
    """Systems call the fused operators themselves, so nothing has to be put in their place."""

    head = ""

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        self.model: Any = checkpoint.model.eval()
        self.config: Any = checkpoint.model.sizes
        self.folder, self.checkpoint = folder, checkpoint
        self.name, self.task = checkpoint.system, checkpoint.model.task
        self.unfusable = checkpoint.model.unfusable

    def tracing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def preprocessing(self, target: Path) -> Preprocessing:
        text = self.checkpoint.preprocessing.text
        if isinstance(text, TokenizerFile):
            shutil.copyfile(self.folder / text.file, target / text.file)
        return self.checkpoint.preprocessing

    def labels(self) -> tuple[str, ...] | None:
        return self.checkpoint.labels

    def decoding(self) -> Decoding | None:
        return self.checkpoint.decoding
