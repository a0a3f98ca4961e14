"""CTranslate2's Transformer as a torch model: Marian's where norms come after each block, M2M100's where before."""

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

from export.ctranslate2 import Variables, read_variables
from export.errors import SourceError
from export.families.bart import BartLike
from export.families.marian import Marian

_SPEC = "TransformerSpec"
_ACTIVATIONS = ("relu", "gelu_new", "swish", "gelu", "quick_gelu", "tanh")
_UNLIKELY = 20.0  # how far below all others the start token's logit lies: it is never the answer
_NEW_TOKENS = 256
# Settings that must be off, or whose values make no difference here.
_OFF = ("alibi", "multi_query_attention", "embeddings_merge")
_INDIFFERENT = ("alibi_use_positive_positions", "scale_alibi", "alignment_heads", "alignment_layer", "scale_outputs")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens in the order of their ids, and the ones with a meaning."""

    tokens: list[str]
    eos: str
    unk: str
    start: str


def load_transformer(path: Path, vocabulary: Vocabulary) -> tuple[BartLike, Vocabulary]:
    """The model in `path` under the family that fits it. Its start token is added where it has no embedding."""
    spec, variables = read_variables(path)
    if spec != _SPEC:
        raise SourceError(f"{path.name} holds a {spec}; of CTranslate2's models, {_SPEC} can be exported.")
    reader = _Weights(variables, path)
    rows = reader.rows("encoder/embeddings_0/weight")
    if rows != len(vocabulary.tokens):
        raise SourceError(f"{path.name} has {rows} embeddings and its vocabulary {len(vocabulary.tokens)} tokens.")
    if reader.flag("decoder/start_from_zero_embedding"):
        reader.add_start_row()
        vocabulary = Vocabulary([*vocabulary.tokens, "<start>"], vocabulary.eos, vocabulary.unk, "<start>")
    pre_norm = reader.flag("encoder/pre_norm"), reader.flag("decoder/pre_norm")
    if pre_norm[0] != pre_norm[1]:
        raise SourceError(f"{path.name} normalises before blocks on one side and after them on the other.")
    build = _pre_norm if pre_norm[0] else _post_norm
    family = build(reader, _settings(reader, vocabulary), path.parent)
    reader.demand_all_read()
    generation: Any = family.model.generation_config
    generation.decoder_start_token_id = vocabulary.tokens.index(vocabulary.start)
    generation.eos_token_id = vocabulary.tokens.index(vocabulary.eos)
    generation.forced_eos_token_id = None
    generation.max_new_tokens = _NEW_TOKENS
    return family, vocabulary


class PreNorm(BartLike):
    """The layout of M2M100 with stored positions and a bias on the logits, as OpenNMT trains it."""

    name = "transformer"
    head = "M2M100ForConditionalGeneration"

    def logits(self, last: Tensor) -> Tensor:
        return functional.linear(last, self.model.lm_head.weight, self.model.lm_head.bias)


class _Positions(nn.Module):
    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(table, requires_grad=False)

    def forward(self, tokens: Tensor, *_: Any, **__: Any) -> Tensor:
        return self.weight[None, : tokens.shape[1]]


class _Weights:
    """The variables by name, remembering which were read: one left over is one that was not understood."""

    def __init__(self, variables: Variables, path: Path) -> None:
        self.variables, self.path = dict(variables), path
        self.read: set[str] = set()

    def __call__(self, name: str) -> Tensor:
        if name not in self.variables:
            raise SourceError(
                f"{self.path.name} has no {name}: it is not a Transformer of the kind that can be exported."
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

    def add_start_row(self) -> None:
        """Decoding starts from a zero embedding: a token of its own, one that cannot be chosen."""
        for name in ("encoder/embeddings_0/weight", "decoder/embeddings/weight", "decoder/projection/weight"):
            table = self.variables[name]
            self.variables[name] = np.concatenate([table, np.zeros((1, table.shape[1]), np.float32)])
        bias = self.variables["decoder/projection/bias"]
        self.variables["decoder/projection/bias"] = np.append(bias, bias.min() - np.float32(_UNLIKELY))

    def demand_all_read(self) -> None:
        for side in ("encoder", "decoder"):
            for setting in _OFF:
                if self.flag(f"{side}/{setting}"):
                    raise SourceError(f"{self.path.name} uses {setting}, which cannot be exported.")
            self.read |= {f"{side}/{setting}" for setting in _INDIFFERENT}
        if left := sorted(self.variables.keys() - self.read):
            raise SourceError(
                f"{self.path.name} has {left[0]} and is not a Transformer of the kind that can be exported."
            )


def _settings(weights: _Weights, vocabulary: Vocabulary) -> dict[str, Any]:
    positions = [weights.rows(f"{side}/position_encodings/encodings") for side in ("encoder", "decoder")]
    activation = weights.number("encoder/activation")
    if activation != weights.number("decoder/activation") or activation >= len(_ACTIVATIONS):
        raise SourceError(f"{weights.path.name} uses activation {activation}; known are {', '.join(_ACTIVATIONS)}.")
    scaled = weights.flag("encoder/scale_embeddings")
    if scaled != weights.flag("decoder/scale_embeddings"):
        raise SourceError(f"{weights.path.name} scales embeddings on one side only, which cannot be exported.")
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


def _post_norm(weights: _Weights, settings: dict[str, Any], folder: Path) -> BartLike:
    with no_init_weights():
        model = MarianMTModel(MarianConfig(**settings))
    _fill(model, weights)
    for part, side in ((model.model.encoder, "encoder"), (model.model.decoder, "decoder")):
        part.embed_positions.weight = nn.Parameter(_table(weights, side, settings), requires_grad=False)
    model.lm_head.weight = _tied(model, weights)
    model.final_logits_bias = weights("decoder/projection/bias")[None]
    return Marian(model, folder)


def _pre_norm(weights: _Weights, settings: dict[str, Any], folder: Path) -> BartLike:
    with no_init_weights():
        # M2M100 makes its own positions around the padding index; they are replaced below
        model = M2M100ForConditionalGeneration(M2M100Config(**settings | {"pad_token_id": 0}))
    _fill(model, weights)
    for part, side in ((model.model.encoder, "encoder"), (model.model.decoder, "decoder")):
        part.embed_positions = _Positions(_table(weights, side, settings))
        _copy(part.layer_norm, weights, f"{side}/layer_norm")
    model.lm_head = nn.Linear(settings["d_model"], settings["vocab_size"])
    model.lm_head.weight = _tied(model, weights)
    model.lm_head.bias = nn.Parameter(weights("decoder/projection/bias"))
    return PreNorm(model, folder)


def _table(weights: _Weights, side: str, settings: dict[str, Any]) -> Tensor:
    return weights(f"{side}/position_encodings/encodings")[: settings["max_position_embeddings"]].contiguous()


def _tied(model: Any, weights: _Weights) -> nn.Parameter:
    """One matrix where the projection is the embedding again."""
    projection, embedding = weights("decoder/projection/weight"), model.model.decoder.embed_tokens.weight
    return embedding if torch.equal(projection, embedding) else nn.Parameter(projection)


def _fill(model: Any, weights: _Weights) -> None:
    shared = nn.Parameter(weights("encoder/embeddings_0/weight"))
    own = nn.Parameter(weights("decoder/embeddings/weight"))
    model.model.shared.weight = model.model.encoder.embed_tokens.weight = shared
    model.model.decoder.embed_tokens.weight = shared if torch.equal(shared, own) else own
    for index, layer in enumerate(model.model.encoder.layers):
        _fill_block(layer, weights, f"encoder/layer_{index}")
    for index, layer in enumerate(model.model.decoder.layers):
        place = f"decoder/layer_{index}"
        _fill_block(layer, weights, place)
        _copy(layer.encoder_attn.q_proj, weights, f"{place}/attention/linear_0")
        _split([layer.encoder_attn.k_proj, layer.encoder_attn.v_proj], weights, f"{place}/attention/linear_1")
        _copy(layer.encoder_attn.out_proj, weights, f"{place}/attention/linear_2")
        _copy(layer.encoder_attn_layer_norm, weights, f"{place}/attention/layer_norm")


def _fill_block(layer: Any, weights: _Weights, place: str) -> None:
    attention = layer.self_attn
    _split([attention.q_proj, attention.k_proj, attention.v_proj], weights, f"{place}/self_attention/linear_0")
    _copy(attention.out_proj, weights, f"{place}/self_attention/linear_1")
    _copy(layer.self_attn_layer_norm, weights, f"{place}/self_attention/layer_norm")
    _copy(layer.fc1, weights, f"{place}/ffn/linear_0")
    _copy(layer.fc2, weights, f"{place}/ffn/linear_1")
    _copy(layer.final_layer_norm, weights, f"{place}/ffn/layer_norm")


def _copy(module: Any, weights: _Weights, place: str) -> None:
    weight, bias = ("gamma", "beta") if isinstance(module, nn.LayerNorm) else ("weight", "bias")
    module.weight, module.bias = nn.Parameter(weights(f"{place}/{weight}")), nn.Parameter(weights(f"{place}/{bias}"))


def _split(modules: list[Any], weights: _Weights, place: str) -> None:
    matrices, biases = (weights(f"{place}/{part}").chunk(len(modules)) for part in ("weight", "bias"))
    for module, weight, bias in zip(modules, matrices, biases, strict=True):
        module.weight, module.bias = nn.Parameter(weight.contiguous()), nn.Parameter(bias.contiguous())
