"""Tokenizers of trained models, written as files that serving reads without transformers."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path

from sentencepiece import SentencePieceProcessor
from transformers import AutoTokenizer, MarianTokenizer, PreTrainedTokenizerBase, TokenizersBackend

from export.errors import SourceError
from service.preprocessing import SentencePieceFiles, TextSettings, TokenizerFile

_TOKENIZER_FILE = "tokenizer.json"
_KNOWN_FILES = (
    "tokenizer.json, or source.spm, target.spm and vocab.json (Marian), or vocab.json and merges.txt (BPE), "
    "or vocab.txt (WordPiece), or spiece.model (T5)"
)
# A class that brings its own version of one of these does something that its tokenizer.json does not say.
_TEXT_METHODS = ("_encode_plus", "decode", "_decode", "clean_up_tokenization")
# What a tokenizer without a limit of its own gives as its longest text is a number with thirty zeros.
_NO_LIMIT = 10**9


def convert_tokenizer(source: Path, target: Path) -> TextSettings:
    """Writes the tokenizer of the Hugging Face directory `source` into the folder `target`."""
    tokenizer = _load(source)
    if tokenizer.split_special_tokens:
        raise SourceError(f"The tokenizer in {source} sets split_special_tokens, which serving does not support.")
    if isinstance(tokenizer, MarianTokenizer):
        return _convert_marian(source, tokenizer, target)
    if isinstance(tokenizer, TokenizersBackend) and _is_plain(tokenizer):
        return _convert_file(tokenizer, target)
    raise SourceError(
        f"The tokenizer in {source} is a {type(tokenizer).__name__}, which runs Python code of its own: "
        f"supported are MarianTokenizer and those that {_TOKENIZER_FILE} describes in full."
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
    """Writes one SentencePiece model for both languages, with a vocabulary whose order gives the ids (Argos)."""
    ids = {token: index for index, token in enumerate(vocabulary)}
    special_tokens = tuple(token for token in (eos, unk, pad, bos) if token is not None)
    if len(ids) < len(vocabulary):
        raise SourceError(f"The vocabulary beside {model} names a token twice: every token needs one id.")
    if missing := [token for token in special_tokens if token not in ids]:
        raise SourceError(f"The vocabulary beside {model} lacks {', '.join(missing)}.")
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
        raise SourceError(f"{source} is not a directory: a tokenizer is {_KNOWN_FILES}.")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*sacremoses")  # loaded by transformers, used nowhere
            tokenizer = AutoTokenizer.from_pretrained(str(source), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a broken file makes its parser raise
        raise SourceError(f"{source} holds no tokenizer that can be read: needed is {_KNOWN_FILES}.") from error
    _check_files(source, tokenizer)
    return tokenizer


def _check_files(source: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Without its files transformers makes up a tokenizer of special tokens only."""
    if not isinstance(tokenizer, TokenizersBackend) or (source / _TOKENIZER_FILE).is_file():
        return
    names = [name for name in tokenizer.vocab_files_names.values() if name != _TOKENIZER_FILE]
    if not all((source / name).is_file() for name in names):
        raise SourceError(
            f"{source} has no vocabulary for its {type(tokenizer).__name__}: "
            f"needed is {_TOKENIZER_FILE}, or {' and '.join(names)}."
        )


def _is_plain(tokenizer: TokenizersBackend) -> bool:
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
        max_length=_real_limit(tokenizer),
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
        max_length=_real_limit(tokenizer),
        cleans_spaces=tokenizer.clean_up_tokenization_spaces,
        source_model="source.spm",
        # With a shared vocabulary transformers decodes with the source's model.
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
    if reaching := [str(token) for token in added if token.lstrip or token.rstrip or token.single_word]:
        raise SourceError(
            f"The tokenizer in {source} sets lstrip, rstrip or single_word for {', '.join(reaching)}, "
            "which serving does not support."
        )


def _check_sentencepiece(model: Path) -> None:
    try:
        SentencePieceProcessor(model_file=str(model))
    except (OSError, RuntimeError) as error:
        raise SourceError(f"{model} is not a SentencePiece model that can be read.") from error


def _real_limit(tokenizer: PreTrainedTokenizerBase) -> int | None:
    return tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None


def _write_vocabulary(ids: Mapping[str, int], path: Path) -> None:
    path.write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
