"""Machines inside this machine: each has a network, processes and a /tmp/ray of its own, and all hang on one bridge.

Made of network, process and mount namespaces, so root is needed. Ending a machine ends whatever runs in it, and nothing
else.
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

PRIVATE = ("/tmp/ray", "/tmp/haproxy-serve")
"""Where Ray and its HAProxy would meet those of other machines."""
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


def missing() -> str | None:
    """Why no machine can be made here, or None."""
    if absent := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(absent)} not installed"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    probe = subprocess.run(
        ["unshare", "--net", "--pid", "--fork", "--mount", "sh", "-c", _PROBE], capture_output=True, text=True
    )
    return f"namespaces cannot be made: {probe.stderr.strip()}" if probe.returncode else None


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@dataclass
class Machine:
    name: str
    address: str
    link: str  # its cable's end at the bridge
    folder: Path  # where its /tmp/ray is, seen from outside
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Runs this as the machine's main program; with it, the machine ends."""
        assert self.process is None or self.process.poll() is not None, f"{self.name} runs already"
        for private in PRIVATE:
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

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command that runs this one in the machine."""
        return ["nsenter", f"--target={self._first}", "--net", "--pid", "--mount", "--uts", *command]

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def _first(self) -> int:
        """The machine's process 1, as it is numbered outside."""
        assert self.process is not None
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def kill(self) -> None:
        """Everything in it at once, as when the power fails. The kernel lets process 1 end only after all others."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self._first, signal.SIGKILL)
            self.process.wait()

    def cut_off(self) -> None:
        _ip("link", "set", self.link, "down")

    def connect(self) -> None:
        _ip("link", "set", self.link, "up")


@contextmanager
def machines(count: int, folder: Path) -> Iterator[list[Machine]]:
    """Connected, with nothing running in them yet; this process is at the network's first address."""
    bridge = f"hw{secrets.token_hex(3)}"  # never again: a cable is taken away a moment after its machine
    with ExitStack() as stack:
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", bridge)
        network = _address(bridge)
        made = []
        for index in range(1, count + 1):
            name, link = f"{bridge}-{index}", f"{bridge}.{index}"
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            machine = Machine(name, f"{network}.{1 + index}", link, folder / f"machine-{index}")
            stack.callback(machine.kill)
            _wire(machine, bridge)
            made.append(machine)
        yield made


def _address(bridge: str) -> str:
    """A private network that nobody here has."""
    taken = subprocess.run(["ip", "-4", "route"], capture_output=True, text=True, check=True).stdout
    network = next(net for net in iter(lambda: f"10.213.{random.randrange(256)}", "") if net not in taken)
    _ip("addr", "add", f"{network}.1/24", "dev", bridge)
    _ip("link", "set", bridge, "up")
    return network


def _wire(machine: Machine, bridge: str) -> None:
    inside = ("-n", machine.name)
    _ip("link", "add", machine.link, "type", "veth", "peer", "name", "eth0", "netns", machine.name)
    _ip("link", "set", machine.link, "master", bridge, "up")
    _ip(*inside, "addr", "add", f"{machine.address}/24", "dev", "eth0")
    _ip(*inside, "link", "set", "eth0", "up")
    _ip(*inside, "link", "set", "lo", "up")


def processes(machine: Machine) -> list[int]:
    """All that run in it, as they are numbered outside."""
    if not machine.is_running:
        return []
    own, found = Path(f"/proc/{machine._first}/ns/pid").readlink(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # a process may end while it is looked at
            if (entry / "ns/pid").readlink() == own:
                found.append(int(entry.name))
    return found
