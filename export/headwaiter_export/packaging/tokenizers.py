"""Convert Hugging Face tokenizers to files that serving reads without transformers."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path

from sentencepiece import SentencePieceProcessor
from transformers import AutoTokenizer, MarianTokenizer, PreTrainedTokenizerBase, TokenizersBackend

from headwaiter.package.preprocessing import SentencePieceFiles, TextSettings, TokenizerFile
from headwaiter_export.errors import SourceError

_TOKENIZER_FILE = "tokenizer.json"
_SUPPORTED_FILES = (
    "tokenizer.json, or source.spm, target.spm and vocab.json (Marian), or vocab.json and merges.txt (BPE), "
    "or vocab.txt (WordPiece), or spiece.model (T5)"
)
# A class that overrides one of these behaves differently from its tokenizer.json.
_TEXT_METHODS = ("_encode_plus", "decode", "_decode", "clean_up_tokenization")
# transformers uses 10**30 as the maximum length of a tokenizer without a limit.
_NO_LIMIT = 10**9


def convert_tokenizer(source: Path, target: Path) -> TextSettings:
    """Write the tokenizer of the checkpoint directory `source` to the directory `target`.

    Raises `SourceError` if the tokenizer is missing, damaged or not supported.
    """
    tokenizer = _load(source)
    if tokenizer.split_special_tokens:
        raise SourceError(f"The tokenizer in {source} sets split_special_tokens, which serving does not support.")
    if isinstance(tokenizer, MarianTokenizer):
        return _convert_marian(source, tokenizer, target)
    if isinstance(tokenizer, TokenizersBackend) and _uses_standard_methods(tokenizer):
        return _convert_file(tokenizer, target)
    raise SourceError(
        f"The tokenizer in {source} is a {type(tokenizer).__name__}, which runs custom Python code; "
        f"supported are MarianTokenizer and tokenizers that {_TOKENIZER_FILE} describes completely."
    )


def write_sentencepiece(
    target: Path,
    model: Path,
    vocabulary: list[str],
    *,
    eos: str,
    unk: str,
    pad: str | None = None,
    bos: str | None = None,
    appends_eos: bool = True,
    max_length: int | None = None,
) -> SentencePieceFiles:
    """Write one SentencePiece model for both languages (Argos). The position in `vocabulary` is the token id."""
    ids = {token: index for index, token in enumerate(vocabulary)}
    special_tokens = tuple(token for token in (eos, unk, pad, bos) if token is not None)
    if len(ids) < len(vocabulary):
        raise SourceError(f"The vocabulary of {model} contains a token twice; tokens must be unique.")
    if missing := [token for token in special_tokens if token not in ids]:
        raise SourceError(f"The vocabulary of {model} lacks {', '.join(missing)}.")
    _check_sentencepiece(model)
    shutil.copyfile(model, target / "sentencepiece.model")
    _write_vocabulary(ids, target / "vocab.json")
    return SentencePieceFiles(
        eos=ids[eos],
        unk=ids[unk],
        pad=None if pad is None else ids[pad],
        bos=None if bos is None else ids[bos],
        max_length=max_length,
        cleans_spaces=False,
        source_model="sentencepiece.model",
        target_model="sentencepiece.model",
        source_vocabulary="vocab.json",
        target_vocabulary="vocab.json",
        added_tokens={},
        special_tokens=special_tokens,
        appends_eos=appends_eos,
        language_codes=False,
    )


def _load(source: Path) -> PreTrainedTokenizerBase:
    if not source.is_dir():
        raise SourceError(f"{source} is not a directory; a tokenizer needs {_SUPPORTED_FILES}.")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=".*sacremoses"
            )  # optional dependency of MarianTokenizer that is not used here
            tokenizer = AutoTokenizer.from_pretrained(str(source), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # parsers raise various types for a damaged file
        raise SourceError(f"{source} has no readable tokenizer; required is {_SUPPORTED_FILES}.") from error
    _check_files(source, tokenizer)
    return tokenizer


def _check_files(source: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise if vocabulary files are missing; transformers would create a tokenizer of special tokens only."""
    if not isinstance(tokenizer, TokenizersBackend) or (source / _TOKENIZER_FILE).is_file():
        return
    names = [name for name in tokenizer.vocab_files_names.values() if name != _TOKENIZER_FILE]
    if not all((source / name).is_file() for name in names):
        raise SourceError(
            f"{source} has no vocabulary for its {type(tokenizer).__name__}; "
            f"required is {_TOKENIZER_FILE}, or {' and '.join(names)}."
        )


