"""Word-level tokenizers of artificial languages, in the format of model packages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing

from headwaiter.package.manifest import Preprocessing
from headwaiter.package.preprocessing import TokenizerFile

PAD, BOS, EOS, UNK = range(4)
_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
_FILE = "tokenizer.json"


class WordTokenizer:
    """Maps words to ids, special tokens first. `append_eos` appends the end token to every text."""

    def __init__(self, words: Sequence[str], *, append_eos: bool = False) -> None:
        self.ids = {word: index for index, word in enumerate((*_SPECIAL, *words))}
        self._append_eos = append_eos

    def __len__(self) -> int:
        return len(self.ids)

    def encode(self, text: str) -> list[int]:
        return [self.ids[word] for word in text.split()] + [EOS] * self._append_eos

    def write(self, folder: Path, length: int) -> Preprocessing:
        """Write tokenizer.json and return the preprocessing settings with `length` as maximum length."""
        tokenizer = Tokenizer(WordLevel(self.ids, unk_token=_SPECIAL[UNK]))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_special_tokens(list(_SPECIAL))
        if self._append_eos:
            tokenizer.post_processor = TemplateProcessing(
                single=f"$A {_SPECIAL[EOS]}", special_tokens=[(_SPECIAL[EOS], EOS)]
            )
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / _FILE))
        settings = TokenizerFile(
            file=_FILE,
            pad=PAD,
            bos=BOS,
            eos=EOS,
            unk=UNK,
            max_length=length,
            cleans_spaces=False,
            segments=False,
        )
        return Preprocessing(text=settings)
