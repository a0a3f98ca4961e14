"""`python -m loadtest.weight_sharing`: memory and step time with separate or shared weights, prepacked or not.

Measures OPUS-MT; each combination runs in its own process, in interleaved rounds.
"""

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
_SIZES, _VALUES = {"source": 16, "steps": 1, "max_length": 32}, {"positions": 15, "total": 16, "source_lengths": 16}
_TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
_THREADS, _STEPS, _ROUNDS = 2, 40, 3
_shared: dict[int, Any] = {}  # by offset in the weights file; the values are memory-mapped


def _open_session(graph: Path, weights: str, packing: str) -> Any:
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
    """Return the median step time; caches are bound as input and output, as in the engine."""
    binding, sizes, arrays = session.io_binding(), _SIZES | {"rows": rows}, {}
    for value in session.get_inputs():
        shape = [sizes.get(axis, axis) for axis in value.shape]
        arrays[value.name] = np.full(shape, _VALUES.get(value.name, 1), _TYPES[value.type])
        binding.bind_cpu_input(value.name, arrays[value.name])
    for name in (value.name for value in session.get_outputs()):
        past = arrays.get(name.replace("present.", "past."))
        buffer = () if past is None else ("cpu", 0, past.dtype.type, past.shape, past.ctypes.data)
        binding.bind_output(name, *buffer)
    return 1000 * median(repeat(lambda: session.run_with_iobinding(binding), number=1, repeat=_STEPS))


def _memory(stage: str) -> dict[str, float]:
    """Return memory in MB; anonymous memory cannot be dropped and read from the file again."""
    lines = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return {f"{kind} MB {stage}": int(lines[kind].split()[0]) / 1024 for kind in ("Rss", "Pss", "Anonymous")}


def _measure(precision: str, *configuration: str) -> dict[str, float]:
    encoder, decoder = (
        _open_session(_PACKAGE / precision / f"{name}.onnx", *configuration) for name in ("encoder", "decoder")
    )
    measured = _memory("opened")
    _step_ms(encoder, 1)
    measured["step ms 1 row"] = _step_ms(decoder, 1)
    return measured | _memory("warm") | {"step ms 32 rows": _step_ms(decoder, 32)}


def main(*configuration: str) -> None:
    if configuration:
        sys.stdout.write(json.dumps(_measure(*configuration)))
        return
    configurations = list(product(("fp32", "int8"), ("own", "shared"), ("packed", "unpacked")))
    commands = {
        configuration: [sys.executable, "-m", "loadtest.weight_sharing", *configuration]
        for configuration in configurations
    }
    rounds = [
        {
            configuration: json.loads(subprocess.check_output(commands[configuration]))
            for configuration in configurations
        }
        for _ in range(_ROUNDS)
    ]
    medians = {
        configuration: {
            name: round(median(measured[configuration][name] for measured in rounds), 1)
            for name in rounds[0][configuration]
        }
        for configuration in configurations
    }
    table = Table("precision", "weights", "matrices", *medians[configurations[0]])
    for configuration, values in medians.items():
        table.add_row(*configuration, *map(str, values.values()))
    Console(width=120).print(table)
    _RESULTS.write_text(
        json.dumps(
            [{"configuration": " ".join(configuration), **medians[configuration]} for configuration in configurations],
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
