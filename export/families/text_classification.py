from __future__ import annotations

from export.family import family
from export.onepass import TextClassifier


@family("bert")
class Bert(TextClassifier):
    head = "BertForSequenceClassification"

    def segmented(self) -> bool:
        return True


@family("distilbert")
class DistilBert(TextClassifier):
    head = "DistilBertForSequenceClassification"


@family("roberta")
class Roberta(TextClassifier):
    """Positions start behind the padding index, so the table is longer than the longest text."""

    head = "RobertaForSequenceClassification"

    def limits(self) -> dict[str, int]:
        return {"length": self.config.max_position_embeddings - self.config.pad_token_id - 1}


@family("deberta-v2")
class DebertaV2(TextClassifier):
    head = "DebertaV2ForSequenceClassification"
    cannot_fuse = "its scores add products of contents with relative positions, for which there is no fused operator"

    def segmented(self) -> bool:
        return bool(self.config.type_vocab_size)
