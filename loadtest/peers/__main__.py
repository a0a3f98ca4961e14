"""`python -m loadtest.peers`: compare Headwaiter with other servers of the same models on the same machine.

Each peer has a directory with its own pinned environment, which is built on first use. All servers are measured by the
same client in interleaved rounds, every other round in reverse order: startup, one client, saturation, the highest rate
of Poisson arrivals with p99 within the limit, and the latency at 80 % of that rate. Results are written to
loadtest/results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import locust  # noqa: F401 - first, because it monkey-patches blocking calls with gevent
from rich.console import Console

from loadtest.peers.benchmark_models import BENCHMARK_MODELS, BenchmarkModel, prepare
from loadtest.peers.comparison import content, make_table, rows
from loadtest.peers.measure import ServerMeasurement, measure
from loadtest.peers.servers import BenchmarkServer, PeerError, peer_names, servers
from loadtest.results_file import FOLDER
from loadtest.traffic.cli_options import count, positive
from loadtest.traffic.transports import configure_gevent

_QUICK = {"rounds": 1, "seconds": 6.0, "models": ["opus-mt-zh-en", "vit-small"], "out": Path("build/peers/quick.json")}


def main() -> None:
    options, console = _options(), Console()
    configure_gevent()
    try:
        run = Run(options, console, servers(options.peers))
    except PeerError as error:
        sys.exit(str(error))
    run.build()
    for name in options.models:
        run.compare(BENCHMARK_MODELS[name])
    console.print(f"Written: {options.out}")
    sys.exit(1 if run.failed else 0)


class Run:
    """One run of the comparison; a server that fails is reported and dropped, the others continue."""

    def __init__(self, options: argparse.Namespace, console: Console, all_servers: list[BenchmarkServer]) -> None:
        self.failed: set[str] = set()
        self._options, self._console, self._servers = options, console, all_servers

    def build(self) -> None:
        for server in self._servers:
            self._report_progress(f"{server.name}: building the environment")
            with self._drop_on_failure(server):
                server.build()

    def compare(self, benchmark_model: BenchmarkModel) -> None:
        self._report_progress(f"{benchmark_model.name}: preparing the weights")
        prepare(benchmark_model)
        supporting = [candidate for candidate in self._servers if candidate.supports(benchmark_model.task)]
        measured: list[ServerMeasurement] = []
        load = os.getloadavg()[0]
        for index in range(self._options.rounds):
            for server in supporting[:: -1 if index % 2 else 1]:
                if server.name not in self.failed:
                    with self._drop_on_failure(server):
                        measured.append(self._measure(server, benchmark_model, index))
                        results = content(benchmark_model, supporting, measured, self._options.seconds, load)
                        _save(self._options.out, benchmark_model, results)
        self._console.print(make_table(benchmark_model.name, benchmark_model.p99_limit_ms, rows(supporting, measured)))
        for candidate in supporting:
            self._report_progress(f"{candidate.name}: {candidate.settings}")

    def _measure(self, server: BenchmarkServer, benchmark_model: BenchmarkModel, index: int) -> ServerMeasurement:
        heading = f"{benchmark_model.name}, round {index + 1} of {self._options.rounds}, {server.name}"
        self._report_progress(f"{heading}: starting")
        cores, seconds = os.cpu_count() or 1, self._options.seconds
        with tempfile.TemporaryDirectory() as scratch, server.running(benchmark_model, cores, Path(scratch)) as running:
            return measure(
                server,
                benchmark_model,
                running,
                index,
                seconds,
                lambda text: self._report_progress(f"{heading}: {text}"),
            )

    @contextmanager
    def _drop_on_failure(self, server: BenchmarkServer) -> Iterator[None]:
        try:
            yield
        except (PeerError, OSError) as error:
            self.failed.add(server.name)
            message = str(error) if isinstance(error, PeerError) else f"{server.name} failed: {error}"
            self._console.print(message, style="red", highlight=False)

    def _report_progress(self, text: str) -> None:
        self._console.print(text, style="dim", highlight=False)


def _save(file: Path, benchmark_model: BenchmarkModel, results: dict[str, Any]) -> None:
    """Write the results of one model and keep those of the others."""
    stored = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        json.dumps(stored | {benchmark_model.name: results}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.peers", description=__doc__)
    parser.add_argument(
        "--peers",
        nargs="*",
        default=list(peer_names()),
        metavar="NAME",
        help=f"peers to run: {', '.join(peer_names())} (all)",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=list(BENCHMARK_MODELS),
        default=list(BENCHMARK_MODELS),
        help="models to run (all)",
    )
    parser.add_argument("--rounds", type=count, default=3, help="rounds (3)")
    parser.add_argument(
        "--seconds", type=positive, default=15.0, help="duration of a measurement (15); up to 20 if it has few requests"
    )
    parser.add_argument("--quick", action="store_true", help="one round of short measurements, written to build/peers")
    parser.add_argument("--out", type=Path, default=FOLDER / "peers.json", help="results file")
    if "--quick" in sys.argv:
        parser.set_defaults(**_QUICK)
    return parser.parse_args()


if __name__ == "__main__":
    main()
