from __future__ import annotations

from export.families.bart import BartLike
from export.family import family


@family("marian")
class Marian(BartLike):
    head = "MarianMTModel"

    def source_vocabulary(self) -> int:
        return int(self.model.get_encoder().embed_tokens.num_embeddings)
