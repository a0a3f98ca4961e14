from __future__ import annotations

from headwaiter_export.families.family import family
from headwaiter_export.families.single_pass import TextClassifier


@family("bert")
class Bert(TextClassifier):
    transformers_class = "BertForSequenceClassification"

    def uses_segments(self) -> bool:
        return True


@family("distilbert")
class DistilBert(TextClassifier):
    transformers_class = "DistilBertForSequenceClassification"


@family("roberta")
class Roberta(TextClassifier):
    """Positions start after the padding index, so the position table is longer than the longest text."""

    transformers_class = "RobertaForSequenceClassification"

    def limits(self) -> dict[str, int]:
        return {"length": self.config.max_position_embeddings - self.config.pad_token_id - 1}


@family("deberta-v2")
class DebertaV2(TextClassifier):
    transformers_class = "DebertaV2ForSequenceClassification"
    unfused_reason = "disentangled attention adds content-to-position scores, for which there is no fused operator"

    def uses_segments(self) -> bool:
        return bool(self.config.type_vocab_size)
