"""Tiny random Hugging Face checkpoints, one or more per family.

Sizes are unusual and weights have a large variance, so that a lost bias, norm or position changes the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    DecisionTransformerConfig,
    DecisionTransformerModel,
    DeiTConfig,
    DeiTForImageClassification,
    DetrConfig,
    DetrForObjectDetection,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    ResNetConfig,
    RobertaConfig,
    RobertaForSequenceClassification,
    SwinConfig,
    SwinForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    ViTForImageClassification,
    YolosConfig,
    YolosForObjectDetection,
)

from tests.images_kit import write_image_processor
from tests.tokenizers_kit import TOKENIZERS

POSITIONS = 61  # maximum length of models with a position table
CLASSES = ("starter", "main", "dessert", "drink", "bill")
_INIT_STD = {"t5": 0.15}  # smaller, because its attention scores are not scaled
_LABELS = {"id2label": dict(enumerate(CLASSES)), "label2id": {name: index for index, name in enumerate(CLASSES)}}
_ENCODER = {"hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 52}


def write_checkpoint(kind: str, folder: Path) -> Path:
    """Write one of `CHECKPOINTS` to the directory, with the same weights every time."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    save_randomised(CHECKPOINTS[kind](folder), folder)
    return folder


def save_randomised(model: PreTrainedModel, folder: Path) -> None:
    """Replace all weights by random values and save the checkpoint."""
    with torch.no_grad():
        for module in model.modules():
            _randomise(module, _INIT_STD.get(model.config.model_type, 0.3))
    model.tie_weights()
    model.save_pretrained(folder)


def _randomise(module: nn.Module, std: float) -> None:
    is_norm = "Norm" in type(module).__name__
    for name, weight in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        if is_norm and name in ("weight", "running_var"):
            weight.uniform_(0.5, 1.5)
        elif (weight.is_floating_point() and weight.requires_grad) or is_norm or name == "final_logits_bias":
            weight.normal_(std=weight[0].numel() ** -0.5 if weight.ndim > 2 else std)


def _marian(folder: Path) -> PreTrainedModel:
    vocabulary = TOKENIZERS["marian"](folder)
    pad = vocabulary - 1
    config = MarianConfig(
        **_bart_like(vocabulary, encoder_layers=3, decoder_layers=2),
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=0,
        decoder_start_token_id=pad,
    )
    model = MarianMTModel(config)
    model.generation_config = GenerationConfig(
        decoder_start_token_id=pad,
        pad_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=0,
        bad_words_ids=[[pad]],
        num_beams=4,
        max_length=50,
    )
    return model


def _bart(folder: Path) -> PreTrainedModel:
    vocabulary = TOKENIZERS["bart"](folder)
    config = BartConfig(**_bart_like(vocabulary, encoder_layers=1, decoder_layers=2), activation_function="gelu")
    return BartForConditionalGeneration(config)


def _bart_like(vocabulary: int, encoder_layers: int, decoder_layers: int) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "d_model": 36,
        "encoder_layers": encoder_layers,
        "decoder_layers": decoder_layers,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 52,
        "decoder_ffn_dim": 44,
        "max_position_embeddings": POSITIONS,
    }


def _t5(folder: Path) -> PreTrainedModel:
    return T5ForConditionalGeneration(_t5_config(folder, feed_forward_proj="relu", tie_word_embeddings=True))


def _t5_gated(folder: Path) -> PreTrainedModel:
    return T5ForConditionalGeneration(_t5_config(folder, feed_forward_proj="gated-gelu", tie_word_embeddings=False))


def _t5_config(folder: Path, **settings: Any) -> T5Config:
    return T5Config(
        vocab_size=TOKENIZERS["t5"](folder),
        d_model=36,
        d_kv=10,
        d_ff=52,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=3,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        decoder_start_token_id=0,
        **settings,
    )


def _gpt2(folder: Path) -> PreTrainedModel:
    return GPT2LMHeadModel(_gpt2_config(TOKENIZERS["gpt2"](folder), width=33, layers=3))


def _gpt2_config(vocabulary: int, width: int, layers: int, **settings: Any) -> GPT2Config:
    return GPT2Config(
        vocab_size=vocabulary,
        n_positions=POSITIONS,
        n_embd=width,
        n_layer=layers,
        n_head=3,
        bos_token_id=0,
        eos_token_id=0,
        **settings,
    )


