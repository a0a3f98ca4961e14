from __future__ import annotations

from service.ports import own_ports


def test_two_services_have_no_port_in_common() -> None:
    with own_ports() as one, own_ports() as other:
        assert one.keys() == other.keys()
        assert not _ports(one) & _ports(other)
    with own_ports() as again:
        assert _ports(again) & _ports(one)


def _ports(environment: dict[str, str]) -> set[int]:
    prefix = "RAY_SERVE_DIRECT_INGRESS"
    found = set()
    for protocol in ("HTTP", "GRPC"):
        first, last = (int(environment[f"{prefix}_{end}_{protocol}_PORT"]) for end in ("MIN", "MAX"))
        found |= set(range(first, last))
    return found
