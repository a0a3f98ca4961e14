"""Virtual machines built from Linux namespaces, each with its own network, processes and /tmp/ray, on one bridge.

Network, PID and mount namespaces require root. Killing a machine kills all processes in it and no others.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PRIVATE_FOLDERS = ("/tmp/ray", "/tmp/haproxy-serve")
"""Directories that Ray and HAProxy would otherwise share between machines."""
_TOOLS = ("ip", "nsenter", "setpriv", "unshare")
_START_SECONDS = 10
_PROBE = "ip link add hw-bridge type bridge && ip link add hw-one type veth peer name hw-two"
_SETUP = """
set -e
hostname "$1"
mount --bind "$2/ray" /tmp/ray
mount --bind "$2/haproxy-serve" /tmp/haproxy-serve
mount -t tmpfs tmpfs /dev/shm
touch "$2/ready"
shift 2
"$@"
exit $?
"""


def unsupported_reason() -> str | None:
    """Return why machines cannot be created on this host, or None if they can."""
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "network namespaces require root"
    probe = subprocess.run(
        ["unshare", "--net", "--pid", "--fork", "--mount", "sh", "-c", _PROBE], capture_output=True, text=True
    )
    return f"namespaces cannot be created: {probe.stderr.strip()}" if probe.returncode else None


def _ip(*arguments: str) -> None:
    result = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if result.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {result.stderr.strip()}")


@dataclass
class Machine:
    name: str
    address: str
    link: str  # veth end at the bridge
    folder: Path  # on the host; holds the machine's /tmp/ray
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the machine with `command` as its main process; the machine ends with it."""
        assert self.process is None or self.process.poll() is not None, f"{self.name} is already running"
        for private in PRIVATE_FOLDERS:
            (self.folder / Path(private).name).mkdir(parents=True, exist_ok=True)
            Path(private).mkdir(exist_ok=True)
        (self.folder / "ready").unlink(missing_ok=True)
        isolated = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--uts")
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *("ip", "netns", "exec", self.name, "setpriv", "--pdeathsig", "KILL"),
                    *(*isolated, "sh", "-c", _SETUP, "sh", self.name, str(self.folder), *command),
                ],
                env=dict(environment),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not (self.folder / "ready").exists():
            if not self.is_running or time.monotonic() > deadline:
                raise OSError(f"{self.name} did not start: {self.log.read_text()}")
            time.sleep(0.01)

    def command_inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` inside the machine."""
        return ["nsenter", f"--target={self._init_pid}", "--net", "--pid", "--mount", "--uts", *command]

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def _init_pid(self) -> int:
        """The host process id of the machine's init process."""
        assert self.process is not None
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def kill(self) -> None:
        """Kill all processes at once, like a power failure; the kernel ends the init process last."""
        if self.process is not None and self.process.poll() is None:
            with suppress(IndexError, OSError):  # it has ended by itself just now
                os.kill(self._init_pid, signal.SIGKILL)
            self.process.wait()

    def disconnect(self) -> None:
        _ip("link", "set", self.link, "down")

    def connect(self) -> None:
        _ip("link", "set", self.link, "up")


@contextmanager
def machines(count: int, folder: Path) -> Iterator[list[Machine]]:
    """Create connected machines without processes; the host has the first address of their network."""
    bridge = f"hw{secrets.token_hex(3)}"  # unique, because links are removed asynchronously
    with ExitStack() as stack:
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", bridge)
        network = _assign_network(bridge)
        created = []
        for index in range(1, count + 1):
            name, link = f"{bridge}-{index}", f"{bridge}.{index}"
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            machine = Machine(name, f"{network}.{1 + index}", link, folder / f"machine-{index}")
            stack.callback(machine.kill)
            _connect_to_bridge(machine, bridge)
            created.append(machine)
        yield created


def _assign_network(bridge: str) -> str:
    """Assign an unused private network to the bridge and return its prefix."""
    routes = subprocess.run(["ip", "-4", "route"], capture_output=True, text=True, check=True).stdout
    network = next(net for net in iter(lambda: f"10.213.{random.randrange(256)}", "") if net not in routes)
    _ip("addr", "add", f"{network}.1/24", "dev", bridge)
    _ip("link", "set", bridge, "up")
    return network


def _connect_to_bridge(machine: Machine, bridge: str) -> None:
    namespace = ("-n", machine.name)
    _ip("link", "add", machine.link, "type", "veth", "peer", "name", "eth0", "netns", machine.name)
    _ip("link", "set", machine.link, "master", bridge, "up")
    _ip(*namespace, "addr", "add", f"{machine.address}/24", "dev", "eth0")
    _ip(*namespace, "link", "set", "eth0", "up")
    _ip(*namespace, "link", "set", "lo", "up")


def processes(machine: Machine) -> list[int]:
    """Return the host process ids of all processes in the machine."""
    if not machine.is_running:
        return []
    namespace, pids = Path(f"/proc/{machine._init_pid}/ns/pid").readlink(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # a process may end during the scan
            if (entry / "ns/pid").readlink() == namespace:
                pids.append(int(entry.name))
    return pids
