"""What is read from a call's headers and its peer."""

from __future__ import annotations

import pytest

from headwaiter.v1.models_pb2 import DescribeRequest
from service.host import HostArgs, ModelHost
from service.ingress.calls import Call
from service.ingress.errors import FailedError
from service.tasks.errors import InputError
from tests.conftest import Packages
from tests.counts_kit import Counts


@pytest.mark.parametrize(
    ("peer", "is_local"),
    [
        (None, True),
        ("ipv4:127.0.0.1:4711", True),
        ("ipv6:[::1]:4711", True),
        ("ipv6:%5B::1%5D:4711", True),
        ("unix:/tmp/socket", True),
        ("ipv4:10.1.2.3:4711", False),
        ("ipv4:12.70.0.1:4711", False),
        ("ipv6:[fe80::1]:4711", False),
        ("ipv6:%5B2001:db8::127.0.0.1%5D:4711", False),
    ],
)
async def test_without_keys_a_local_service_answers_its_own_machine_only(
    packages: Packages, peer: str | None, is_local: bool
) -> None:
    call = Call.begin("Describe", {}, peer)
    assert call.is_local is is_local
    folder = packages("bert", "fp32").package.folder
    host = ModelHost(HostArgs(name="bert", folder=folder, threads=1, local=True), Counts())
    try:
        if is_local:
            assert await host.endpoint.answer(DescribeRequest(), call)
        else:
            with pytest.raises(FailedError, match="from its own machine only"):
                await host.endpoint.answer(DescribeRequest(), call)
    finally:
        host.close()


@pytest.mark.parametrize("given", ["a" * 128, "trace-1", "{7}"])
def test_a_request_id_is_taken_over(given: str) -> None:
    assert Call.begin("Translate", {"x-request-id": given}).request_id == given


@pytest.mark.parametrize("given", ["", "a" * 129, "two words", "líne", "line\nbreak"])
def test_a_request_id_that_no_log_could_hold_is_replaced(given: str) -> None:
    made = Call.begin("Translate", {"x-request-id": given}).request_id
    assert made != given
    assert len(made) == 32


@pytest.mark.parametrize("given", ["", "0", "-1", "1.5", "soon", "1e3", "٣", "9" * 400])
def test_a_timeout_has_to_be_milliseconds(given: str) -> None:
    with pytest.raises(InputError, match="x-timeout-ms has to be a whole number of milliseconds above 0"):
        _ = Call.begin("Translate", {"x-timeout-ms": given}).deadline


def test_a_timeout_counts_from_the_beginning() -> None:
    call = Call.begin("Translate", {"x-timeout-ms": "1500"})
    assert call.deadline == call.begun + 1.5


async def test_who_has_gone_is_counted_as_gone(packages: Packages) -> None:
    """And not as one from elsewhere, of whom gRPC knows as little."""
    counts = Counts()
    host = ModelHost(
        HostArgs(name="bert", folder=packages("bert", "fp32").package.folder, threads=1, local=True), counts
    )
    try:
        with pytest.raises(FailedError, match="the caller has gone"):
            await host.endpoint.answer(DescribeRequest(), Call.begin("Describe", {}, "unknown"))
    finally:
        host.close()
    assert counts.codes == {("Describe", "CANCELLED"): 1}