def _captioner(encoder: str, width: int) -> Callable[[Path], PreTrainedModel]:
    def build(folder: Path) -> PreTrainedModel:
        decoder = _gpt2_config(TOKENIZERS["gpt2"](folder), width, 2, add_cross_attention=True, is_decoder=True)
        images = _image_config(encoder, folder)
        config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(images, decoder)
        config.decoder_start_token_id = config.pad_token_id = config.eos_token_id = 0
        model = VisionEncoderDecoderModel(config)
        model.generation_config = GenerationConfig(
            decoder_start_token_id=0, pad_token_id=0, eos_token_id=0, max_length=16
        )
        return model

    return build


def _image_config(kind: str, folder: Path, **settings: Any) -> Any:
    if kind == "vit":
        write_image_processor(folder, "vit", size={"height": 24, "width": 40})
        return ViTConfig(**_ENCODER, image_size=(24, 40), patch_size=8, **settings)
    if kind == "deit":
        write_image_processor(folder, "deit")
        return DeiTConfig(**_ENCODER, image_size=32, patch_size=8, **settings)
    write_image_processor(folder, "swin", size={"height": 28, "width": 28})
    return SwinConfig(
        image_size=28, patch_size=2, embed_dim=12, depths=[1, 2], num_heads=[1, 2], window_size=4, **settings
    )


def _vit(folder: Path) -> PreTrainedModel:
    return ViTForImageClassification(_image_config("vit", folder, **_LABELS, problem_type="multi_label_classification"))


def _deit(folder: Path) -> PreTrainedModel:
    return DeiTForImageClassification(_image_config("deit", folder, **_LABELS))


def _swin(folder: Path) -> PreTrainedModel:
    return SwinForImageClassification(_image_config("swin", folder, **_LABELS))


def _bert(folder: Path) -> PreTrainedModel:
    vocabulary = TOKENIZERS["bert"](folder)
    config = BertConfig(vocab_size=vocabulary, max_position_embeddings=POSITIONS, **_ENCODER, **_LABELS)
    return BertForSequenceClassification(config)


def _distilbert(folder: Path) -> PreTrainedModel:
    vocabulary = TOKENIZERS["distilbert"](folder)
    config = DistilBertConfig(
        vocab_size=vocabulary,
        max_position_embeddings=POSITIONS,
        dim=36,
        n_layers=2,
        n_heads=3,
        hidden_dim=52,
        problem_type="multi_label_classification",
        **_LABELS,
    )
    return DistilBertForSequenceClassification(config)


def _roberta(folder: Path) -> PreTrainedModel:
    vocabulary = TOKENIZERS["roberta"](folder)
    config = RobertaConfig(
        vocab_size=vocabulary,
        max_position_embeddings=POSITIONS + 2,
        pad_token_id=1,
        type_vocab_size=1,
        **_ENCODER,
        **_LABELS,
    )
    return RobertaForSequenceClassification(config)


def _detr(folder: Path) -> PreTrainedModel:
    write_image_processor(folder, "detr")
    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[12, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=36,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=52,
        decoder_ffn_dim=44,
        num_queries=7,
        **_LABELS,
    )
    return DetrForObjectDetection(config)


def _yolos(folder: Path) -> PreTrainedModel:
    write_image_processor(folder, "yolos")
    config = YolosConfig(**_ENCODER, image_size=[48, 80], patch_size=16, num_detection_tokens=7, **_LABELS)
    return YolosForObjectDetection(config)


def _decision_transformer(folder: Path) -> PreTrainedModel:  # noqa: ARG001
    config = DecisionTransformerConfig(
        state_dim=5, act_dim=3, hidden_size=36, max_ep_len=23, n_layer=2, n_head=3, n_positions=60
    )
    return DecisionTransformerModel(config)


CHECKPOINTS: dict[str, Callable[[Path], PreTrainedModel]] = {
    "marian": _marian,
    "bart": _bart,
    "t5": _t5,
    "t5-gated": _t5_gated,
    "caption-vit": _captioner("vit", width=36),
    "caption-deit": _captioner("deit", width=33),
    "caption-swin": _captioner("swin", width=36),
    "gpt2": _gpt2,
    "vit": _vit,
    "deit": _deit,
    "swin": _swin,
    "bert": _bert,
    "distilbert": _distilbert,
    "roberta": _roberta,
    "detr": _detr,
    "yolos": _yolos,
    "decision_transformer": _decision_transformer,
}
