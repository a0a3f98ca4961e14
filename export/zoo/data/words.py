"""Tokenizers for made-up languages: a word is a token, in the form that packages carry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing

from service.package import Preprocessing
from service.preprocessing import TokenizerFile

PAD, START, END, UNKNOWN = range(4)
_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
_FILE = "tokenizer.json"


class Words:
    """Ids of words, the special ones first. `ends` puts the end's token after every text."""

    def __init__(self, words: Sequence[str], *, ends: bool = False) -> None:
        self.ids = {word: index for index, word in enumerate((*_SPECIAL, *words))}
        self._ends = ends

    def __len__(self) -> int:
        return len(self.ids)

    def encode(self, text: str) -> list[int]:
        return [self.ids[word] for word in text.split()] + [END] * self._ends

    def write(self, folder: Path, length: int) -> Preprocessing:
        tokenizer = Tokenizer(WordLevel(self.ids, unk_token=_SPECIAL[UNKNOWN]))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_special_tokens(list(_SPECIAL))
        if self._ends:
            tokenizer.post_processor = TemplateProcessing(
                single=f"$A {_SPECIAL[END]}", special_tokens=[(_SPECIAL[END], END)]
            )
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / _FILE))
        settings = TokenizerFile(
            file=_FILE,
            pad=PAD,
            bos=START,
            eos=END,
            unk=UNKNOWN,
            max_length=length,
            cleans_spaces=False,
            segments=False,
        )
        return Preprocessing(text=settings)
