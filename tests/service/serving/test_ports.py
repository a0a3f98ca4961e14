from __future__ import annotations

from headwaiter.serving.ports import reserve_ports


def test_reserve_ports_twice_returns_disjoint_blocks() -> None:
    with reserve_ports() as first, reserve_ports() as second:
        assert first.keys() == second.keys()
        assert not _ports(first) & _ports(second)
    with reserve_ports() as third:
        assert _ports(third) & _ports(first)


def _ports(environment: dict[str, str]) -> set[int]:
    prefix = "RAY_SERVE_DIRECT_INGRESS"
    ports: set[int] = set()
    for protocol in ("HTTP", "GRPC"):
        minimum, maximum = (int(environment[f"{prefix}_{end}_{protocol}_PORT"]) for end in ("MIN", "MAX"))
        ports |= set(range(minimum, maximum))
    return ports
