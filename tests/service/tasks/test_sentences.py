"""Sentence splitting and joining: no text is lost, layout is preserved, long sentences are split."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter.tasks.sentences import Piece, fit, join, split, split_to_fit

SENTENCES: dict[str, tuple[str, list[str]]] = {
    "two": ("The server crashed. We restarted it.", ["The server crashed.", "We restarted it."]),
    "no stop at the end": ("It works. Mostly", ["It works.", "Mostly"]),
    "marks": ("What?! No way!!! Oh… Fine.", ["What?!", "No way!!!", "Oh…", "Fine."]),
    "titles": ("Mr. Smith met Dr. Jones. Mrs. Lee left.", ["Mr. Smith met Dr. Jones.", "Mrs. Lee left."]),
    "titles in brackets": ("Both (Mr. Smith and Prof. Lee) came.", ["Both (Mr. Smith and Prof. Lee) came."]),
    "e.g. and i.e.": (
        "Use a model, e.g. Marian, i.e. OPUS. It is small.",
        ["Use a model, e.g. Marian, i.e. OPUS.", "It is small."],
    ),
    "U.S.": (
        "The U.S. Senate met. He left the U.S. He flew.",
        ["The U.S. Senate met.", "He left the U.S.", "He flew."],
    ),
    "initials": ("J. R. R. Tolkien and J.K. Rowling write.", ["J. R. R. Tolkien and J.K. Rowling write."]),
    "plan B": ("That was plan B. It failed.", ["That was plan B.", "It failed."]),
    "companies": (
        "Acme Inc. CEO Ann spoke. She left Acme Inc. The shares fell.",
        ["Acme Inc. CEO Ann spoke.", "She left Acme Inc.", "The shares fell."],
    ),
    "clock": (
        "We open at 9 a.m. and close at 5 p.m. The bar stays.",
        ["We open at 9 a.m. and close at 5 p.m.", "The bar stays."],
    ),
    "number": ("See No. 5 on p. 12, Fig. 3. No. I won't.", ["See No. 5 on p. 12, Fig. 3.", "No.", "I won't."]),
    "dates": ("On Jan. 5 we opened. Then Feb. 6 came.", ["On Jan. 5 we opened.", "Then Feb. 6 came."]),
    "etc.": (
        "Cups, plates, etc. are here. Cups etc. We pay.",
        ["Cups, plates, etc. are here.", "Cups etc.", "We pay."],
    ),
    "decimals": ("Pi is 3.14. It was 3.5 in 1.0.2.", ["Pi is 3.14.", "It was 3.5 in 1.0.2."]),
    "years": ("It was 2019. 2020 was worse.", ["It was 2019.", "2020 was worse."]),
    "addresses": (
        "See https://a.example/x.html?q=1. Write to j.doe@mail.example.com. Open C:\\a.txt or ./b.tar.gz. Done.",
        [
            "See https://a.example/x.html?q=1.",
            "Write to j.doe@mail.example.com.",
            "Open C:\\a.txt or ./b.tar.gz.",
            "Done.",
        ],
    ),
    "ellipsis": ("Well... maybe. Wait... What?", ["Well... maybe.", "Wait...", "What?"]),
    "quotes": (
        'He said "Go." Then he went. “Stop!” she cried. “Why?” He ran.',
        ['He said "Go."', "Then he went.", "“Stop!” she cried.", "“Why?”", "He ran."],
    ),
    "quote inside": ('He asked "really?". None knew.', ['He asked "really?".', "None knew."]),
    "brackets": (
        "It rained. (It often does.) We left [at ten.] Yes.",
        ["It rained.", "(It often does.)", "We left [at ten.]", "Yes."],
    ),
    "acronym in brackets": ("The States (U.S.). Rain fell.", ["The States (U.S.).", "Rain fell."]),
    "small letters": ("Yahoo! is a firm. iPhone sales rose.", ["Yahoo! is a firm.", "iPhone sales rose."]),
    "ordinal": ("He came 1st. 5th place is mine.", ["He came 1st.", "5th place is mine."]),
    "apostrophes": ("It's Ann's. Don't!", ["It's Ann's.", "Don't!"]),
    "markdown": ("**Stop.** Then _go._ Now.", ["**Stop.**", "Then _go._", "Now."]),
    "german": (
        "Am 3. Oktober kam Hr. Müller, z. B. mit Dr. Weiß. „Komm!“, rief er. „Nein!“ Er ging bzw. Anna ging.",
        [
            "Am 3. Oktober kam Hr. Müller, z. B. mit Dr. Weiß.",
            "„Komm!“, rief er.",
            "„Nein!“",
            "Er ging bzw. Anna ging.",
        ],
    ),
    "german arrows": ("»Komm!« rief sie. Er kam.", ["»Komm!« rief sie.", "Er kam."]),
    "french": (
        "Il a dit : « Viens ! » Puis M. Dupont est parti. Pourquoi ? Mme. Lune sait !",
        ["Il a dit : « Viens ! »", "Puis M. Dupont est parti.", "Pourquoi ?", "Mme. Lune sait !"],
    ),
    "french narrow spaces": ("Quoi\u202f? Oui\u00a0! Non.", ["Quoi\u202f?", "Oui\u00a0!", "Non."]),
    "spanish": (
        "¿Qué tal? ¡Bien! El Sr. López vive en EE.UU. desde 2010. La Sra. Ruiz no.",
        ["¿Qué tal?", "¡Bien!", "El Sr. López vive en EE.UU. desde 2010.", "La Sra. Ruiz no."],
    ),
    "italian": ("Il Sig. Rossi è qui. È tardi.", ["Il Sig. Rossi è qui.", "È tardi."]),
    "polish": ("Weź np. Jabłko. Dobrze.", ["Weź np. Jabłko.", "Dobrze."]),
    "czech date": ("Narozen 12. 5. 1990 v Praze. Žije tam.", ["Narozen 12. 5. 1990 v Praze.", "Žije tam."]),
    "russian": (
        "А. С. Пушкин жил на ул. Мойка. Он писал, т.е. Работал. Это был я. Он ушёл.",
        ["А. С. Пушкин жил на ул. Мойка.", "Он писал, т.е. Работал.", "Это был я.", "Он ушёл."],
    ),
    "russian speech": ("— Стой! — сказал он. — Куда?", ["Стой! — сказал он.", "— Куда?"]),
    "greek": ("Τι κάνεις; Καλά. Ο κ. Παππάς ήρθε.", ["Τι κάνεις;", "Καλά.", "Ο κ. Παππάς ήρθε."]),
    "chinese": ("厨房十点关门。酒吧开到半夜！好吗？好", ["厨房十点关门。", "酒吧开到半夜！", "好吗？", "好"]),
    "chinese quotes": (
        "他说：“走吧。”然后他走了。“你是谁？”她问。“真的吗？”，他问。",
        ["他说：“走吧。”", "然后他走了。", "“你是谁？”", "她问。", "“真的吗？”，他问。"],
    ),
    "chinese opening quote": ("他走了。“再见。”", ["他走了。", "“再见。”"]),
    "chinese plain quotes": ('他走了。"你好。"她说。', ["他走了。", '"你好。"', "她说。"]),
    "chinese plain marks": ("真的吗?“是的.”", ["真的吗?", "“是的.”"]),
    "chinese brackets": ("他来了（真的！）。我……不知道。", ["他来了（真的！）。", "我……不知道。"]),
    "chinese with latin": (
        "版本3.14已发布!真的吗?是的.请看https://a.example。OK。",
        ["版本3.14已发布!", "真的吗?", "是的.", "请看https://a.example。", "OK。"],
    ),
    "japanese": (
        "「はい。」と彼は言った。今日は暑い！そうですね。『本当？』って聞いた。",
        ["「はい。」と彼は言った。", "今日は暑い！", "そうですね。", "『本当？』って聞いた。"],
    ),
    "wide numbers": ("円周率は３．１４です．次．", ["円周率は３．１４です．", "次．"]),
    "korean": ("네. 알겠습니다. 그래요?", ["네.", "알겠습니다.", "그래요?"]),
    "arabic": ("قال د. أحمد إنه سعيد. هل تفهم؟ نعم!", ["قال د. أحمد إنه سعيد.", "هل تفهم؟", "نعم!"]),
    "urdu": ("یہ اچھا ہے۔ کیا حال ہے؟", ["یہ اچھا ہے۔", "کیا حال ہے؟"]),
    "hindi": ("डॉ. शर्मा आए। आप कैसे हैं? ठीक।", ["डॉ. शर्मा आए।", "आप कैसे हैं?", "ठीक।"]),
    "hebrew": ("שלום. מה נשמע?", ["שלום.", "מה נשמע?"]),
    "armenian": ("Բարեւ։ Ինչպես ես։", ["Բարեւ։", "Ինչպես ես։"]),
    "amharic": ("ሰላም። እንዴት ነህ፧", ["ሰላም።", "እንዴት ነህ፧"]),
    "georgian": ("გამარჯობა. როგორ ხარ?", ["გამარჯობა.", "როგორ ხარ?"]),
    "thai": ("สวัสดี ขอบคุณ", ["สวัสดี ขอบคุณ"]),
    "lists": ("- one\n- two\n\n1. three\n2) four\n• five\n\t* six", ["one", "two", "three", "four", "five", "six"]),
    "more lists": (
        "> quoted\n## Title\n- [x] done\n(a) first\n1、苹果\n①梨",
        ["quoted", "Title", "done", "first", "苹果", "梨"],
    ),
    "list with tabs": ("1.\tone\n-\ttwo", ["one", "two"]),
    "negative number": ("-5 degrees", ["-5 degrees"]),
    "lines": ("One\r\ntwo\r\n\r\n  three.\n", ["One", "two", "three."]),
    "columns": ("Name\tAge\nAnn\t5", ["Name", "Age", "Ann", "5"]),
    "emoji": ("Hi! 🙂 Fine 👍. 🙂🙂", ["Hi!", "🙂 Fine 👍."]),
    "only emoji": ("🙂 👩‍👩‍👧‍👦", []),
    "only marks": ("... ?! --- *** 。", []),
    "empty": ("", []),
    "blank": (" \t\r\n\u3000\u00a0\u200b\ufeff\x00\x07\x1b", []),
    "control": ("\x00one\x07two.\x00 Three.\x1b", ["one\x07two.", "Three."]),
    "direction marks": ("\u200fשלום.\u200f מה?\u200e", ["שלום.", "מה?"]),
}


def sentences(text: str) -> list[str]:
    return [piece.text for piece in split(text) if piece.translatable]


@pytest.mark.parametrize(("text", "expected"), SENTENCES.values(), ids=SENTENCES.keys())
def test_split_finds_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected
    assert "".join(piece.text for piece in split(text)) == text


def test_split_separates_layout_from_sentences() -> None:
    assert split("  - One.  Two.\r\n\r\n\tThree") == [
        Piece("  - ", False),
        Piece("One.", True),
        Piece("  ", False),
        Piece("Two.", True),
        Piece("\r\n\r\n\t", False),
        Piece("Three", True),
    ]


MARKS = [".", "!", "?", "…", "。", "؟", "।", "”", "“", "」", "）", ")", "»", ",", "，", "'", '"', "-", "1.", "•", "▁"]
WORDS = ["Mr", "U.S", "e.g", "3", "14", "The", "word", "我", "と", "🙂", "🇫"]
FRAGMENTS = st.sampled_from([*MARKS, *WORDS, *" \t\n\r\x00\u200d\u0301", "  ", "\r\n"])
MIXED_TEXT = st.lists(FRAGMENTS | st.text(max_size=3), max_size=40).map("".join)


@given(text=MIXED_TEXT | st.text(st.characters()))
def test_split_loses_no_character(text: str) -> None:
    pieces = split(text)
    assert "".join(piece.text for piece in pieces) == text
    for piece in pieces:
        assert piece.text
        if piece.translatable:
            assert any(map(str.isalnum, piece.text))
            assert piece.text == piece.text.strip()
            assert len(piece.text.splitlines()) == 1
    layout = [not piece.translatable for piece in pieces]
    assert not any(map(min, layout, layout[1:]))


@pytest.mark.parametrize(
    "unit", ["a. ", "A. ", "。", '。"', ".", " ", '"', "- ", "1. ", "！」", "» ", "x", "字", "\n", "?! (", "'"]
)
def test_split_long_line_takes_linear_time(unit: str) -> None:
    text = unit * (300_000 // len(unit))
    started = time.process_time()
    assert "".join(piece.text for piece in split(text)) == text
    assert time.process_time() - started < 10


JOINED: dict[str, tuple[str, list[str], str]] = {
    "spaces stay": ("One.  Two. Three.", ["Un.", "Deux.", "Trois."], "Un.  Deux. Trois."),
    "into chinese": ("One. Two.\n Three.", ["一。", "二。", "三。"], "一。二。\n 三。"),
    "into chinese, two spaces": ("One.  Two.", ["一。", "二。"], "一。  二。"),
    "into chinese with latin": ("I use Go. Go is fast.", ["我用Go。", "Go很快。"], "我用Go。Go很快。"),
    "into chinese, latin end": ("I use Go. Fine.", ["我用Go.", "好。"], "我用Go. 好。"),
    "german quotes": ("One. Two.", ["„Eins!“", "Zwei."], "„Eins!“ Zwei."),
    "into japanese": ("“Yes.” He left.", ["「はい。」", "彼は去った。"], "「はい。」彼は去った。"),
    "from chinese": ("一。二。三", ["One.", "Two.", "Three"], "One. Two. Three"),
    "from chinese, lines": ("一。\n　二！三。", ["One.", "Two!", "Three."], "One.\n　Two! Three."),
    "from chinese into thai": ("一。二。", ["หนึ่ง", "สอง"], "หนึ่ง สอง"),
    "from chinese into arabic": ("一？二。", ["واحد؟", "اثنان."], "واحد؟ اثنان."),
    "chinese to japanese": ("一。二。", ["一つ。", "二つ。"], "一つ。二つ。"),
    "into chinese, plain marks": ("Really? Yes.", ["真的?", "是的."], "真的? 是的."),
    "korean keeps spaces": ("One. Two.", ["하나.", "둘."], "하나. 둘."),
    "empty translation": ("一。二。三。", ["One.", "", "Three."], "One.Three."),
    "trailing space": ("一。二。", ["One. ", "Two."], "One. Two."),
    "lists": ("- One.\r\n\t1. Two. 🙂\r\n", ["Un.", "Deux."], "- Un.\r\n\t1. Deux. 🙂\r\n"),
    "no sentence": (" \n ", [], " \n "),
    "quoting chinese": ("A. The B.", ["The word is 你好.", "Yes."], "The word is 你好. Yes."),
}


@pytest.mark.parametrize(("text", "translations", "expected"), JOINED.values(), ids=JOINED.keys())
def test_join_adapts_spaces_to_script(text: str, translations: list[str], expected: str) -> None:
    assert join(split(text), translations) == expected


def test_join_missing_translation_raises_value_error() -> None:
    with pytest.raises(ValueError, match="1 translations for 2 sentences"):
        join(split("One. Two."), ["Un."])


@given(text=MIXED_TEXT)
def test_join_preserves_layout(text: str) -> None:
    pieces = split(text)
    joined = join(pieces, ["Word." for piece in pieces if piece.translatable])
    assert joined.replace("Word.", "").replace(" ", "") == "".join(
        piece.text for piece in pieces if not piece.translatable
    ).replace(" ", "")


@given(text=MIXED_TEXT, data=st.data())
def test_join_of_partial_translations_is_prefix(text: str, data: st.DataObject) -> None:
    pieces = split(text)
    indices = [index for index, piece in enumerate(pieces) if piece.translatable]
    hypothesis.assume(indices)
    translation = st.sampled_from(["Go.", "Go很快。", "「はい。」", "好", "", " x ", "真的?"])
    translations = data.draw(st.lists(translation, min_size=len(indices), max_size=len(indices)))
    last = data.draw(st.integers(0, len(indices) - 1))
    partial = translations[last][: data.draw(st.integers(0, 3))]
    assert join(pieces, translations).startswith(join(pieces[: indices[last] + 1], [*translations[:last], partial]))


class CallCounter:
    """Counts the calls of a token-counting function."""

    def __init__(self, count_tokens: Callable[[str], int]) -> None:
        self._count_tokens = count_tokens
        self.calls = 0

    def __call__(self, text: str) -> int:
        self.calls += 1
        return self._count_tokens(text)


def by_characters(text: str) -> int:
    return len(text)


def by_words(text: str) -> int:
    return sum(-(-len(word) // 4) for word in text.split()) + 1


def by_bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass")) + 1


FITTED: dict[str, tuple[str, int, list[str]]] = {
    "fits": ("one, two", 8, ["one, two"]),
    "comma": ("The kitchen closes, but the bar stays open", 30, ["The kitchen closes, ", "but the bar stays open"]),
    "not in a number": ("It cost exactly 1,000 coins, I think so", 30, ["It cost exactly 1,000 coins, ", "I think so"]),
    "clock": ("We all met there at 10:30 in the morning", 30, ["We all met there at ", "10:30 in the morning"]),
    "space": ("one two three four", 10, ["one two ", "three four"]),
    "chinese": ("厨房十点关门，但是酒吧一直开到半夜", 12, ["厨房十点关门，", "但是酒吧一直开到半夜"]),
    "chinese, no comma": ("厨房十点关门但是酒吧", 6, ["厨房十点关", "门但是酒吧"]),
    "chinese, latin word": ("我们都用TensorFlow写", 12, ["我们都用", "TensorFlow写"]),
    "arabic": ("واحد اثنان، ثلاثة أربعة", 14, ["واحد اثنان، ", "ثلاثة أربعة"]),
    "one word": ("abcdefghij", 4, ["abc", "def", "ghij"]),
    "family": ("👩‍👩‍👧‍👦👩‍👩‍👧‍👦", 8, ["👩‍👩‍👧‍👦", "👩‍👩‍👧‍👦"]),
    "flags": ("🇫🇷🇩🇪🇪🇸", 4, ["🇫🇷", "🇩🇪🇪🇸"]),
    "accents": ("e\u0301e\u0301e\u0301", 4, ["e\u0301", "e\u0301e\u0301"]),
    "character above limit": ("a👩‍👩‍👧‍👦b", 3, ["a", "👩‍👩‍👧‍👦", "b"]),
    "modifiers and selectors": ("👍🏽👍🏽❤️❤️", 4, ["👍🏽👍🏽", "❤️❤️"]),
    "empty": ("", 1, [""]),
}


@pytest.mark.parametrize(("text", "limit", "expected"), FITTED.values(), ids=FITTED.keys())
def test_fit_splits_at_best_position(text: str, limit: int, expected: list[str]) -> None:
    assert fit(text, by_characters, limit) == expected


CLUSTERS = st.sampled_from(
    ["a", "b", " ", ", ", "我", "，", "e\u0301", "👩‍👩‍👧‍👦", "🇫🇷", "👍🏽", "한", "क्ष", "か\u3099", "1,0"]
)


@hypothesis.settings(deadline=None)
@given(
    clusters=st.lists(CLUSTERS, max_size=120),
    limit=st.integers(1, 60),
    count_tokens=st.sampled_from([by_characters, by_words, by_bytes]),
)
def test_fit_parts_are_within_limit(clusters: list[str], limit: int, count_tokens: Callable[[str], int]) -> None:
    count = CallCounter(count_tokens)
    parts = fit("".join(clusters), count, limit)
    assert "".join(parts) == "".join(clusters)
    assert count.calls == 2 * len(parts) - 1
    assert all(count_tokens(part) <= limit or is_one_character(part) for part in parts)
    assert not any(unicodedata.combining(part[0]) or part[0] in "\u200d🏽" for part in parts if part)


def is_one_character(part: str) -> bool:
    return len(part) == 1 or part in CLUSTER_TEXTS


CLUSTER_TEXTS = {"e\u0301", "👩‍👩‍👧‍👦", "🇫🇷", "👍🏽", "क्ष", "か\u3099"}


@hypothesis.settings(deadline=None)
@given(
    words=st.lists(
        st.sampled_from(["a", "the", "kitchen", "closes,", "reservations", "it;"]), min_size=60, max_size=400
    )
)
def test_fit_gives_few_and_even_parts(words: list[str]) -> None:
    text = " ".join(words)
    limit = 50
    parts = fit(text, by_words, limit)
    fewest = -(-by_words(text) // limit)
    assert len(parts) <= 2 * fewest
    assert min(map(by_words, parts)) >= limit // 8


def test_fit_long_text_calls_count_linearly() -> None:
    text = "字，" * 100_000
    count = CallCounter(by_characters)
    parts = fit(text, count, 100)
    assert "".join(parts) == text
    assert len(parts) <= 3000
    assert count.calls < 2 * len(parts)


@pytest.mark.parametrize("limit", [0, -1])
def test_fit_limit_below_one_raises_value_error(limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        fit("text", by_characters, limit)


def test_split_to_fit_splits_long_sentences() -> None:
    pieces = split_to_fit("厨房十点关门，但是酒吧一直开到半夜。好。\n- one two three four", by_characters, 12)
    assert [piece.text for piece in pieces if piece.translatable] == [
        "厨房十点关门，",
        "但是酒吧一直开到半夜。",
        "好。",
        "one two",
        "three four",
    ]
    translations = ["The kitchen closes at ten,", "the bar at midnight.", "Good.", "un deux", "trois quatre"]
    expected = "The kitchen closes at ten, the bar at midnight. Good.\n- un deux trois quatre"
    assert join(pieces, translations) == expected


@given(text=MIXED_TEXT, limit=st.integers(1, 20))
def test_split_to_fit_loses_no_character(text: str, limit: int) -> None:
    assert "".join(piece.text for piece in split_to_fit(text, by_characters, limit)) == text
