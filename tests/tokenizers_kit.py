"""Tiny Hugging Face tokenizers trained on a few sentences. Every writer returns the vocabulary size."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    BartTokenizer,
    BertTokenizer,
    DistilBertTokenizer,
    GPT2Tokenizer,
    MarianTokenizer,
    RobertaTokenizer,
    T5Tokenizer,
)

ENGLISH = (
    "The kitchen closes at ten, but the bar stays open until midnight.",
    "Could you bring us the menu and a bottle of water, please?",
    "It's raining again; no one wants to sit on the terrace today!",
    "We don't take reservations for fewer than six people.",
    "The waiter's tray held 12 glasses, 3 plates and one small cake.",
    "She isn't hungry, she's only tired of waiting.",
)
FRENCH = (
    "La cuisine ferme à dix heures, mais le bar reste ouvert jusqu'à minuit.",
    "Pourriez-vous nous apporter la carte et une bouteille d'eau ?",
    "Il pleut encore ; personne ne veut s'asseoir en terrasse aujourd'hui !",
    "Nous ne prenons pas de réservations pour moins de six personnes.",
    "Le plateau du serveur portait douze verres, trois assiettes et un gâteau.",
)
NON_LATIN = (
    "厨房十点关门，但是酒吧一直开到半夜。",
    "请给我们菜单和一瓶水，好吗？",
    "يغلق المطبخ في الساعة العاشرة لكن المقهى يبقى مفتوحا.",
    "Кухня закрывается в десять, а бар работает до полуночи.",
    "주방은 열 시에 닫지만 바는 자정까지 엽니다.",
    "रसोई दस बजे बंद हो जाती है।",
)
SENTENCES = ENGLISH + FRENCH + NON_LATIN


def write_marian_tokenizer(folder: Path, *, separate_vocabularies: bool = False) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    source_model = _train_sentencepiece(ENGLISH + NON_LATIN)
    target_model = _train_sentencepiece(FRENCH)
    source, target = folder / "source.spm", folder / "target.spm"
    source.write_bytes(source_model)
    target.write_bytes(target_model)
    # Published Marian vocabularies also lack a few rare pieces, which become unknown tokens.
    source_pieces, target_pieces = _pieces(source_model)[:-3], _pieces(target_model)[:-3]
    vocabulary, target_vocabulary = folder / "vocab.json", folder / "target_vocab.json"
    if separate_vocabularies:
        _write_marian_vocabulary(vocabulary, source_pieces)
        _write_marian_vocabulary(target_vocabulary, ["<other>", *target_pieces])
    else:
        _write_marian_vocabulary(vocabulary, [">>fra<<", ">>deu<<", *source_pieces, *target_pieces])
    tokenizer = MarianTokenizer(
        str(source),
        str(target),
        str(vocabulary),
        target_vocab_file=str(target_vocabulary) if separate_vocabularies else None,
        separate_vocabs=separate_vocabularies,
    )
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def write_t5_tokenizer(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spiece.model").write_bytes(_train_sentencepiece(SENTENCES, pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    tokenizer = T5Tokenizer.from_pretrained(str(folder), extra_ids=4)
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def write_bart_tokenizer(folder: Path) -> int:
    return _write_byte_level(folder, BartTokenizer, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])


def write_roberta_tokenizer(folder: Path) -> int:
    return _write_byte_level(folder, RobertaTokenizer, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])


def write_gpt2_tokenizer(folder: Path) -> int:
    return _write_byte_level(folder, GPT2Tokenizer, ["<|endoftext|>"])


def write_bert_tokenizer(folder: Path) -> int:
    return _write_word_piece(folder, BertTokenizer)


def write_distilbert_tokenizer(folder: Path) -> int:
    return _write_word_piece(folder, DistilBertTokenizer)


TOKENIZERS: dict[str, Callable[[Path], int]] = {
    "marian": write_marian_tokenizer,
    "t5": write_t5_tokenizer,
    "bart": write_bart_tokenizer,
    "roberta": write_roberta_tokenizer,
    "gpt2": write_gpt2_tokenizer,
    "bert": write_bert_tokenizer,
    "distilbert": write_distilbert_tokenizer,
}


def _write_byte_level(folder: Path, tokenizer_class: type, special_tokens: list[str]) -> int:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special_tokens,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    return _save(tokenizer_class(vocab=model["vocab"], merges=merges), folder)


def _write_word_piece(folder: Path, tokenizer_class: type) -> int:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = BertTokenizer().backend_tokenizer.normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return _save(tokenizer_class(vocab=tokenizer.get_vocab()), folder)


def _save(tokenizer: BertTokenizer, folder: Path) -> int:
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def _train_sentencepiece(sentences: Iterable[str], **options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=300,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def _pieces(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(index) for index in range(len(processor)) if not processor.is_control(index)]


def _write_marian_vocabulary(path: Path, pieces: Iterable[str]) -> None:
    tokens = dict.fromkeys(["</s>", "<unk>", *pieces, "<pad>"])
    path.write_text(json.dumps({token: index for index, token in enumerate(tokens)}), encoding="utf-8")
