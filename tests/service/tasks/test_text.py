"""Tokenizers give the same ids and texts as transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from sentencepiece import SentencePieceProcessor
from transformers import AutoTokenizer

from headwaiter.package.preprocessing import TextSettings
from headwaiter.tasks.text import Tokenizer
from headwaiter_export.errors import SourceError
from headwaiter_export.packaging.tokenizers import convert_tokenizer, write_sentencepiece
from tests import tokenizers_kit as kit

pytestmark = pytest.mark.filterwarnings("ignore:.*sacremoses")

TEXTS = {
    "empty": "",
    "space": " ",
    "spaces": "     ",
    "plain": "The kitchen closes at ten.",
    "spaces around": "  The menu, please?   ",
    "spaces inside": "The  menu ,   please ?",
    "contractions": "We don't, it 's, they 've and I 'm ' not ' here .",
    "digits": "12 glasses, 3.50€ (№ 7)",
    "emoji": "a 🍰 for 🙂",
    "emoji joined": "👩‍👩‍👧‍👦 👩🏽‍🍳 🏳️‍🌈 🇫🇷",
    "mixed scripts": "menu меню 菜单 قائمة メニュー",
    "chinese": "厨房十点关门，但是酒吧一直开到半夜。",
    "right to left": "يغلق المطبخ في الساعة العاشرة",
    "direction marks": "\u202eabc\u202c \u200fabc\u200e",
    "combining": "a\u0301e\u0300 u\u0308\u0304 Z\u0351\u0354\u0325",
    "composed and not": "é e\u0301 ﬁ ① Å",
    "korean letters": "\u1112\u1161\u11ab 한",
    "crlf": "one\r\ntwo\r\n\r\nthree\rfour\n",
    "tabs": "\tone\t\ttwo\t",
    "control": "a\x01b\x07c\x1bd\x7fe\x85f",
    "nul": "a\x00b\x00",
    "zero width": "a\u200bb\u200cc\u200dd\ufeffe\u2060f",
    "odd spaces": "a\u00a0b\u2003c\u3000d\u2028e\u2029f",
    "private and unassigned": "\ue000 \U0010ffff \ufffd",
    "metaspace": "▁a ▁ ▁▁b",
    "eos in text": "one</s>two </s> three",
    "pad in text": "<pad><pad> <pad>a<unk> b<mask> c<s>",
    "bert tokens in text": "[CLS] a [SEP]b[PAD] [MASK] [UNK]",
    "gpt tokens in text": "a <|endoftext|>b",
    "sentinels in text": "<extra_id_0> a <extra_id_3>b",
    "broken tokens in text": "< /s> </s <<pad> </S> [sep] <</s>>",
    "language code": ">>fra<< hello",
    "language code, no space": ">>fra<<hello",
    "language code, unknown": ">>xyz<< hello",
    "language code, alone": ">>deu<<",
    "language code, open": ">>fra hello",
    "language code, late": "hello >>fra<< there",
    "language code, after space": " >>fra<< hello",
    "language code, after eos": "</s>>>fra<< hello",
    "language code, twice": ">>fra<< >>deu<< hello",
    "language code, over lines": ">>fra\n<< hello",
    "one long word": "kitchen" * 3000,
    "long": "The waiter's tray, 12 glasses; 厨房十点关门. " * 500,
}

PAIRS = {
    "two": ("The kitchen closes at ten.", "Could you bring us the menu?"),
    "no second": ("The kitchen closes at ten.", None),
    "empty second": ("The kitchen closes at ten.", ""),
    "empty first": ("", "The kitchen"),
    "both empty": ("", ""),
    "space second": ("The kitchen", " "),
    "special tokens": ("a [SEP] b</s>", "</s> c [SEP]"),
    "language codes": (">>fra<< a", ">>deu<< b"),
    "scripts": ("厨房", "المطبخ 🍰"),
}


class Case(NamedTuple):
    reference: Any
    tokenizer: Tokenizer
    target_size: int


def configured(write: Callable[[Path], int], **settings: Any) -> Callable[[Path], int]:
    def write_and_change(folder: Path) -> int:
        size = write(folder)
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))
        return size

    return write_and_change


def legacy(write: Callable[[Path], int], model_type: str) -> Callable[[Path], int]:
    """Write the tokenizer as in older checkpoints: vocabulary files without tokenizer.json."""

    def write_and_split(folder: Path) -> int:
        size = write(folder)
        AutoTokenizer.from_pretrained(folder).backend_tokenizer.model.save(str(folder))
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer_config.json").unlink()
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        return size

    return write_and_split


def t5_without_tokenizer_json(folder: Path) -> int:
    kit.write_t5_tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    return len(AutoTokenizer.from_pretrained(folder))


ADDED_TOKEN = {"content": "cake", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
MARIAN_EXTRA = ["</s></s>", "<pad>a", "ab", "bcd"]
BUILDERS: dict[str, Callable[[Path], int]] = kit.TOKENIZERS | {
    "marian, two vocabularies": partial(kit.write_marian_tokenizer, separate_vocabularies=True),
    "marian, two vocabularies, added": configured(
        partial(kit.write_marian_tokenizer, separate_vocabularies=True),
        added_tokens_decoder={"5": ADDED_TOKEN | {"special": False}},
    ),
    "marian, cleaned": configured(kit.write_marian_tokenizer, clean_up_tokenization_spaces=True),
    "marian, added": configured(kit.write_marian_tokenizer, additional_special_tokens=MARIAN_EXTRA),
    "bert, cleaned": configured(kit.write_bert_tokenizer, clean_up_tokenization_spaces=True, model_max_length=512),
    "t5, cleaned": configured(kit.write_t5_tokenizer, clean_up_tokenization_spaces=True),
    "bart, cleaning ignored": configured(kit.write_bart_tokenizer, clean_up_tokenization_spaces=True),
    "bert, vocab.txt": legacy(kit.write_bert_tokenizer, "bert"),
    "gpt2, vocab and merges": legacy(kit.write_gpt2_tokenizer, "gpt2"),
    "roberta, vocab and merges": legacy(kit.write_roberta_tokenizer, "roberta"),
    "t5, spiece.model": t5_without_tokenizer_json,
}


@pytest.fixture(scope="module", params=BUILDERS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    size = BUILDERS[request.param](source)
    settings = through_json(convert_tokenizer(source, target))
    reference = AutoTokenizer.from_pretrained(source)
    target_size = len(getattr(reference, "target_encoder", range(size)))
    return Case(reference, Tokenizer.open(target, settings), target_size)


def through_json(settings: TextSettings) -> TextSettings:
    adapter: TypeAdapter[TextSettings] = TypeAdapter(TextSettings)
    return adapter.validate_json(settings.model_dump_json())


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_encode_and_decode_match_transformers(case: Case, text: str) -> None:
    assert case.tokenizer.encode(text) == case.reference(text)["input_ids"]
    ids = case.reference(text_target=text)["input_ids"]
    assert case.tokenizer.decode(ids) == case.reference.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(("first", "second"), PAIRS.values(), ids=PAIRS.keys())
def test_encode_pair_matches_transformers(case: Case, first: str, second: str | None) -> None:
    expected = case.reference(first, second)
    ids, segments = case.tokenizer.encode_pair(first, second)
    assert ids == expected["input_ids"]
    assert segments == expected.get("token_type_ids", [0] * len(ids))


@hypothesis.settings(deadline=None)
@given(data=st.data())
def test_encode_any_text_matches_transformers(case: Case, data: st.DataObject) -> None:
    tokens = st.sampled_from([*case.reference.get_vocab(), *MARIAN_EXTRA, ">>", "<<", ">>fra<<", " "])
    text = "".join(data.draw(st.lists(tokens | st.text(max_size=5), max_size=12)))
    assert case.tokenizer.encode(text) == case.reference(text)["input_ids"]


@hypothesis.settings(deadline=None)
@given(data=st.data())
def test_decode_any_ids_matches_transformers(case: Case, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, case.target_size - 1), max_size=30))
    assert case.tokenizer.decode(ids) == case.reference.decode(ids, skip_special_tokens=True)


def test_decode_accepts_any_sequence_type(case: Case) -> None:
    ids = list(range(case.target_size))
    array: Any = np.array(ids)
    assert case.tokenizer.decode(tuple(ids)) == case.tokenizer.decode(array) == case.tokenizer.decode(ids)


def test_encode_pair_numbers_segments(tmp_path: Path) -> None:
    kit.write_bert_tokenizer(tmp_path)
    ids, segments = Tokenizer.open(tmp_path, convert_tokenizer(tmp_path, tmp_path)).encode_pair("the menu", "the bar")
    assert len(ids) == len(segments)
    assert set(segments) == {0, 1}


def test_encode_is_thread_safe(case: Case) -> None:
    texts = list(TEXTS.values()) * 3
    expected = [case.tokenizer.encode(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(case.tokenizer.encode, texts, timeout=60)) == expected


@pytest.mark.parametrize(
    ("builder", "expected"),
    [
        (
            "bert, cleaned",
            {"eos": None, "pad": 0, "unk": 1, "max_length": 512, "segments": True, "cleans_spaces": True},
        ),
        ("bart, cleaning ignored", {"bos": 0, "eos": 2, "max_length": None, "segments": False, "cleans_spaces": False}),
        ("marian", {"eos": 0, "unk": 1, "bos": None, "max_length": 512, "target_model": "source.spm"}),
        ("marian, two vocabularies", {"target_model": "target.spm", "target_vocabulary": "target_vocab.json"}),
    ],
)
def test_convert_tokenizer_writes_settings_and_files(tmp_path: Path, builder: str, expected: dict[str, Any]) -> None:
    BUILDERS[builder](tmp_path)
    target = tmp_path / "target"
    target.mkdir()
    settings = convert_tokenizer(tmp_path, target).model_dump()
    assert settings | expected == settings
    named = {value for key, value in settings.items() if key == "file" or key.endswith(("_model", "_vocabulary"))}
    assert {path.name for path in target.iterdir()} == named


def test_convert_tokenizer_disables_truncation(tmp_path: Path) -> None:
    kit.write_bert_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation": truncation}))
    target = tmp_path / "target"
    target.mkdir()
    tokenizer = Tokenizer.open(target, convert_tokenizer(tmp_path, target))
    assert tokenizer.encode(kit.ENGLISH[0]) == AutoTokenizer.from_pretrained(tmp_path)(kit.ENGLISH[0])["input_ids"]


@pytest.fixture
def argos_model(tmp_path: Path) -> Path:
    kit.write_marian_tokenizer(tmp_path / "marian")
    return tmp_path / "marian" / "source.spm"


def argos_vocabulary(model: Path) -> list[str]:
    processor = SentencePieceProcessor(model_file=str(model))
    return ["<unk>", "<s>", "</s>", *(processor.id_to_piece(index) for index in range(3, len(processor)))]


@pytest.mark.parametrize("appends_eos", [True, False])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_single_sentencepiece_model_encodes_and_decodes(
    tmp_path: Path, argos_model: Path, text: str, appends_eos: bool
) -> None:
    vocabulary = argos_vocabulary(argos_model)
    settings = write_sentencepiece(
        tmp_path, argos_model, vocabulary, eos="</s>", unk="<unk>", bos="<s>", appends_eos=appends_eos
    )
    tokenizer = Tokenizer.open(tmp_path, settings)
    processor = SentencePieceProcessor(model_file=str(argos_model))
    pieces = processor.encode(text, out_type=str)
    expected = [vocabulary.index(piece) if piece in vocabulary else settings.unk for piece in pieces]
    assert tokenizer.encode(text) == expected + [settings.eos] * appends_eos
    known = [piece for piece in pieces if piece in vocabulary[3:]]
    assert tokenizer.decode([settings.bos or 0, *expected, settings.eos]) == processor.decode(known).strip()


def test_write_sentencepiece_invalid_vocabulary_or_model_raises_source_error(tmp_path: Path, argos_model: Path) -> None:
    vocabulary = argos_vocabulary(argos_model)
    with pytest.raises(SourceError, match="lacks <end>"):
        write_sentencepiece(tmp_path, argos_model, vocabulary, eos="<end>", unk="<unk>")
    with pytest.raises(SourceError, match="twice"):
        write_sentencepiece(tmp_path, argos_model, [*vocabulary, "</s>"], eos="</s>", unk="<unk>")
    argos_model.write_bytes(b"no model")
    with pytest.raises(SourceError, match=r"source\.spm"):
        write_sentencepiece(tmp_path, argos_model, vocabulary, eos="</s>", unk="<unk>")


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).write_text(content)


INVALID_CHECKPOINTS = {
    "empty directory": ({}, "tokenizer.json"),
    "bert without vocabulary": ({"config.json": '{"model_type": "bert"}'}, "vocab.txt"),
    "gpt2 without merges": ({"config.json": '{"model_type": "gpt2"}', "vocab.json": '{"a": 0}'}, "merges.txt"),
    "marian without models": ({"config.json": '{"model_type": "marian"}', "vocab.json": '{"<unk>": 0}'}, "source.spm"),
    "truncated tokenizer.json": (
        {"config.json": '{"model_type": "bert"}', "tokenizer.json": '{"model": {'},
        "tokenizer.json",
    ),
    "invalid spiece.model": ({"config.json": '{"model_type": "t5"}', "spiece.model": "invalid"}, "spiece.model"),
    "custom Python tokenizer": (
        {"config.json": '{"model_type": "t5"}', "tokenizer_config.json": '{"tokenizer_class": "ByT5Tokenizer"}'},
        "ByT5Tokenizer",
    ),
}


@pytest.mark.parametrize(("files", "hint"), INVALID_CHECKPOINTS.values(), ids=INVALID_CHECKPOINTS.keys())
def test_convert_tokenizer_invalid_checkpoint_raises_source_error(
    tmp_path: Path, files: dict[str, str], hint: str
) -> None:
    write_files(tmp_path, files)
    with pytest.raises(SourceError) as caught:
        convert_tokenizer(tmp_path, tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


LSTRIP = ADDED_TOKEN | {"content": "</s>", "lstrip": True, "special": True}
UNSUPPORTED = {
    "split_special_tokens": configured(kit.write_marian_tokenizer, split_special_tokens=True),
    "sp_model_kwargs": configured(kit.write_marian_tokenizer, sp_model_kwargs={"enable_sampling": True}),
    "lstrip": configured(kit.write_marian_tokenizer, added_tokens_decoder={"0": LSTRIP}),
    "CodeGenTokenizer": configured(kit.write_gpt2_tokenizer, tokenizer_class="CodeGenTokenizer"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_convert_tokenizer_unsupported_option_raises_source_error(tmp_path: Path, name: str) -> None:
    UNSUPPORTED[name](tmp_path)
    with pytest.raises(SourceError, match=name):
        convert_tokenizer(tmp_path, tmp_path)


def test_convert_tokenizer_missing_directory_raises_source_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not a directory"):
        convert_tokenizer(tmp_path / "missing", tmp_path)


def test_settings_unknown_field_is_rejected() -> None:
    adapter: TypeAdapter[TextSettings] = TypeAdapter(TextSettings)
    with pytest.raises(ValidationError):
        adapter.validate_python({"kind": "tokenizer.json", "file": "tokenizer.json", "colour": "red"})


def test_tasks_import_neither_torch_nor_transformers() -> None:
    script = (
        "import sys, headwaiter.tasks.text, headwaiter.tasks.images\n"
        "sys.exit(', '.join({'torch', 'transformers'} & set(sys.modules)) or 0)"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (process.returncode, process.stderr) == (0, "")
