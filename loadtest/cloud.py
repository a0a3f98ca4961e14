"""A cloud inside this machine, from which Ray's autoscaler rents nodes and to which it gives them back.

Ray's own provider for one machine puts all nodes at one address, where their replicas would take the same ports; these
nodes are machines. The autoscaler runs in the head and cannot make any: it puts a file for each that it wants into a
folder, and the landlord outside starts and ends machines by that.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import NODE_KIND_HEAD, STATUS_UP_TO_DATE, TAG_RAY_NODE_KIND, TAG_RAY_NODE_STATUS
from ray.autoscaler.tags import TAG_RAY_USER_NODE_TYPE as TYPE

from loadtest.namespaces import Machine

HEAD, WORKER = "head", "worker"
IDLE_SECONDS = 5
_LOOK_SECONDS = 0.2


def config(folder: Path, head: Machine, workers: list[Machine], cpus: int) -> dict[str, Any]:
    """What `ray start --autoscaling-config` takes."""
    return {
        "cluster_name": "headwaiter",
        "max_workers": len(workers),
        "idle_timeout_minutes": IDLE_SECONDS / 60,
        "upscaling_speed": 1,
        "provider": {
            "type": "external",
            "module": f"{__name__}.Cloud",
            "folder": str(folder),
            "head": head.address,
            "addresses": {each.name: each.address for each in workers},
            # There is no way into a node but its network: it starts Ray by itself.
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


class Cloud(NodeProvider):
    """What the autoscaler speaks to. A node is the name of a machine; its file holds its tags."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._folder, self._addresses = Path(provider_config["folder"]), provider_config["addresses"]
        self._head = provider_config["head"]

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        rented = [HEAD, *(file.stem for file in self._folder.glob("*.json"))]
        return [each for each in rented if tag_filters.items() <= self.node_tags(each).items()]

    def is_running(self, node_id: str) -> bool:
        return node_id in self.non_terminated_nodes({})

    def is_terminated(self, node_id: str) -> bool:
        return not self.is_running(node_id)

    def node_tags(self, node_id: str) -> dict[str, str]:
        if node_id == HEAD:
            return {TAG_RAY_NODE_KIND: NODE_KIND_HEAD, TYPE: HEAD, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}
        tags: dict[str, str] = json.loads((self._folder / f"{node_id}.json").read_text())
        return tags | {TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}

    def internal_ip(self, node_id: str) -> str:
        return str(self._head if node_id == HEAD else self._addresses[node_id])

    external_ip = internal_ip

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> None:  # noqa: ARG002
        rented = self.non_terminated_nodes({})
        for name in [each for each in self._addresses if each not in rented][:count]:
            unfinished = self._folder / f"{name}.unfinished"
            unfinished.write_text(json.dumps(tags))
            unfinished.rename(self._folder / f"{name}.json")

    def terminate_node(self, node_id: str) -> None:
        (self._folder / f"{node_id}.json").unlink()


@contextmanager
def renting(folder: Path, workers: list[Machine], start: Callable[[Machine], None]) -> Iterator[None]:
    """The landlord: a machine runs while its file is there."""
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(_LOOK_SECONDS):
            for each in workers:
                is_rented = (folder / f"{each.name}.json").exists()
                if is_rented and not each.is_running:
                    start(each)
                elif each.is_running and not is_rented:
                    each.kill()

    landlord = threading.Thread(target=look)
    landlord.start()
    try:
        yield
    finally:
        stop.set()
        landlord.join()
