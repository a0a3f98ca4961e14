"""`python -m loadtest.engine`: the engine beside its peers, on the same weights, the same machine, in one run.

Each contestant lives in a process of its own; they take turns, round after round, so that what else happens on the
machine falls on all alike. Medians, ratios and the answers' closeness to fp32 go to `loadtest/results/`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtest.sentences import sentences
from loadtest.translators import TRANSLATORS

RESULTS = Path(__file__).parent / "results"
_BASELINE = {"fp32": "ctranslate2 fp32", "int8": "ctranslate2 int8"}
_TEXTS = {1: 16, 8: 64, 64: 256}  # how many sentences, for how many at once


class Contestant:
    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        command = [sys.executable, "-m", "loadtest.translators", name, str(threads)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        assert self._read() == "ready"

    def translate(self, texts: list[str], at_once: int, beams: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"texts": texts, "at_once": at_once, "beams": beams}) + "\n")
        self._process.stdin.flush()
        return dict(self._read())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"{self.name} ended early; run `python -m loadtest.translators '{self.name}' 2` to see why"
            )
        return json.loads(line)


@dataclass(frozen=True, slots=True)
class Measured:
    contestant: str
    at_once: int
    beams: int
    sentences_per_second: float
    spread: float  # largest over smallest of the rounds
    chrf: float  # against CTranslate2's fp32 answers with the same beams


def main() -> None:
    options = _options()
    console = Console()
    texts = sentences(256)
    contestants = [Contestant(name, options.threads) for name in TRANSLATORS if options.only in name]
    measured = []
    for beams in options.beams:
        for at_once in options.at_once:
            with console.status(f"beams {beams}, {at_once} at once"):
                measured += _round_robin(contestants, texts[: _TEXTS[at_once]], at_once, beams, options.rounds)
            console.print(_table([m for m in measured if m.beams == beams and m.at_once == at_once]))
    for each in contestants:
        each.close()
    if not options.only:
        _save(measured, options)
        console.print(f"written to {RESULTS / 'engine.json'}")


def _round_robin(
    contestants: list[Contestant], texts: list[str], at_once: int, beams: int, rounds: int
) -> list[Measured]:
    seconds: dict[str, list[float]] = {each.name: [] for each in contestants}
    answers: dict[str, list[str]] = {}
    for each in contestants:
        each.translate(texts[:8], min(at_once, 8), beams)
    for index in range(rounds):
        for each in contestants:
            if each.name.startswith("transformers") and index > 0:
                continue  # it is slow enough to be seen in one round
            answer = each.translate(texts, at_once, beams)
            seconds[each.name].append(answer["seconds"])
            answers[each.name] = answer["texts"]
    reference = answers.get("ctranslate2 fp32") or next(iter(answers.values()))
    return [
        Measured(
            name,
            at_once,
            beams,
            len(texts) / statistics.median(taken),
            max(taken) / min(taken),
            chrf(answers[name], reference),
        )
        for name, taken in seconds.items()
    ]


def chrf(texts: list[str], references: list[str], longest: int = 6, beta: float = 2.0) -> float:
    """Character n-gram F-score over a corpus, spaces left out, from 0 to 100."""
    scores = []
    for size in range(1, longest + 1):
        same = found = wanted = 0
        for text, reference in zip(texts, references, strict=True):
            got, expected = _ngrams(text, size), _ngrams(reference, size)
            same += (got & expected).total()
            found += got.total()
            wanted += expected.total()
        precision, recall = same / max(found, 1), same / max(wanted, 1)
        both = beta**2 * precision + recall
        scores.append((1 + beta**2) * precision * recall / both if both else 0.0)
    return 100 * sum(scores) / len(scores)


def _ngrams(text: str, size: int) -> Counter[str]:
    letters = "".join(text.split())
    return Counter(letters[i : i + size] for i in range(len(letters) - size + 1))


def _table(rows: list[Measured]) -> Table:
    speed = {row.contestant: row.sentences_per_second for row in rows}
    table = Table("contestant", "at once", "beams", "sentences/s", "÷ ctranslate2", "spread", "chrF", box=SIMPLE_HEAD)
    for row in rows:
        base = speed.get(_BASELINE[row.contestant.split()[1]])
        ratio = f"{row.sentences_per_second / base:.2f}" if base else "–"
        rate = f"{row.sentences_per_second:.1f}"
        table.add_row(
            row.contestant, str(row.at_once), str(row.beams), rate, ratio, f"{row.spread:.2f}", f"{row.chrf:.1f}"
        )
    return table


def _save(measured: list[Measured], options: argparse.Namespace) -> None:
    RESULTS.mkdir(exist_ok=True)
    content = {
        "what": "translation, OPUS-MT zh-en, sentences of loadtest/sentences.py",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "threads": options.threads,
            "python": platform.python_version(),
        },
        "rounds": options.rounds,
        "measured": [asdict(each) for each in measured],
    }
    (RESULTS / "engine.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.engine", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each contestant runs")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="for each contestant")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 64], choices=list(_TEXTS))
    parser.add_argument("--only", default="", help="contestants whose name contains this; nothing is written then")
    return parser.parse_args()


if __name__ == "__main__":
    main()
