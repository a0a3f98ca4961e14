"""A real Envoy in front of a real service."""

from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.gateway.settings import GatewayError, Jwt, Rate, load
from headwaiter.v1 import generation_pb2, generation_pb2_grpc, models_pb2, models_pb2_grpc
from loadtest.served import Service
from service.client import Client, HeadwaiterError
from tests.deploy.conftest import UNTIL_SECONDS
from tests.deploy.envoy_kit import AUDIENCE, DOMAIN, ISSUER, Papers, gateway


def generate(
    address: str, credentials: grpc.ChannelCredentials, *, host: str | None = None, token: str | None = None
) -> Any:
    """With a stub as generated: no metadata but a token."""
    options = [("grpc.default_authority", host), ("grpc.ssl_target_name_override", host)] if host else []
    with grpc.secure_channel(address, credentials, options) as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)
        request = generation_pb2.GenerateRequest(prompt=["ab"], decoding={"max_new_tokens": 4})
        metadata = [("authorization", f"Bearer {token}")] if token else []
        return stub.Generate(request, timeout=UNTIL_SECONDS, metadata=metadata)


def code(call: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return str(caught.value.code().name)


@pytest.mark.slow
def test_calls_through_the_gateway(papers: Papers, service: Service, client: Client) -> None:
    trust = grpc.ssl_channel_credentials(papers.authority)
    with gateway(papers, service.ports) as address:
        assert generate(address, trust).model.name == "writer"  # the model that does the stub's task
        assert generate(address, trust, host=f"writer.{DOMAIN}").model.name == "writer"
        assert code(lambda: generate(address, trust, host=f"player.{DOMAIN}")) == "UNIMPLEMENTED"
        with grpc.secure_channel(address, trust) as channel:
            listed = models_pb2_grpc.ModelsStub(channel).ListModels(models_pb2.ListModelsRequest())
            assert {each.name for each in listed.models} == {"sleeper", "writer", "player"}
        with Client(address, tls=papers.authority, timeout=UNTIL_SECONDS) as through:
            assert through.generate("writer", "ab").text == client.generate("writer", "ab").text
            assert "".join(through.generate_stream("writer", "ab")) == client.generate("writer", "ab").text
            size = through.describe("player").state_size
            with (
                through.episode("player", target_return=1.0) as one,
                client.episode("player", target_return=1.0) as two,
            ):
                for step in range(3):
                    state, reward = [float(step)] * size, 0.5 if step else None
                    assert one.step(state, reward).continuous == two.step(state, reward).continuous
        context = ssl.create_default_context(cadata=papers.authority.decode())
        with urllib.request.urlopen(f"https://{address}/models", context=context) as answer:
            assert {each["name"] for each in json.load(answer)["models"]} == {"sleeper", "writer", "player"}
        with Client(address, timeout=2) as plain, pytest.raises(HeadwaiterError):
            plain.models()
        assert code(lambda: generate(address, grpc.ssl_channel_credentials())) == "UNAVAILABLE"  # not trusted


@pytest.mark.slow
def test_clients_without_a_certificate_are_refused(papers: Papers, service: Service) -> None:
    with gateway(papers, service.ports, clients=True) as address:
        assert code(lambda: generate(address, grpc.ssl_channel_credentials(papers.authority))) == "UNAVAILABLE"
        own = (papers.read("client.key"), papers.read("client.crt"))
        assert generate(address, grpc.ssl_channel_credentials(papers.authority, *own)).model.name == "writer"
        stranger = Papers(_folder(papers, "stranger"))
        forged = (stranger.read("client.key"), stranger.read("client.crt"))
        assert code(lambda: generate(address, grpc.ssl_channel_credentials(papers.authority, *forged))) == "UNAVAILABLE"


@pytest.mark.slow
def test_tokens(papers: Papers, service: Service) -> None:
    trust = grpc.ssl_channel_credentials(papers.authority)
    keys = Jwt(issuer=ISSUER, audience=AUDIENCE, keys=str(papers.folder / "jwks.json"))
    refused = {
        None: "UNAUTHENTICATED",
        papers.token(seconds=-600): "UNAUTHENTICATED",
        papers.token(audience="elsewhere"): "PERMISSION_DENIED",
        Papers(_folder(papers, "issuer")).token(): "UNAUTHENTICATED",
        "soup": "UNAUTHENTICATED",
    }
    with gateway(papers, service.ports, jwt=keys) as address:
        assert generate(address, trust, token=papers.token()).model.name == "writer"
        assert {token: code(lambda token=token: generate(address, trust, token=token)) for token in refused} == refused
        with Client(address, tls=papers.authority, key=papers.token(), timeout=UNTIL_SECONDS) as client:
            assert client.describe("writer").name == "writer"


@pytest.mark.slow
def test_too_many_calls_are_refused(papers: Papers, service: Service) -> None:
    trust = grpc.ssl_channel_credentials(papers.authority)
    with gateway(papers, service.ports, rate=Rate(per_second=1, burst=3)) as address:
        codes = []
        for _ in range(12):
            try:
                generate(address, trust)
                codes.append("OK")
            except grpc.RpcError as error:
                codes.append(error.code().name)
        assert codes[:3] == ["OK"] * 3
        assert set(codes[3:]) <= {"OK", "RESOURCE_EXHAUSTED"}
        assert "RESOURCE_EXHAUSTED" in codes


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot: 1", "prot: Extra inputs are not permitted."),
        ("jwt: {issuer: me}", "jwt.audience: Field required."),
        ("rate: {per_second: 0}", "rate.per_second: Input should be greater than or equal to 1."),
        ("{", "cannot be read"),
    ],
)
def test_a_mistake_in_gateway_yaml_is_told(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    with pytest.raises(GatewayError) as caught:
        load(file)
    assert sentence in str(caught.value)


def _folder(papers: Papers, name: str) -> Path:
    folder = papers.folder / name
    folder.mkdir()
    return folder
