"""`python -m loadtest.weights`: memory and speed of OPUS-MT's encoder and decoder with weights of their own or shared,
and with matrices packed for the CPU beforehand or not; each combination in processes of its own, which take turns."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from statistics import median
from timeit import repeat
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
from rich.console import Console
from rich.table import Table

_PACKAGE, _RESULTS = Path("models/opus-mt-zh-en/1"), Path(__file__).parent / "results" / "weights.json"
_SIZES, _VALUES = {"source": 16, "steps": 1, "room": 32}, {"positions": 15, "total": 16, "source_lengths": 16}
_TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
_THREADS, _STEPS, _ROUNDS = 2, 40, 3
_shared: dict[int, Any] = {}  # by their offsets in the weights file, values in that file's own pages


def _opened(graph: Path, weights: str, packing: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _THREADS
    options.add_session_config_entry("session.disable_prepacking", "0" if packing == "packed" else "1")
    for name, value in ir.load(graph).graph.initializers.items() if weights == "shared" else ():
        if isinstance(tensor := value.const_value, ir.ExternalTensor):
            if tensor.offset not in _shared:
                _shared[tensor.offset] = onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())
            options.add_initializer(name, _shared[tensor.offset])
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def _step_ms(session: Any, rows: int) -> float:
    """The caches are bound as input and output alike, as in the engine."""
    binding, sizes, arrays = session.io_binding(), _SIZES | {"rows": rows}, {}
    for port in session.get_inputs():
        shape = [sizes.get(axis, axis) for axis in port.shape]
        arrays[port.name] = np.full(shape, _VALUES.get(port.name, 1), _TYPES[port.type])
        binding.bind_cpu_input(port.name, arrays[port.name])
    for name in (port.name for port in session.get_outputs()):
        past = arrays.get(name.replace("present.", "past."))
        place = () if past is None else ("cpu", 0, past.dtype.type, past.shape, past.ctypes.data)
        binding.bind_output(name, *place)
    return 1000 * median(repeat(lambda: session.run_with_iobinding(binding), number=1, repeat=_STEPS))


def _memory(when: str) -> dict[str, float]:
    """Anonymous memory is what the system cannot drop and read from the file again."""
    lines = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return {f"{kind} MB {when}": int(lines[kind].split()[0]) / 1024 for kind in ("Rss", "Pss", "Anonymous")}


def _measure(precision: str, *way: str) -> dict[str, float]:
    encoder, decoder = (_opened(_PACKAGE / precision / f"{name}.onnx", *way) for name in ("encoder", "decoder"))
    found = _memory("opened")
    _step_ms(encoder, 1)
    found["step ms 1 row"] = _step_ms(decoder, 1)
    return found | _memory("warm") | {"step ms 32 rows": _step_ms(decoder, 32)}


def main(*way: str) -> None:
    if way:
        sys.stdout.write(json.dumps(_measure(*way)))
        return
    ways = list(product(("fp32", "int8"), ("own", "shared"), ("packed", "unpacked")))
    commands = {way: [sys.executable, "-m", "loadtest.weights", *way] for way in ways}
    rounds = [{way: json.loads(subprocess.check_output(commands[way])) for way in ways} for _ in range(_ROUNDS)]
    medians = {way: {name: round(median(r[way][name] for r in rounds), 1) for name in rounds[0][way]} for way in ways}
    table = Table("precision", "weights", "matrices", *medians[ways[0]])
    for way, values in medians.items():
        table.add_row(*way, *map(str, values.values()))
    Console(width=120).print(table)
    _RESULTS.write_text(json.dumps([{"way": " ".join(way), **medians[way]} for way in ways], indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
