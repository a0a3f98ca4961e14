"""Text as it falls is the text of the whole, and nothing given out is ever taken back."""

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

from export.tokenizers import convert_tokenizer, write_sentencepiece
from service.preprocessing import TextSettings, TokenizerFile
from service.tasks.streaming import TextStream
from service.tasks.text import Tokenizer
from tests import tokenizers_kit as kit

pytestmark = pytest.mark.filterwarnings("ignore:.*sacremoses")

TEXTS = {
    "empty": "",
    "spaces": "   ",
    "english": "The kitchen closes at ten, but the bar stays open until midnight. We don't take reservations!",
    "stray spaces": "We do n't , it 's , they 've and I 'm ' not ' here . Yes ? No ! n n' 'v 'r ' ' ' '",
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
    bytes_as_a_whole: range = range(0)

    def stream(self) -> TextStream:
        return TextStream(self.tokenizer, self.settings)

    def encode(self, text: str) -> list[int]:
        # With separate vocabularies these are another text's ids, which serves here as well.
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
    """As Llama's: a run of byte tokens that is not UTF-8 from end to end loses all its characters."""
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


def check(case: Case, ids: list[int]) -> None:
    stream = case.stream()
    given = ""
    for index, token in enumerate(ids, start=1):
        given += stream.push(token)
        assert case.tokenizer.decode(ids[:index]).startswith(given)
    given += stream.finish()
    assert given == case.tokenizer.decode(ids)
    assert stream.finish() == ""


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_real_text_comes_out_whole(case: Case, text: str) -> None:
    check(case, case.encode(text))


@hypothesis.settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_ids_come_out_whole(case: Case, data: st.DataObject) -> None:
    any_id = st.integers(0, case.size - 1)
    few = data.draw(st.lists(any_id, min_size=1, max_size=4))
    check(case, data.draw(st.lists(any_id, max_size=60) | st.lists(st.sampled_from(few), max_size=80)))


@hypothesis.settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_awkward_text_comes_out_whole(case: Case, data: st.DataObject) -> None:
    parts = st.sampled_from([" ", "'", "n", "t", "v", "e", "m", ".", ",", "a", "\n", "é", "龘", "🍰", "�", "the "])
    check(case, case.encode("".join(data.draw(st.lists(parts, max_size=60)))))


@pytest.mark.parametrize("text", ["chinese", "emoji", "arabic", "long"])
def test_only_loose_ends_are_held_back(case: Case, text: str) -> None:
    ids = case.encode(TEXTS[text])
    stream = case.stream()
    given = ""
    for index, token in enumerate(ids, start=1):
        given += stream.push(token)
        held = case.tokenizer.decode(ids[:index]).removeprefix(given)
        assert token in case.bytes_as_a_whole or not held.strip(" 'nvr\N{REPLACEMENT CHARACTER}")


def test_windows_stay_small(case: Case) -> None:
    counting = CountingTokenizer(case.tokenizer)
    stream = TextStream(counting, case.settings)
    ids = case.encode("The waiter's tray held 12 glasses, 3 plates and one small cake. 厨房十点关门。" * 30)
    counting.decoded.clear()
    for token in ids:
        stream.push(token)
    assert max(counting.decoded) <= 48
    assert sum(counting.decoded) <= 48 * len(ids)


def test_half_a_character_waits_for_the_other_half(tmp_path: Path) -> None:
    case = converted(kit.write_gpt2_tokenizer, tmp_path / "source", tmp_path)
    ids = case.encode("a🍰b")
    stream = case.stream()
    assert [stream.push(token) for token in ids] == ["a", "", "", "", "🍰", "b"]
    assert stream.finish() == ""


def test_a_cut_off_character_comes_at_the_end(tmp_path: Path) -> None:
    case = converted(kit.write_gpt2_tokenizer, tmp_path / "source", tmp_path)
    stream = case.stream()
    pieces = [stream.push(token) for token in case.encode("a🍰")[:-1]]
    assert pieces == ["a", "", "", ""]
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("cleaned", "expected"),
    [(False, ["a", " ", "n", "'", "t", " ", "b"]), (True, ["a", "", "", "", "n't", "", " b"])],
)
def test_spaces_wait_only_where_they_may_go(tmp_path: Path, cleaned: bool, expected: list[str]) -> None:
    case = byte_fallback_file(tmp_path, tmp_path, cleaned=cleaned)
    ids = [case.encode("x" + character)[-1] for character in "a▁n't▁b"]
    stream = case.stream()
    assert [stream.push(token) for token in ids] == expected


def test_a_blank_waits_for_what_follows_it(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    case = byte_fallback_sentencepiece(tmp_path, tmp_path / "target")
    check(case, [*case.encode("a")[:-1], *(3 + byte for byte in "\u00a0\u00a0".encode())])


def test_a_run_of_bytes_waits_for_its_end(tmp_path: Path) -> None:
    case = byte_fallback_file(tmp_path, tmp_path)
    stream = case.stream()
    pieces = [stream.push(token) for token in case.encode("a\n🍰a")]
    assert pieces == ["", "a", "", "", "", "", "", "\n🍰a"]
