"""`python -m deploy.environments.ports GRPC_PORT=9000 …`: exit 2 with one sentence if a port is in use.

For `make serve` on a new machine, before minutes are spent on set-up. Standard library only.
"""

from __future__ import annotations

import socket
import sys


def main(arguments: list[str]) -> None:
    for argument in arguments:
        name, _, value = argument.partition("=")
        if not value.isdecimal() or not 0 < int(value) < 65_536:
            sys.exit(fail(f"{name} is {value or 'empty'}; it must be a port number from 1 to 65535."))
        if not is_free(int(value)):
            other = int(value) + 1 if int(value) < 65_535 else 65_534
            sys.exit(fail(f"Port {value} is in use; choose another, for example `make serve {name}={other}`."))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def fail(sentence: str) -> int:
    sys.stderr.write(f"{sentence}\n")
    return 2


if __name__ == "__main__":
    main(sys.argv[1:])
