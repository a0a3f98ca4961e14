"""Runs the decoder graph over cache slots with buffers that are bound once and reused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headwaiter.engine.binding import Binding, host_buffer
from headwaiter.engine.buffers import Layout
from headwaiter.engine.isolation import isolate_failures
from headwaiter.engine.kv_cache import KVCache
from headwaiter.engine.sequence import ActiveSequence
from headwaiter.engine.session import Arrays, Session

_PREFAULTED_TOKENS = 64  # cached tokens per slot whose memory is touched before the first request
_MAX_BINDINGS = 128
_MAX_PREFILL_TOKENS = 1024  # padded prompt tokens per run


class DecoderRunner:
    def __init__(self, session: Session, slots: int, max_length: int) -> None:
        graph = session.package.manifest.graphs["decoder"]
        self.session = session
        self.cache = KVCache(session.package.manifest, session.memory, slots, max_length)
        self.vocabulary = next(int(port.shape[1]) for port in graph.outputs if port.name == "logits")
        self._has_source_lengths = any(port.name == "source_lengths" for port in graph.inputs)
        self._single_token_steps = any(port.name == "tokens" and port.shape[1] == 1 for port in graph.inputs)
        self._tokens = np.zeros((slots, 1), np.int64)
        self._positions = np.zeros(slots, np.int32)
        self._source_lengths = np.zeros(slots, np.int32)
        self._ones = np.ones(slots, np.int32)
        self._total = np.zeros((), np.int32)
        self._k = np.ones(1, np.int64)
        self._logits = session.memory.allocate({"logits": Layout((slots, self.vocabulary), np.float32)})
        self._top_tokens = np.zeros(slots, np.int64)
        self._top_scores = np.zeros(slots, np.float32)
        self._bindings: dict[tuple[int, int, bool], Binding] = {}
        self.cache.past.prefault(min(max_length, _PREFAULTED_TOKENS))

    def resize_sources(self, longest: int, in_use: int) -> None:
        if self.cache.resize_sources(longest, in_use):
            self._bindings.clear()

    def step(
        self, sequences: Sequence[ActiveSequence], k: int, *, return_logits: bool, reduced_threads: bool = False
    ) -> Arrays:
        """Run one decoding step and return `top_tokens` and `top_scores`, of shape [sequences, k].

        With `return_logits` also returns `logits`. The arrays are valid until the next step. `reduced_threads` runs in
        the session with fewer threads.
        """
        k = self._round_up(k)
        for sequence in sequences:
            self._tokens[sequence.slot] = sequence.token
            self._positions[sequence.slot] = sequence.position
            self._source_lengths[sequence.slot] = sequence.job.source_length
        count = len(sequences)
        self._k[0] = k
        self._total[...] = self._positions[:count].max() + 1
        self._cached_binding(count, k, reduced_threads).run()
        self.cache.swap(0, count)
        return {
            **(self._logits.read(count) if return_logits else {}),
            "top_tokens": self._top_tokens[: count * k].reshape(count, k),
            "top_scores": self._top_scores[: count * k].reshape(count, k),
        }

    def step_isolated(
        self, sequences: Sequence[ActiveSequence], k: int, *, return_logits: bool
    ) -> tuple[Arrays, list[tuple[ActiveSequence, Exception]]]:
        """As `step`, after it failed: run parts of the batch, so that only sequences fail that fail alone.

        Returns zeros for the failed sequences. A repeated run writes the same cache entries again.
        """
        k, count = self._round_up(k), len(sequences)
        outputs: Arrays = {"top_tokens": np.zeros((count, k), np.int64), "top_scores": np.zeros((count, k), np.float32)}
        logits = np.zeros((count, self.vocabulary), np.float32)

        def run(part: Sequence[ActiveSequence]) -> None:
            first, last = part[0].slot, part[-1].slot + 1
            self._total[...] = self._positions[first:last].max() + 1
            binding = self._bind_inputs(first, last)
            binding.output("logits", host_buffer(logits[first:last]))
            for name, array in outputs.items():
                binding.output(name, host_buffer(array[first:last]))
            binding.run()
            self.cache.swap(first, last)

        failures = isolate_failures(sequences, run)
        return (outputs | {"logits": logits} if return_logits else outputs), failures

    def _round_up(self, k: int) -> int:
        """Round to a power of two, so that few bindings are needed."""
        return min(1 << (k - 1).bit_length(), self.vocabulary)

    def prefill(self, sequences: Sequence[ActiveSequence], *, reduced_threads: bool = False) -> None:
        """Run all prompt tokens except the last into the cache. The slots must be contiguous and empty."""
        sequences = list(sequences)
        while sequences and max(len(sequence.job.prompt) for sequence in sequences) > 1:
            longest = max(len(sequence.job.prompt) for sequence in sequences) - 1
            batch_size = max(1, _MAX_PREFILL_TOKENS // longest)
            self._prefill_batch(sequences[:batch_size], reduced_threads)
            sequences = sequences[batch_size:]

    def _prefill_batch(self, sequences: Sequence[ActiveSequence], reduced_threads: bool) -> None:
        prompts = [sequence.job.prompt[:-1] for sequence in sequences]
        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        tokens = np.zeros((len(sequences), int(lengths.max())), np.int64)
        for index, prompt in enumerate(prompts):
            tokens[index, : len(prompt)] = prompt
        if self._single_token_steps:
            for column in range(tokens.shape[1]):
                self._prefill_tokens(
                    sequences, tokens[:, column : column + 1], (lengths > column).astype(np.int32), reduced_threads
                )
        elif self.cache.states_in:
            self._prefill_tokens(sequences, tokens, lengths, reduced_threads)
        else:  # a one-token prompt takes part with its only token; the next step overwrites that cache entry
            tokens[lengths == 0, 0] = [
                sequence.job.prompt[0] for sequence in sequences if len(sequence.job.prompt) == 1
            ]
            self._prefill_tokens(sequences, tokens, np.maximum(lengths, 1), reduced_threads)
        for sequence in sequences:
            sequence.position = len(sequence.job.prompt) - 1

    def _prefill_tokens(
        self, sequences: Sequence[ActiveSequence], tokens: np.ndarray, lengths: np.ndarray, reduced_threads: bool
    ) -> None:
        count = len(sequences)
        binding = self.session.binding("decoder", reduced_threads=reduced_threads)
        binding.input("tokens", host_buffer(np.ascontiguousarray(tokens)))
        binding.input("k", host_buffer(np.ones(1, np.int64)))
        binding.input("lengths", host_buffer(lengths))
        binding.input("positions", host_buffer(np.zeros(count, np.int32)))
        binding.input("total", host_buffer(np.array(tokens.shape[1], np.int32)))
        if self._has_source_lengths:
            binding.input(
                "source_lengths",
                host_buffer(np.array([sequence.job.source_length for sequence in sequences], np.int32)),
            )
        binding.output("logits", self._logits.buffer("logits", 0, count))
        binding.output("top_tokens", host_buffer(np.empty((count, 1), np.int64)))
        binding.output("top_scores", host_buffer(np.empty((count, 1), np.float32)))
        first, last = sequences[0].slot, sequences[-1].slot + 1
        self.cache.bind(binding, first, last)
        binding.run()
        self.cache.swap(first, last)

    def _cached_binding(self, count: int, k: int, reduced_threads: bool) -> Binding:
        """Return the binding of the first `count` slots, valid until a buffer is reallocated."""
        if self.cache.slots * k > len(self._top_tokens):
            self._top_tokens = np.zeros(self.cache.slots * k, np.int64)
            self._top_scores = np.zeros(self.cache.slots * k, np.float32)
            self._bindings.clear()
        if (count, k, reduced_threads) not in self._bindings:
            if len(self._bindings) >= _MAX_BINDINGS:
                self._bindings.clear()
            self._bindings[count, k, reduced_threads] = self._create_binding(count, k, reduced_threads)
        return self._bindings[count, k, reduced_threads]

    def _create_binding(self, count: int, k: int, reduced_threads: bool) -> Binding:
        binding = self._bind_inputs(0, count, reduced_threads=reduced_threads)
        binding.output("logits", self._logits.buffer("logits", 0, count))
        binding.output("top_tokens", host_buffer(self._top_tokens[: count * k].reshape(count, k)))
        binding.output("top_scores", host_buffer(self._top_scores[: count * k].reshape(count, k)))
        return binding

    def _bind_inputs(self, first: int, last: int, *, reduced_threads: bool = False) -> Binding:
        """Bind the cache and the inputs of a step for slots `first` to `last` (exclusive)."""
        binding = self.session.binding("decoder", reduced_threads=reduced_threads)
        binding.input("tokens", host_buffer(self._tokens[first:last]))
        binding.input("k", host_buffer(self._k))
        binding.input("lengths", host_buffer(self._ones[first:last]))
        binding.input("positions", host_buffer(self._positions[first:last]))
        binding.input("total", host_buffer(self._total))
        if self._has_source_lengths:
            binding.input("source_lengths", host_buffer(self._source_lengths[first:last]))
        self.cache.bind(binding, first, last)
        return binding
