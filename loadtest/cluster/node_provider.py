"""A node provider for Ray's autoscaler whose nodes are namespace machines on this host.

Ray's local provider gives all nodes one address, where their replicas' ports would collide. The autoscaler runs inside
the head and cannot create machines, so it writes one file per requested node into a directory, and a launcher on
the host starts and kills machines accordingly.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import NODE_KIND_HEAD, STATUS_UP_TO_DATE, TAG_RAY_NODE_KIND, TAG_RAY_NODE_STATUS
from ray.autoscaler.tags import TAG_RAY_USER_NODE_TYPE as TYPE

from loadtest.cluster.network_namespaces import Machine

HEAD, WORKER = "head", "worker"
IDLE_SECONDS = 15  # a node counts as idle from its registration, and its first replica takes seconds to be scheduled
_POLL_SECONDS = 0.2
_STOP_SECONDS = 60


def config(folder: Path, head: Machine, workers: list[Machine], cpus: int) -> dict[str, Any]:
    """Return the content of the file for `ray start --autoscaling-config`."""
    return {
        "cluster_name": "headwaiter",
        "max_workers": len(workers),
        "idle_timeout_minutes": IDLE_SECONDS / 60,
        "upscaling_speed": 1,
        "provider": {
            "type": "external",
            "module": f"{__name__}.LocalNodeProvider",
            "folder": str(folder),
            "head": head.address,
            "addresses": {worker.name: worker.address for worker in workers},
            # The autoscaler cannot run commands on nodes; each starts Ray itself.
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "foreground_node_launch": True,
            "worker_liveness_check": False,
        },
        **{name: {} for name in ("auth", "file_mounts")},
        **{name: [] for name in ("cluster_synced_files", "worker_setup_commands", "worker_start_ray_commands")},
        "head_node_type": HEAD,
        "available_node_types": {
            HEAD: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            WORKER: {"resources": {"CPU": cpus}, "node_config": {}, "min_workers": 0, "max_workers": len(workers)},
        },
    }


class LocalNodeProvider(NodeProvider):
    """Node ids are machine names; the file of a node holds its tags and the id of the launch."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._folder, self._addresses = Path(provider_config["folder"]), provider_config["addresses"]
        self._head = provider_config["head"]

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        requested = [HEAD, *(file.stem for file in self._folder.glob("*.json"))]
        return [node for node in requested if tag_filters.items() <= self.node_tags(node).items()]

    def is_running(self, node_id: str) -> bool:
        return node_id in self.non_terminated_nodes({})

    def is_terminated(self, node_id: str) -> bool:
        return not self.is_running(node_id)

    def node_tags(self, node_id: str) -> dict[str, str]:
        if node_id == HEAD:
            return {TAG_RAY_NODE_KIND: NODE_KIND_HEAD, TYPE: HEAD, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}
        tags: dict[str, str] = json.loads((self._folder / f"{node_id}.json").read_text())["tags"]
        return tags | {TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}

    def internal_ip(self, node_id: str) -> str:
        return str(self._head if node_id == HEAD else self._addresses[node_id])

    external_ip = internal_ip

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> None:  # noqa: ARG002
        requested = self.non_terminated_nodes({})
        for name in [candidate for candidate in self._addresses if candidate not in requested][:count]:
            staging = self._folder / f"{name}.staging"
            staging.write_text(json.dumps({"tags": tags, "launch": uuid.uuid4().hex}))
            staging.rename(self._folder / f"{name}.json")

    def terminate_node(self, node_id: str) -> None:
        (self._folder / f"{node_id}.json").unlink()


@contextmanager
def run_requested_nodes(folder: Path, workers: list[Machine], start: Callable[[Machine], None]) -> Iterator[None]:
    """Run each machine while its request file exists, and restart it if the file is of another launch."""
    stop = threading.Event()
    launches: dict[str, str] = {}

    def poll() -> None:
        while not stop.wait(_POLL_SECONDS):
            for worker in workers:
                launch = _requested_launch(folder / f"{worker.name}.json")
                if worker.is_running and launch != launches.get(worker.name):
                    worker.kill()
                if launch and not worker.is_running:
                    launches[worker.name] = launch
                    start(worker)

    launcher = threading.Thread(target=poll)
    launcher.start()
    try:
        yield
    finally:
        stop.set()
        launcher.join(_STOP_SECONDS)


def _requested_launch(file: Path) -> str | None:
    with suppress(FileNotFoundError):
        return str(json.loads(file.read_text())["launch"])
    return None
