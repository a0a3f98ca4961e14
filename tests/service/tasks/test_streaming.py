"""Incremental detokenization: emitted text never changes and adds up to the decoded text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers

from headwaiter.package.preprocessing import TextSettings, TokenizerFile
from headwaiter.tasks.streaming import IncrementalDetokenizer
from headwaiter.tasks.text import Tokenizer
from headwaiter_export.packaging.tokenizers import convert_tokenizer, write_sentencepiece
from tests import tokenizers_kit as kit

pytestmark = pytest.mark.filterwarnings("ignore:.*sacremoses")

TEXTS = {
    "empty": "",
    "spaces": "   ",
    "english": "The kitchen closes at ten, but the bar stays open until midnight. We don't take reservations!",
    "spaces before punctuation": "We do n't , it 's , they 've and I 'm ' not ' here . Yes ? No ! n n' 'v 'r ' ' ' '",
    "cascade": "a  ' m b  ' ve c n ' t d ' . e ' , f  '  s",
    "chinese": "厨房十点关门，但是酒吧一直开到半夜。请给我们菜单和一瓶水，好吗？龘靐齉",
    "japanese": "「厨房は十時に閉まります。」と彼は言った。",
    "arabic": "يغلق المطبخ في الساعة العاشرة لكن المقهى يبقى مفتوحا. هل تفهم؟",
    "hindi": "रसोई दस बजे बंद हो जाती है।",
    "korean": "주방은 열 시에 닫지만 바는 자정까지 엽니다.",
    "emoji": "a 🍰 for 🙂! 👩‍👩‍👧‍👦 👩🏽‍🍳 🏳️‍🌈 🇫🇷🇩🇪 🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂",
    "lines": "one\n\ntwo\r\n\tthree\n",
    "replacement": "� a �� b ���� c",
    "quotes only": "' " * 60,
    "dots only": " ." * 60,
    "long": "The waiter's tray, 12 glasses; 厨房十点关门 🍰. " * 20,
}


class Case(NamedTuple):
    tokenizer: Tokenizer
    settings: TextSettings
    size: int
    byte_fallback_ids: range = range(0)

    def stream(self) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(self.tokenizer, self.settings)

    def encode(self, text: str) -> list[int]:
        # With separate vocabularies these are the ids of another text, which are as good for this test.
        return [token % self.size for token in self.tokenizer.encode(text)]


def converted(write: Callable[[Path], int], source: Path, target: Path, *, cleaned: bool = False) -> Case:
    size = write(source)
    settings: TextSettings = convert_tokenizer(source, target)
    settings = settings.model_copy(update={"cleans_spaces": cleaned})
    if settings.kind == "sentencepiece" and settings.target_vocabulary != settings.source_vocabulary:
        size = (target / settings.target_vocabulary).read_text().count(": ")
    return Case(Tokenizer.open(target, settings), settings, size)


def byte_tokens() -> list[str]:
    return [f"<0x{byte:02X}>" for byte in range(256)]


def byte_fallback_file(_source: Path, target: Path, *, cleaned: bool = False) -> Case:
    """Write a tokenizer as of Llama, which decodes a run of byte tokens only if the whole run is valid UTF-8."""
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyzTWI.,!?'", "▁t", "he", "▁the", "▁'", "▁n"]
    vocabulary = ["<unk>", "<s>", "</s>", *byte_tokens(), *letters]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "'"), ("▁", "n")]
    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = RustTokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens(vocabulary[:3])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.save(str(target / "tokenizer.json"))
    settings = TokenizerFile(file="tokenizer.json", segments=False, cleans_spaces=cleaned)
    return Case(Tokenizer.open(target, settings), settings, len(vocabulary), range(3, 259))


def byte_fallback_sentencepiece(source: Path, target: Path) -> Case:
    model = source / "model"
    options: dict[str, Any] = {"byte_fallback": True, "hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2}
    SentencePieceTrainer.train(
        sentence_iterator=iter(kit.ENGLISH), model_prefix=str(model), vocab_size=400, character_coverage=0.98, **options
    )
    model = model.with_suffix(".model")
    processor = SentencePieceProcessor(model_file=str(model))
    vocabulary = [processor.id_to_piece(index) for index in range(len(processor))]
    settings = write_sentencepiece(target, model, vocabulary, eos="</s>", unk="<unk>", bos="<s>")
    return Case(Tokenizer.open(target, settings), settings, len(vocabulary))


SEPARATE = partial(kit.write_marian_tokenizer, separate_vocabularies=True)
BUILDERS: dict[str, Callable[[Path, Path], Case]] = {
    **{name: partial(converted, write) for name, write in kit.TOKENIZERS.items()},
    **{f"{name}, cleaned": partial(converted, write, cleaned=True) for name, write in kit.TOKENIZERS.items()},
    "marian, two vocabularies": partial(converted, SEPARATE),
    "marian, two vocabularies, cleaned": partial(converted, SEPARATE, cleaned=True),
    "byte fallback": byte_fallback_file,
    "byte fallback, cleaned": partial(byte_fallback_file, cleaned=True),
    "byte fallback of sentencepiece": byte_fallback_sentencepiece,
}


@pytest.fixture(scope="module", params=BUILDERS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return BUILDERS[request.param](tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target"))


class CountingTokenizer(Tokenizer):
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.decoded: list[int] = []

    def encode_pair(self, first: str, second: str | None) -> tuple[list[int], list[int]]:
        return self._tokenizer.encode_pair(first, second)

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded.append(len(ids))
        return self._tokenizer.decode(ids)


def check_stream(case: Case, ids: list[int]) -> None:
    stream = case.stream()
    emitted = ""
    for index, token in enumerate(ids, start=1):
        emitted += stream.push(token)
        assert case.tokenizer.decode(ids[:index]).startswith(emitted)
    emitted += stream.finish()
    assert emitted == case.tokenizer.decode(ids)
    assert stream.finish() == ""


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_stream_of_text_equals_decoded_text(case: Case, text: str) -> None:
    check_stream(case, case.encode(text))


@hypothesis.settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_stream_of_any_ids_equals_decoded_text(case: Case, data: st.DataObject) -> None:
    any_id = st.integers(0, case.size - 1)
    few = data.draw(st.lists(any_id, min_size=1, max_size=4))
    check_stream(case, data.draw(st.lists(any_id, max_size=60) | st.lists(st.sampled_from(few), max_size=80)))


@hypothesis.settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_stream_of_spaces_and_punctuation_equals_decoded_text(case: Case, data: st.DataObject) -> None:
    parts = st.sampled_from([" ", "'", "n", "t", "v", "e", "m", ".", ",", "a", "\n", "é", "龘", "🍰", "�", "the "])
    check_stream(case, case.encode("".join(data.draw(st.lists(parts, max_size=60)))))


@pytest.mark.parametrize("text", ["chinese", "emoji", "arabic", "long"])
def test_stream_withholds_only_unstable_suffix(case: Case, text: str) -> None:
    ids = case.encode(TEXTS[text])
    stream = case.stream()
    emitted = ""
    for index, token in enumerate(ids, start=1):
        emitted += stream.push(token)
        withheld = case.tokenizer.decode(ids[:index]).removeprefix(emitted)
        assert token in case.byte_fallback_ids or not withheld.strip(" 'nvr\N{REPLACEMENT CHARACTER}")


def test_stream_decodes_bounded_windows(case: Case) -> None:
    counting = CountingTokenizer(case.tokenizer)
    stream = IncrementalDetokenizer(counting, case.settings)
    ids = case.encode("The waiter's tray held 12 glasses, 3 plates and one small cake. 厨房十点关门。" * 30)
    counting.decoded.clear()
    for token in ids:
        stream.push(token)
    assert max(counting.decoded) <= 48
    assert sum(counting.decoded) <= 48 * len(ids)


def test_stream_partial_character_is_withheld_until_complete(tmp_path: Path) -> None:
    case = converted(kit.write_gpt2_tokenizer, tmp_path / "source", tmp_path)
    ids = case.encode("a🍰b")
    stream = case.stream()
    assert [stream.push(token) for token in ids] == ["a", "", "", "", "🍰", "b"]
    assert stream.finish() == ""


def test_stream_partial_character_is_emitted_by_finish(tmp_path: Path) -> None:
    case = converted(kit.write_gpt2_tokenizer, tmp_path / "source", tmp_path)
    stream = case.stream()
    pieces = [stream.push(token) for token in case.encode("a🍰")[:-1]]
    assert pieces == ["a", "", "", ""]
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("cleaned", "expected"),
    [(False, ["a", " ", "n", "'", "t", " ", "b"]), (True, ["a", "", "", "", "n't", "", " b"])],
)
def test_stream_withholds_spaces_only_if_cleaned(tmp_path: Path, cleaned: bool, expected: list[str]) -> None:
    case = byte_fallback_file(tmp_path, tmp_path, cleaned=cleaned)
    ids = [case.encode("x" + character)[-1] for character in "a▁n't▁b"]
    stream = case.stream()
    assert [stream.push(token) for token in ids] == expected


def test_stream_trailing_no_break_spaces_equal_decoded_text(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    case = byte_fallback_sentencepiece(tmp_path, tmp_path / "target")
    check_stream(case, [*case.encode("a")[:-1], *(3 + byte for byte in "\u00a0\u00a0".encode())])


def test_stream_byte_fallback_run_is_withheld_until_its_end(tmp_path: Path) -> None:
    case = byte_fallback_file(tmp_path, tmp_path)
    stream = case.stream()
    pieces = [stream.push(token) for token in case.encode("a\n🍰a")]
    assert pieces == ["", "a", "", "", "", "", "", "\n🍰a"]
