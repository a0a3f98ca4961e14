"""CTranslate2 Transformers as torch models: Marian for post-norm blocks, M2M100 for pre-norm blocks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import M2M100Config, M2M100ForConditionalGeneration, MarianConfig, MarianMTModel
from transformers.initialization import no_init_weights

from headwaiter_export.errors import SourceError
from headwaiter_export.families.bart import BartLike
from headwaiter_export.families.marian import Marian
from headwaiter_export.sources.ctranslate2 import Variables, read_variables

_SPEC = "TransformerSpec"
_ACTIVATIONS = ("relu", "gelu_new", "swish", "gelu", "quick_gelu", "tanh")
_START_TOKEN_LOGIT_MARGIN = 20.0  # below the smallest bias, so the start token is never generated
_MAX_NEW_TOKENS = 256
_UNSUPPORTED_FLAGS = ("alibi", "multi_query_attention", "embeddings_merge")
# Settings without effect on the supported models.
_IGNORED_SETTINGS = (
    "alibi_use_positive_positions",
    "scale_alibi",
    "alignment_heads",
    "alignment_layer",
    "scale_outputs",
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens in the order of their ids, and the special tokens."""

    tokens: list[str]
    eos: str
    unk: str
    start: str


def load_transformer(path: Path, vocabulary: Vocabulary) -> tuple[BartLike, Vocabulary]:
    """Load the model in `path` and return its family and vocabulary.

    If decoding starts from a zero embedding, a start token is appended to the vocabulary. Raises `SourceError` if the
    model is not supported.
    """
    spec, variables = read_variables(path)
    if spec != _SPEC:
        raise SourceError(f"{path.name} is a CTranslate2 {spec}; only {_SPEC} is supported.")
    reader = _WeightReader(variables, path)
    rows = reader.rows("encoder/embeddings_0/weight")
    if rows != len(vocabulary.tokens):
        raise SourceError(f"{path.name} has {rows} embeddings, but its vocabulary has {len(vocabulary.tokens)} tokens.")
    if reader.flag("decoder/start_from_zero_embedding"):
        reader.add_start_token()
        vocabulary = Vocabulary([*vocabulary.tokens, "<start>"], vocabulary.eos, vocabulary.unk, "<start>")
    pre_norm = reader.flag("encoder/pre_norm"), reader.flag("decoder/pre_norm")
    if pre_norm[0] != pre_norm[1]:
        raise SourceError(f"{path.name} is pre-norm on one side and post-norm on the other, which is not supported.")
    build = _build_pre_norm if pre_norm[0] else _build_post_norm
    family = build(reader, _model_settings(reader, vocabulary), path.parent)
    reader.check_all_read()
    generation: Any = family.model.generation_config
    generation.decoder_start_token_id = vocabulary.tokens.index(vocabulary.start)
    generation.eos_token_id = vocabulary.tokens.index(vocabulary.eos)
    generation.forced_eos_token_id = None
    generation.max_new_tokens = _MAX_NEW_TOKENS
    return family, vocabulary


class PreNormTransformer(BartLike):
    """M2M100 layout with stored position embeddings and a bias on the logits, as trained by OpenNMT."""

    name = "transformer"
    transformers_class = "M2M100ForConditionalGeneration"

    def logits(self, last: Tensor) -> Tensor:
        return functional.linear(last, self.model.lm_head.weight, self.model.lm_head.bias)


class _StoredPositions(nn.Module):
    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(table, requires_grad=False)

    def forward(self, tokens: Tensor, *_: Any, **__: Any) -> Tensor:
        return self.weight[None, : tokens.shape[1]]