def _uses_standard_methods(tokenizer: TokenizersBackend) -> bool:
    return all(getattr(type(tokenizer), name) is getattr(TokenizersBackend, name) for name in _TEXT_METHODS)


def _convert_file(tokenizer: TokenizersBackend, target: Path) -> TokenizerFile:
    rust = tokenizer.backend_tokenizer
    rust.no_truncation()
    rust.no_padding()
    rust.save(str(target / _TOKENIZER_FILE))
    bpe = type(rust.model).__name__ == "BPE"
    forced = tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
    return TokenizerFile(
        eos=tokenizer.eos_token_id,
        pad=tokenizer.pad_token_id,
        unk=tokenizer.unk_token_id,
        bos=tokenizer.bos_token_id,
        max_length=_max_length(tokenizer),
        cleans_spaces=bool(tokenizer.clean_up_tokenization_spaces and (forced or not bpe)),
        file=_TOKENIZER_FILE,
        segments="token_type_ids" in tokenizer.model_input_names,
    )


def _convert_marian(source: Path, tokenizer: MarianTokenizer, target: Path) -> SentencePieceFiles:
    _check_marian(source, tokenizer)
    source_spm, target_spm = map(Path, tokenizer.spm_files)
    shutil.copyfile(source_spm, target / "source.spm")
    _write_vocabulary(tokenizer.encoder, target / "vocab.json")
    if tokenizer.separate_vocabs:
        shutil.copyfile(target_spm, target / "target.spm")
        _write_vocabulary(tokenizer.target_encoder, target / "target_vocab.json")
    return SentencePieceFiles(
        eos=tokenizer.eos_token_id,
        unk=tokenizer.encoder[tokenizer.unk_token],
        pad=tokenizer.pad_token_id,
        bos=tokenizer.bos_token_id,
        max_length=_max_length(tokenizer),
        cleans_spaces=tokenizer.clean_up_tokenization_spaces,
        source_model="source.spm",
        # With a shared vocabulary, transformers decodes with the source model.
        target_model="target.spm" if tokenizer.separate_vocabs else "source.spm",
        source_vocabulary="vocab.json",
        target_vocabulary="target_vocab.json" if tokenizer.separate_vocabs else "vocab.json",
        added_tokens=tokenizer.added_tokens_encoder,
        special_tokens=tuple(tokenizer.all_special_tokens),
        appends_eos=True,
        language_codes=True,
    )


def _check_marian(source: Path, tokenizer: MarianTokenizer) -> None:
    if tokenizer.sp_model_kwargs:
        raise SourceError(f"The tokenizer in {source} sets sp_model_kwargs, which serving does not support.")
    added = tokenizer.added_tokens_decoder.values()
    if unsupported := [str(token) for token in added if token.lstrip or token.rstrip or token.single_word]:
        raise SourceError(
            f"The tokenizer in {source} sets lstrip, rstrip or single_word for {', '.join(unsupported)}, "
            "which serving does not support."
        )


def _check_sentencepiece(model: Path) -> None:
    try:
        SentencePieceProcessor(model_file=str(model))
    except (OSError, RuntimeError) as error:
        raise SourceError(f"{model} is not a readable SentencePiece model.") from error


def _max_length(tokenizer: PreTrainedTokenizerBase) -> int | None:
    return tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None


def _write_vocabulary(ids: Mapping[str, int], path: Path) -> None:
    path.write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
