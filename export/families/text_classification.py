from __future__ import annotations

from export.family import family
from export.onepass import TextClassifier


@family("bert")
class Bert(TextClassifier):
    head = "BertForSequenceClassification"
    segmented = True


@family("distilbert")
class DistilBert(TextClassifier):
    head = "DistilBertForSequenceClassification"


@family("roberta")
class Roberta(TextClassifier):
    """Positions start behind the padding index, so the table is longer than the longest text."""

    head = "RobertaForSequenceClassification"

    def limits(self) -> dict[str, int]:
        return {"length": self.config.max_position_embeddings - self.config.pad_token_id - 1}
