"""Runs the graphs of a decoder over the rows of a cache, in memory that is bound once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.engine.binding import Binding, on_host
from service.engine.cache import RowCache
from service.engine.memory import Layout
from service.engine.sequence import Row
from service.engine.session import Arrays, Session

_TOUCHED = 64  # tokens of each row whose memory is ready before the first request
_BINDINGS_KEPT = 128
_PROMPT_BUDGET = 1024  # padded tokens of prompts in one call


class Stepper:
    def __init__(self, session: Session, rows: int, room: int) -> None:
        graph = session.package.manifest.graphs["decoder"]
        self.session = session
        self.cache = RowCache(session.package.manifest, session.memory, rows, room)
        self.vocabulary = next(int(port.shape[1]) for port in graph.outputs if port.name == "logits")
        self._ragged = any(port.name == "source_lengths" for port in graph.inputs)
        self._one_by_one = any(port.name == "tokens" and port.shape[1] == 1 for port in graph.inputs)
        self._tokens = np.zeros((rows, 1), np.int64)
        self._positions = np.zeros(rows, np.int32)
        self._source_lengths = np.zeros(rows, np.int32)
        self._ones = np.ones(rows, np.int32)
        self._total = np.zeros((), np.int32)
        self._k = np.ones(1, np.int64)
        self._logits = session.memory.rows({"logits": Layout((rows, self.vocabulary), np.float32)})
        self._top_tokens = np.zeros(rows, np.int64)
        self._top_scores = np.zeros(rows, np.float32)
        self._bindings: dict[tuple[int, int, bool], Binding] = {}
        self.cache.past.touch(min(room, _TOUCHED))

    def fit_sources(self, longest: int, in_use: int) -> None:
        if self.cache.fit_sources(longest, in_use):
            self._bindings.clear()

    def step(self, rows: Sequence[Row], k: int, *, all_scores: bool, narrow: bool = False) -> Arrays:
        """Each row's next token goes in; out come the k best, and if asked, all scores. Valid until the next step.
        `narrow`: with a lane's share of the threads."""
        k = min(k, self.vocabulary)
        for row in rows:
            self._tokens[row.slot] = row.token
            self._positions[row.slot] = row.position
            self._source_lengths[row.slot] = row.job.source_length
        count = len(rows)
        self._k[0] = k
        self._total[...] = self._positions[:count].max() + 1
        self._bound(count, k, narrow).run()
        self.cache.swap(0, count)
        return {
            **(self._logits.read(count) if all_scores else {}),
            "top_tokens": self._top_tokens[: count * k].reshape(count, k),
            "top_scores": self._top_scores[: count * k].reshape(count, k),
        }

    def read_prompts(self, rows: Sequence[Row], *, narrow: bool = False) -> None:
        """All of the prompts but their last tokens, onto rows that lie side by side and are empty."""
        rows = list(rows)
        while rows and max(len(row.job.prompt) for row in rows) > 1:
            widest = max(len(row.job.prompt) for row in rows) - 1
            taken = max(1, _PROMPT_BUDGET // widest)
            self._read(rows[:taken], narrow)
            rows = rows[taken:]

    def _read(self, rows: Sequence[Row], narrow: bool) -> None:
        prompts = [row.job.prompt[:-1] for row in rows]
        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        tokens = np.zeros((len(rows), int(lengths.max())), np.int64)
        for index, prompt in enumerate(prompts):
            tokens[index, : len(prompt)] = prompt
        if self._one_by_one:
            for place in range(tokens.shape[1]):
                self._read_tokens(rows, tokens[:, place : place + 1], (lengths > place).astype(np.int32), narrow)
        elif self.cache.held:
            self._read_tokens(rows, tokens, lengths, narrow)
        else:  # a row whose prompt is one token long takes part with it; its next step overwrites what that wrote
            tokens[lengths == 0, 0] = [row.job.prompt[0] for row in rows if len(row.job.prompt) == 1]
            self._read_tokens(rows, tokens, np.maximum(lengths, 1), narrow)
        for row in rows:
            row.position = len(row.job.prompt) - 1

    def _read_tokens(self, rows: Sequence[Row], tokens: np.ndarray, lengths: np.ndarray, narrow: bool) -> None:
        count = len(rows)
        binding = self.session.binding("decoder", narrow=narrow)
        binding.input("tokens", on_host(np.ascontiguousarray(tokens)))
        binding.input("k", on_host(np.ones(1, np.int64)))
        binding.input("lengths", on_host(lengths))
        binding.input("positions", on_host(np.zeros(count, np.int32)))
        binding.input("total", on_host(np.array(tokens.shape[1], np.int32)))
        if self._ragged:
            binding.input("source_lengths", on_host(np.array([row.job.source_length for row in rows], np.int32)))
        binding.output("logits", self._logits.place("logits", 0, count))
        binding.output("top_tokens", on_host(np.empty((count, 1), np.int64)))
        binding.output("top_scores", on_host(np.empty((count, 1), np.float32)))
        first, last = rows[0].slot, rows[-1].slot + 1
        self.cache.bind(binding, first, last)
        binding.run()
        self.cache.swap(first, last)

    def _bound(self, count: int, k: int, narrow: bool) -> Binding:
        """The memory of so many rows, bound once and used as long as it stays where it is."""
        if self.cache.rows * k > len(self._top_tokens):
            self._top_tokens = np.zeros(self.cache.rows * k, np.int64)
            self._top_scores = np.zeros(self.cache.rows * k, np.float32)
            self._bindings.clear()
        if (count, k, narrow) not in self._bindings:
            if len(self._bindings) >= _BINDINGS_KEPT:
                self._bindings.clear()
            self._bindings[count, k, narrow] = self._bind(count, k, narrow)
        return self._bindings[count, k, narrow]

    def _bind(self, count: int, k: int, narrow: bool) -> Binding:
        binding = self.session.binding("decoder", narrow=narrow)
        binding.input("tokens", on_host(self._tokens[:count]))
        binding.input("k", on_host(self._k))
        binding.input("lengths", on_host(self._ones[:count]))
        binding.input("positions", on_host(self._positions[:count]))
        binding.input("total", on_host(self._total))
        if self._ragged:
            binding.input("source_lengths", on_host(self._source_lengths[:count]))
        binding.output("logits", self._logits.place("logits", 0, count))
        binding.output("top_tokens", on_host(self._top_tokens[: count * k].reshape(count, k)))
        binding.output("top_scores", on_host(self._top_scores[: count * k].reshape(count, k)))
        self.cache.bind(binding, 0, count)
        return binding
