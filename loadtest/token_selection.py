"""`python -m loadtest.token_selection`: the time that the selection of one token takes, without the decoder's run.

Options that need the logits of the whole vocabulary cost the most; all callers of a replica share that time.
"""

from __future__ import annotations

import timeit
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from headwaiter.engine.sampling import Sampling
from headwaiter.engine.sequence import DecodeJob, DecodingParameters, SingleSearch, find_candidates

_VOCABULARY, _REPETITIONS = 65_001, 100
_OPTIONS: dict[str, dict[str, Any]] = {
    "do_sample, top_k 0": {"sampling": Sampling(top_k=0)},
    "do_sample, top_k 500": {"sampling": Sampling(top_k=500)},
    "do_sample, top_p 0.9": {"sampling": Sampling(top_p=0.9)},
    "repetition_penalty 1.3": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size 3": {"no_repeat_ngram_size": 3},
}


def milliseconds(options: dict[str, Any]) -> float:
    """The mean time of one selection."""
    params = DecodingParameters(max_new_tokens=1 << 20, eos_token_ids=frozenset({0}), seed=(0,), **options)
    job, prefix = DecodeJob({}, 0, (1, 2, 3), params), tuple(range(1, 40))
    logits = 3 * np.random.default_rng(0).standard_normal((1, _VOCABULARY)).astype(np.float32)

    def select() -> None:
        assert isinstance(job.search, SingleSearch)
        job.search.select_token(*find_candidates(job, prefix, len(prefix), {"logits": logits}, 0))

    return 1e3 * timeit.timeit(select, number=_REPETITIONS) / _REPETITIONS


def main() -> None:
    table = Table("options", "ms per token", title=f"vocabulary of {_VOCABULARY:,}")
    for name, options in _OPTIONS.items():
        table.add_row(name, f"{milliseconds(options):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
