"""Triton from the PyTriton wheel, started directly with one model of the Python backend."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

import engines

_CONFIG = """
name: "predict"
backend: "python"
max_batch_size: {batch}
input [{{ name: "INPUT", data_type: TYPE_STRING, dims: [1] }}]
output [{{ name: "OUTPUT", data_type: TYPE_STRING, dims: [1] }}]
instance_group [{{ count: 1, kind: KIND_CPU }}]
dynamic_batching {{ max_queue_delay_microseconds: 10000 }}
parameters: {{ key: "task", value: {{ string_value: "{task}" }} }}
parameters: {{ key: "folder", value: {{ string_value: "{folder}" }} }}
parameters: {{ key: "threads", value: {{ string_value: "{threads}" }} }}
"""

if __name__ == "__main__":
    arguments = engines.options()
    packages = Path(sysconfig.get_path("purelib")).absolute()
    server = packages / "pytriton" / "tritonserver"
    stub = server / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}"
    backends = Path(tempfile.mkdtemp()) / "backends"
    shutil.copytree(server / "backends", backends)
    shutil.copy(stub / "triton_python_backend_stub", backends / "python")
    model = backends.parent / "models" / "predict"
    (model / "1").mkdir(parents=True)
    for file in (
        Path(__file__).with_name("model.py"),
        Path(engines.__file__),
    ):  # the backend imports from the model's directory
        shutil.copy(file, model / "1")
    (model / "config.pbtxt").write_text(
        _CONFIG.format(
            batch=engines.MAX_BATCH_SIZE[arguments.task],
            task=arguments.task,
            folder=arguments.model.resolve(),
            threads=arguments.threads,
        )
    )
    libraries = (sysconfig.get_config_var("LIBDIR"), packages / "nvidia_pytriton.libs", server / "external_libs")
    path = ":".join(str(library) for library in (*libraries, server / "lib"))
    environment = os.environ | {
        "LD_LIBRARY_PATH": path,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # the backend runs the first Python on the path
    }
    command = [
        str(server / "bin" / "tritonserver"),
        f"--model-repository={model.parent}",
        f"--backend-directory={backends}",
        f"--http-port={arguments.port}",
        "--http-address=127.0.0.1",
        "--allow-grpc=false",
        "--allow-metrics=false",
    ]
    os.execve(command[0], command, environment)
