from __future__ import annotations

from headwaiter_export.families.bart import BartLike
from headwaiter_export.families.family import family


@family("marian")
class Marian(BartLike):
    transformers_class = "MarianMTModel"

    def source_vocabulary(self) -> int:
        return int(self.model.get_encoder().embed_tokens.num_embeddings)