class _WeightReader:
    """Reads variables by name and records which were read, so that unsupported ones are detected."""

    def __init__(self, variables: Variables, path: Path) -> None:
        self.variables, self.path = dict(variables), path
        self.read: set[str] = set()

    def __call__(self, name: str) -> Tensor:
        if name not in self.variables:
            raise SourceError(
                f"{self.path.name} has no variable {name}; this variant of the Transformer is not supported."
            )
        self.read.add(name)
        return torch.from_numpy(np.array(self.variables[name]))

    def rows(self, name: str) -> int:
        return int(self(name).shape[0])

    def number(self, name: str) -> int:
        return int(self(name))

    def flag(self, name: str) -> bool:
        return name in self.variables and bool(self.number(name))

    def layers(self, side: str) -> int:
        return len(
            {name.split("/")[1] for name in self.variables if name.startswith(f"{side}/layer_") and name.count("/") > 2}
        )

    def add_start_token(self) -> None:
        """Append a token with a zero embedding, from which decoding starts and which is never generated."""
        for name in ("encoder/embeddings_0/weight", "decoder/embeddings/weight", "decoder/projection/weight"):
            table = self.variables[name]
            self.variables[name] = np.concatenate([table, np.zeros((1, table.shape[1]), np.float32)])
        bias = self.variables["decoder/projection/bias"]
        self.variables["decoder/projection/bias"] = np.append(bias, bias.min() - np.float32(_START_TOKEN_LOGIT_MARGIN))

    def check_all_read(self) -> None:
        """Raise `SourceError` if an unsupported flag is set or a variable was not read."""
        for side in ("encoder", "decoder"):
            for setting in _UNSUPPORTED_FLAGS:
                if self.flag(f"{side}/{setting}"):
                    raise SourceError(f"{self.path.name} uses {setting}, which is not supported.")
            self.read |= {f"{side}/{setting}" for setting in _IGNORED_SETTINGS}
        if unread := sorted(self.variables.keys() - self.read):
            raise SourceError(
                f"{self.path.name} has the variable {unread[0]}; this variant of the Transformer is not supported."
            )


def _model_settings(weights: _WeightReader, vocabulary: Vocabulary) -> dict[str, Any]:
    positions = [weights.rows(f"{side}/position_encodings/encodings") for side in ("encoder", "decoder")]
    activation = weights.number("encoder/activation")
    if activation != weights.number("decoder/activation") or activation >= len(_ACTIVATIONS):
        raise SourceError(
            f"{weights.path.name} uses activation {activation}; supported are 0 to 5 ({', '.join(_ACTIVATIONS)})."
        )
    scaled = weights.flag("encoder/scale_embeddings")
    if scaled != weights.flag("decoder/scale_embeddings"):
        raise SourceError(f"{weights.path.name} scales embeddings on one side only, which is not supported.")
    return {
        "vocab_size": len(vocabulary.tokens),
        "d_model": int(weights("encoder/embeddings_0/weight").shape[1]),
        "encoder_layers": weights.layers("encoder"),
        "decoder_layers": weights.layers("decoder"),
        "encoder_attention_heads": weights.number("encoder/num_heads"),
        "decoder_attention_heads": weights.number("decoder/num_heads"),
        "encoder_ffn_dim": weights.rows("encoder/layer_0/ffn/linear_0/weight"),
        "decoder_ffn_dim": weights.rows("decoder/layer_0/ffn/linear_0/weight"),
        "activation_function": _ACTIVATIONS[activation],
        "scale_embedding": scaled,
        "max_position_embeddings": min(positions),
        "pad_token_id": vocabulary.tokens.index(vocabulary.start),
        "eos_token_id": vocabulary.tokens.index(vocabulary.eos),
        "decoder_start_token_id": vocabulary.tokens.index(vocabulary.start),
        "forced_eos_token_id": None,
    }


def _build_post_norm(weights: _WeightReader, settings: dict[str, Any], folder: Path) -> BartLike:
    with no_init_weights():
        model = MarianMTModel(MarianConfig(**settings))
    _load_weights(model, weights)
    for stack, side in ((model.model.encoder, "encoder"), (model.model.decoder, "decoder")):
        stack.embed_positions.weight = nn.Parameter(_position_table(weights, side, settings), requires_grad=False)
    model.lm_head.weight = _output_projection(model, weights)
    model.final_logits_bias = weights("decoder/projection/bias")[None]
    return Marian(model, folder)


