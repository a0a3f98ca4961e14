"""Splits text into sentences for translation models, and joins translations with the original layout."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

# Never the last word of a sentence. Capitalised entries match only capitalised words; all languages are merged.
ABBREVIATIONS = {
    "en": "Mr Mrs Ms Dr Prof Rev Hon St Gen Sen Rep Gov Capt Cpt Lt Sgt Col Maj Cmdr Pres Mt vs viz cf e.g i.e",
    "de": "Hr Fr Dipl Ing Hl bzw ca ggf evtl inkl exkl sog vgl zzgl z.b z.t d.h u.a i.d.r o.ä",
    "fr": "MM Mme Mlle Mgr Pr Ste p.ex c.-à-d",
    "es": "Sra Srta Dra Dña Ud Uds p.ej",
    "pt": "Exmo Exma",
    "it": "Sig Sigg Dott Avv",
    "nl": "dhr mevr drs bijv d.w.z",
    "pl": "np inż ul tzw tzn m.in",
    "cs": "např tzv MUDr JUDr",
    "ru": "ул им проф акад гр напр см т.е т.к св",
    "tr": "Doç Sn örn",
    "hi": "डॉ श्री प्रो",
}
# Not the last word of a sentence if a number follows.
BEFORE_NUMBERS = {
    "en": "No Nos art sec ch vol pp fig figs approx Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec",
    "de": "Nr Abs Kap Bd Tel",
    "fr": "n° chap éd env",
    "es": "núm pág págs cap",
    "ru": "стр рис табл гл тел",
}
# These, initials and acronyms such as U.S. end a sentence only if a common first word of a sentence follows.
SELDOM_LAST = "Inc Ltd Co Corp Bros Jr Sr al ed eds Ave Blvd"
SENTENCE_STARTERS = {
    "en": "a an and as at but for from he her his how however i if in it its my no now on one our she so some that the "
    "their then there these they this those to today we what when where which who why with yes you",
    "de": "aber am auch bei das der die ein eine er es für ich ihr im in mit nach sie und was wenn wie wir",
    "fr": "au ce cette dans elle elles en et il ils la le les mais nous on pour qui si un une vous",
    "es": "al con cuando de el ella ellos en es la las los no para pero por que se si su un una y yo",
    "pt": "as com ele ela eles em não os uma",
    "it": "con gli lo ma nel per questo",
    "ru": "а в во все если и из к как мы на не но он она они от по с так там то ты у что это я",
}
# German writes ordinals with a full stop ("am 3. Oktober") and capitalises every noun.
AFTER_ORDINALS = (
    "januar jänner februar märz april mai juni juli august september oktober november dezember jahrhundert "
    "jahrhunderts jahrestag geburtstag klasse stock etage platz mal kapitel bundesliga weltkrieg weltkriegs"
)


def _words(*tables: Iterable[str]) -> frozenset[str]:
    return frozenset(" ".join(chain.from_iterable(tables)).split())


_NEVER_LAST = _words(ABBREVIATIONS.values())
_NOT_BEFORE_NUMBERS = _words(BEFORE_NUMBERS.values())
_SELDOM_LAST = _words([SELDOM_LAST])
_STARTERS = _words(SENTENCE_STARTERS.values())
_AFTER_ORDINALS = _words([AFTER_ORDINALS])

_LETTER = r"[^\W\d_]"
_IDEOGRAPH = r"\u3005-\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003fffd"
_WIDE_STOPS = "。！？｡．؟۔।॥།။።፧։។"
_ALL_STOPS = _WIDE_STOPS + ".!?…‼⁇⁈⁉;\u037e"
_WIDE_COMMAS = "，、；：،؛"
_UNSPACED = re.compile(rf"[{_IDEOGRAPH}。！？｡．，、；：「『（【《〈」』）】》〉]")
_OPENERS = "([{\"'“‘„‚«‹»›「『（【《〈¿¡*_"
_BLANKS = "".join(
    character for character in map(chr, range(0x3001)) if character.isspace() or unicodedata.category(character) == "Cc"
)
_BLANKS += "\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"

_BLANK = rf"[{re.escape(_BLANKS)}]"
_BREAKS = re.compile("([\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+)")
_LIST_MARKERS = re.compile(
    rf"{_BLANK}*"
    r"(?:(?:[-*+•◦▪●○■□‣·–—>]|#{1,6}|\[[ xX]\]|\d{1,3}\.|\(?(?:\d{1,3}|[a-zA-Z])\))(?:[ \u00a0\u3000]+|\Z)"
    r"|(?:\d{1,3}[、．](?!\d)|[①-⑳])[ \u00a0\u3000]*)*"
)
_STOPS = re.compile(
    rf"(?:[{_WIDE_STOPS}.!?…‼⁇⁈⁉]++(?:[ \u00a0\u202f]?[»›](?!\w)|[”’)\]}}」』）】》〉〕］｝＂＇])*+)++"
    r"|(?<=[\u0370-\u03ff\u1f00-\u1fff])[;\u037e]"
)
_QUOTES_BEFORE_BLANK = re.compile(rf"[\"'*_“‘«‹]+(?={_BLANK}|\Z)")
_QUOTATIVE = re.compile(r"と|って")
_LAST_WORD = re.compile(r"\S+\Z")
_NEXT_WORD = re.compile(rf"[{re.escape(_OPENERS + _BLANKS)}–—-]*(\w{{0,40}})(\.?)")
_INITIALS = re.compile(rf"{_LETTER}{{1,2}}(?:\.-?{_LETTER}{{1,2}})+|(?![{_IDEOGRAPH}\uac00-\ud7a3]){_LETTER}")
_LONGEST_WORD = 40  # characters

_CLAUSES = re.compile(rf"[,;:.!?…][”’»)\]\"']*\s+|[{_WIDE_COMMAS}{_WIDE_STOPS}—–]+[”’」』）】》〉]*\s*")
_LONGEST_BREAK = 8  # characters
_SPACES = re.compile(r"\s+")
_IDEOGRAPH_BOUNDARIES = re.compile(rf"(?<=[{_IDEOGRAPH}])(?=\w)|(?<=\w)(?=[{_IDEOGRAPH}])")


@dataclass(frozen=True, slots=True)
class Piece:
    """A sentence, or layout: line breaks, indentation, list markers, spaces and anything without letters or digits."""

    text: str
    translatable: bool


def split(text: str) -> list[Piece]:
    """Split a text into sentences and layout. The concatenated pieces equal the text.

    A line break or a tab always ends a sentence.
    """
    pieces = chain.from_iterable(_split_cell(cell) for cell in _BREAKS.split(text))
    return list(_merge_layout(pieces))


def fit(sentence: str, count: Callable[[str], int], limit: int) -> list[str]:
    """Split a sentence into parts of at most `limit` tokens: after punctuation, else at spaces, else anywhere.

    Calls `count` less than twice per part. A single character that exceeds the limit is returned as one part.
    """
    if limit < 1:
        raise ValueError(f"limit is {limit}; it must be at least 1")
    tokens = count(sentence)
    if tokens <= limit:
        return [sentence]
    position = _split_position(sentence, tokens, limit)
    if position is None:
        return [sentence]
    return fit(sentence[:position], count, limit) + fit(sentence[position:], count, limit)


def split_to_fit(text: str, count: Callable[[str], int], limit: int) -> list[Piece]:
    """As `split`, but sentences of more than `limit` tokens are split into several pieces."""
    pieces = chain.from_iterable(
        chain.from_iterable(_strip_layout(part) for part in fit(piece.text, count, limit))
        if piece.translatable
        else (piece,)
        for piece in split(text)
    )
    return list(_merge_layout(pieces))


def join(pieces: Sequence[Piece], translations: Sequence[str]) -> str:
    """Replace the sentences by their translations.

    A space is inserted between adjacent sentences, or a single space between them removed, as the script of the
    translation requires; all other layout is preserved. Only the end of the previous sentence decides, so the joined
    text does not change while the last translation is still growing.
    """
    expected = sum(piece.translatable for piece in pieces)
    if len(translations) != expected:
        raise ValueError(f"{len(translations)} translations for {expected} sentences")
    remaining = iter(translations)
    texts = [next(remaining) if piece.translatable else piece.text for piece in pieces]
    joined: list[str] = []
    for index, (piece, text) in enumerate(zip(pieces, texts, strict=True)):
        if piece.translatable and index and pieces[index - 1].translatable:
            joined.append(_space_between(texts[index - 1], text))
        is_single_space = text == " " and not piece.translatable and 0 < index < len(texts) - 1
        if not (is_single_space and _ends_unspaced(texts[index - 1])):
            joined.append(text)
    return "".join(joined)


def _split_cell(cell: str) -> Iterator[Piece]:
    markers = _LIST_MARKERS.match(cell)
    start = markers.end() if markers else 0
    yield Piece(cell[:start], False)
    for end in chain(_sentence_ends(cell, start), [len(cell)]):
        yield from _strip_layout(cell[start:end])
        start = end


def _strip_layout(text: str) -> Iterator[Piece]:
    core = text.strip(_BLANKS)
    if not any(map(str.isalnum, core)):
        yield Piece(text, False)
        return
    start = len(text) - len(text.lstrip(_BLANKS))
    yield Piece(text[:start], False)
    yield Piece(core, True)
    yield Piece(text[start + len(core) :], False)


def _merge_layout(pieces: Iterable[Piece]) -> Iterator[Piece]:
    for translatable, run in groupby(pieces, key=lambda piece: piece.translatable):
        if translatable:
            yield from run
        elif layout := "".join(piece.text for piece in run):
            yield Piece(layout, False)


def _sentence_ends(line: str, start: int) -> Iterator[int]:
    quotes, counted = 0, start
    for stop in _STOPS.finditer(line, start):
        end = stop.end()
        quotes += line.count('"', counted, end)
        counted = end
        if closing := _QUOTES_BEFORE_BLANK.match(line, end):
            end = closing.end()
        elif line.startswith('"', end) and quotes % 2:
            end += 1
        if end < len(line) and _ends_sentence(line, stop, end):
            yield end


def _ends_sentence(line: str, stop: re.Match[str], end: int) -> bool:
    start = stop.start()
    before, after = line[start - 1 : start], line[end]
    marks = "".join(character for character in stop.group() if character in _ALL_STOPS)
    if after in _WIDE_COMMAS + ",;:—–":
        return False
    if any(mark in _WIDE_STOPS for mark in marks):
        in_number = marks in ("．", "۔") and before.isdecimal() and after.isdecimal()
        is_quotation = line[end - 1] in "」』" and _QUOTATIVE.match(line, end)
        return not in_number and not is_quotation
    if after not in _BLANKS:
        return marks.strip("!?") in ("", ".") and _is_unspaced(before) and (after == "“" or _is_unspaced(after))
    next_word, dot = _next_word(line, end)
    if _is_lowercase(next_word[:1]) and not next_word[1:2].isupper():
        return False
    return marks != "." or _full_stop_ends_sentence(line[max(start - _LONGEST_WORD, 0) : start], next_word, bool(dot))


def _next_word(line: str, start: int) -> tuple[str, str]:
    match = _NEXT_WORD.match(line, start)
    return (match[1], match[2]) if match else ("", "")


def _is_lowercase(letter: str) -> bool:
    # Georgian letters are lowercase in Unicode but have no titlecase form to begin a sentence with.
    return letter.islower() and letter != letter.title()


def _full_stop_ends_sentence(head: str, next_word: str, dotted: bool) -> bool:
    match = _LAST_WORD.search(head)
    word = match.group().lstrip(_OPENERS) if match else ""
    spellings = {word, word.lower()}
    following = next_word.lower()
    if spellings & _NEVER_LAST:
        return False
    if spellings & _NOT_BEFORE_NUMBERS:
        return not following[:1].isdecimal()
    if word.isdecimal() and len(word) <= 2:
        return not following[:1].isdecimal() and following not in _AFTER_ORDINALS
    if spellings & _SELDOM_LAST or _INITIALS.fullmatch(word):
        return following in _STARTERS and not dotted
    return True


def _is_unspaced(character: str) -> bool:
    return _UNSPACED.match(character) is not None


def _ends_unspaced(text: str) -> bool:
    significant = (char for char in reversed(text) if char.isalnum() or char in ".!?" or _is_unspaced(char))
    return _is_unspaced(next(significant, ""))


def _space_between(left: str, right: str) -> str:
    is_separated = not left or not right or left[-1].isspace() or right[0].isspace()
    return "" if is_separated or _ends_unspaced(left) else " "


def _split_position(sentence: str, tokens: int, limit: int) -> int | None:
    """Return the best position to split a sentence of `tokens` tokens in two, or None if it is a single character.

    Both halves get whole parts of at most `limit` tokens, assuming that tokens are spread evenly over the sentence.
    """
    length = len(sentence)
    fewest = -(-tokens // limit)
    per_part = length * limit / tokens
    for breaks in (_CLAUSES, _SPACES, _IDEOGRAPH_BOUNDARIES):
        for parts in (fewest, fewest + 1):
            left_parts = parts // 2
            ideal = length * left_parts / parts
            first = max(length - (parts - left_parts) * per_part, ideal / 2)
            last = min(left_parts * per_part, (length + ideal) / 2)
            matches = breaks.finditer(sentence, max(int(first) - _LONGEST_BREAK, 0), int(last))
            positions = [
                match.end() for match in matches if match.end() >= first and _can_split_at(sentence, match.end())
            ]
            if positions:
                return min(positions, key=lambda position: abs(position - ideal))
    middle = max(length * (fewest // 2) // fewest, 1)
    nearest_first = chain(range(middle, 0, -1), range(middle + 1, length))
    return next((position for position in nearest_first if _can_split_at(sentence, position)), None)


def _can_split_at(text: str, position: int) -> bool:
    """Whether `position` is inside the text and does not divide a grapheme cluster."""
    if not 0 < position < len(text):
        return False
    before, after = text[position - 1], text[position]
    if unicodedata.category(after)[0] == "M" or unicodedata.category(after) == "Cs":
        return False
    if after in "\u200c\u200d\u2060" or before in "\u200c\u200d\u2060" or unicodedata.combining(before) == 9:
        return False
    if "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f":
        return False
    if "\u1160" <= after <= "\u11ff":
        return False
    return not (_is_flag_letter(after) and _flag_letters_before(text, position) % 2)


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _flag_letters_before(text: str, position: int) -> int:
    start = position
    while start and _is_flag_letter(text[start - 1]):
        start -= 1
    return position - start
