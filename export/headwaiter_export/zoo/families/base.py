"""Base class of the zoo's export families."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from headwaiter.package.manifest import DecodingDefaults, Preprocessing
from headwaiter.package.preprocessing import TokenizerFile
from headwaiter_export.families.family import Family
from headwaiter_export.zoo.checkpoint import Checkpoint


class ZooFamily(Family):
    """Zoo models call the fused operators themselves, so tracing needs no patches."""

    transformers_class = ""

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        self.model: Any = checkpoint.model.eval()
        self.config: Any = checkpoint.model.sizes
        self.folder, self.checkpoint = folder, checkpoint
        self.name, self.task = checkpoint.architecture, checkpoint.model.task
        self.no_fused_operator_reason = checkpoint.model.no_fused_operator_reason

    def tracing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def preprocessing(self, target: Path) -> Preprocessing:
        text = self.checkpoint.preprocessing.text
        if isinstance(text, TokenizerFile):
            shutil.copyfile(self.folder / text.file, target / text.file)
        return self.checkpoint.preprocessing

    def labels(self) -> tuple[str, ...] | None:
        return self.checkpoint.labels

    def decoding(self) -> DecodingDefaults | None:
        return self.checkpoint.decoding