def _build_pre_norm(weights: _WeightReader, settings: dict[str, Any], folder: Path) -> BartLike:
    with no_init_weights():
        # M2M100 computes its own positions from the padding index; they are replaced below.
        model = M2M100ForConditionalGeneration(M2M100Config(**settings | {"pad_token_id": 0}))
    _load_weights(model, weights)
    for stack, side in ((model.model.encoder, "encoder"), (model.model.decoder, "decoder")):
        stack.embed_positions = _StoredPositions(_position_table(weights, side, settings))
        _copy_weights(stack.layer_norm, weights, f"{side}/layer_norm")
    model.lm_head = nn.Linear(settings["d_model"], settings["vocab_size"])
    model.lm_head.weight = _output_projection(model, weights)
    model.lm_head.bias = nn.Parameter(weights("decoder/projection/bias"))
    return PreNormTransformer(model, folder)


def _position_table(weights: _WeightReader, side: str, settings: dict[str, Any]) -> Tensor:
    return weights(f"{side}/position_encodings/encodings")[: settings["max_position_embeddings"]].contiguous()


def _output_projection(model: Any, weights: _WeightReader) -> nn.Parameter:
    """Return the projection weight, shared with the embedding if both are equal."""
    projection, embedding = weights("decoder/projection/weight"), model.model.decoder.embed_tokens.weight
    return embedding if torch.equal(projection, embedding) else nn.Parameter(projection)


def _load_weights(model: Any, weights: _WeightReader) -> None:
    shared = nn.Parameter(weights("encoder/embeddings_0/weight"))
    decoder_embedding = nn.Parameter(weights("decoder/embeddings/weight"))
    model.model.shared.weight = model.model.encoder.embed_tokens.weight = shared
    model.model.decoder.embed_tokens.weight = shared if torch.equal(shared, decoder_embedding) else decoder_embedding
    for index, layer in enumerate(model.model.encoder.layers):
        _load_block(layer, weights, f"encoder/layer_{index}")
    for index, layer in enumerate(model.model.decoder.layers):
        prefix = f"decoder/layer_{index}"
        _load_block(layer, weights, prefix)
        _copy_weights(layer.encoder_attn.q_proj, weights, f"{prefix}/attention/linear_0")
        _split_weights([layer.encoder_attn.k_proj, layer.encoder_attn.v_proj], weights, f"{prefix}/attention/linear_1")
        _copy_weights(layer.encoder_attn.out_proj, weights, f"{prefix}/attention/linear_2")
        _copy_weights(layer.encoder_attn_layer_norm, weights, f"{prefix}/attention/layer_norm")


def _load_block(layer: Any, weights: _WeightReader, prefix: str) -> None:
    attention = layer.self_attn
    _split_weights([attention.q_proj, attention.k_proj, attention.v_proj], weights, f"{prefix}/self_attention/linear_0")
    _copy_weights(attention.out_proj, weights, f"{prefix}/self_attention/linear_1")
    _copy_weights(layer.self_attn_layer_norm, weights, f"{prefix}/self_attention/layer_norm")
    _copy_weights(layer.fc1, weights, f"{prefix}/ffn/linear_0")
    _copy_weights(layer.fc2, weights, f"{prefix}/ffn/linear_1")
    _copy_weights(layer.final_layer_norm, weights, f"{prefix}/ffn/layer_norm")


def _copy_weights(module: Any, weights: _WeightReader, prefix: str) -> None:
    weight, bias = ("gamma", "beta") if isinstance(module, nn.LayerNorm) else ("weight", "bias")
    module.weight, module.bias = nn.Parameter(weights(f"{prefix}/{weight}")), nn.Parameter(weights(f"{prefix}/{bias}"))


def _split_weights(modules: list[Any], weights: _WeightReader, prefix: str) -> None:
    matrices, biases = (weights(f"{prefix}/{part}").chunk(len(modules)) for part in ("weight", "bias"))
    for module, weight, bias in zip(modules, matrices, biases, strict=True):
        module.weight, module.bias = nn.Parameter(weight.contiguous()), nn.Parameter(bias.contiguous())
