"""Noisy neighbour: one caller with long documents and expensive options, and short calls beside it."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from headwaiter.client import NO_RETRIES, Client, HeadwaiterError
from loadtest.abuse.good_callers import PAUSED, GoodCallers, good_callers
from loadtest.abuse.scenario import SharedRun, SharedScenario
from loadtest.abuse.statistics import milliseconds
from loadtest.traffic.sample_inputs import chinese_sentences

MAX_RATIO = 2.0
_CHARACTERS = 10_500
_SHORT_TEXT = "你好。"
_ALONE = "alone"
_OPTIONS: dict[str, dict[str, Any]] = {
    "a document of 10,500 characters": {},
    "the document with do_sample and top_k 0": {"do_sample": True, "top_k": 0, "num_beams": 1},
    "the document with repetition_penalty": {"repetition_penalty": 1.3},
    "the document with 8 beams": {"num_beams": 8},
}


def run(abuse: SharedRun) -> None:
    model = abuse.target.model("translation")
    if model is None:
        abuse.add("noisy neighbour", "no translator is served", "one", is_met=False)
        return
    abuse.callers.begin(PAUSED)  # the short calls are measured alone and beside the documents only
    with good_callers(abuse.target.service.grpc, [model], text=_SHORT_TEXT, seed=abuse.options.seed) as short_calls:
        short_calls.measure(_ALONE, abuse.options.scaled(15, 4))
        for name, options in _OPTIONS.items():
            codes = _measure_beside(abuse, short_calls, model, name, options)
            _add(abuse, short_calls, name, codes)
    abuse.callers.measure(abuse.name, abuse.options.scaled(5, 2))


def _measure_beside(
    abuse: SharedRun, short_calls: GoodCallers, model: str, phase: str, options: dict[str, Any]
) -> Counter[str]:
    """Measure the short calls while one caller sends documents."""
    codes: Counter[str] = Counter()
    stopped = threading.Event()
    neighbour = threading.Thread(
        target=_send_documents, args=(abuse.target.service.grpc, model, options, stopped, codes)
    )
    neighbour.start()
    short_calls.measure(phase, abuse.options.scaled(30, 5))
    short_calls.begin(PAUSED)
    stopped.set()
    neighbour.join()
    return codes


def _send_documents(
    address: str, model: str, options: dict[str, Any], stopped: threading.Event, codes: Counter[str]
) -> None:
    sentences = chinese_sentences()
    document = ("".join(sentences) * (1 + _CHARACTERS // len("".join(sentences))))[:_CHARACTERS]
    with Client(address, timeout=20, retries=NO_RETRIES) as client:
        while not stopped.is_set():
            try:
                client.translate(model, document, **options)
                codes["OK"] += 1
            except HeadwaiterError as error:
                codes[error.code] += 1
                stopped.wait(0.2)


def _add(abuse: SharedRun, short_calls: GoodCallers, phase: str, codes: Counter[str]) -> None:
    logs = short_calls.read()
    log, alone = logs.get(phase), logs[_ALONE]
    documents = ", ".join(f"{code} {count:,}" for code, count in codes.most_common())
    if log is None or not log.seconds:
        abuse.add(f"short calls beside {phase}", "none answered", "answered", is_met=False)
        return
    abuse.report.add_count(abuse.name, f"short calls beside {phase}: failed", log.failed)
    ratio = log.median / alone.median
    figures = f"median {milliseconds(log.median)}, {ratio:.1f} × the {milliseconds(alone.median)} alone"
    abuse.add(
        f"short calls beside {phase}",
        f"{figures}; p95 {milliseconds(log.p95)}, alone {milliseconds(alone.p95)}; documents: {documents}",
        "" if abuse.options.is_short else f"median within {MAX_RATIO:g} ×",  # too few calls in a short run
        is_met=abuse.options.is_short or ratio <= MAX_RATIO,
    )


SCENARIO = SharedScenario("noisy neighbour", "long documents and expensive options, and short calls beside them", run)
