from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.gateway.settings import GatewayError, Jwt, Rate, load_config
from headwaiter.client import Client, HeadwaiterError
from headwaiter.v1 import generation_pb2, generation_pb2_grpc, models_pb2, models_pb2_grpc
from loadtest.service_process import ServiceProcess
from tests.deploy.conftest import TIMEOUT_SECONDS
from tests.deploy.envoy_kit import AUDIENCE, DOMAIN, ISSUER, Certificates, gateway


def generate(
    address: str, credentials: grpc.ChannelCredentials, *, host: str | None = None, token: str | None = None
) -> Any:
    """Send a request with a generated stub, without metadata other than the token."""
    options = [("grpc.default_authority", host), ("grpc.ssl_target_name_override", host)] if host else []
    with grpc.secure_channel(address, credentials, options) as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)
        request = generation_pb2.GenerateRequest(prompt=["ab"], decoding={"max_new_tokens": 4})
        metadata = [("authorization", f"Bearer {token}")] if token else []
        return stub.Generate(request, timeout=TIMEOUT_SECONDS, metadata=metadata)


def status_code(call: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return str(caught.value.code().name)


@pytest.mark.slow
def test_gateway_routes_requests(certificates: Certificates, service: ServiceProcess, client: Client) -> None:
    trust = grpc.ssl_channel_credentials(certificates.authority)
    with gateway(certificates, service.ports) as address:
        assert generate(address, trust).model.name == "writer"  # the model with the task of the stub
        assert generate(address, trust, host=f"writer.{DOMAIN}").model.name == "writer"
        assert status_code(lambda: generate(address, trust, host=f"player.{DOMAIN}")) == "UNIMPLEMENTED"
        with grpc.secure_channel(address, trust) as channel:
            listed = models_pb2_grpc.ModelsStub(channel).ListModels(
                models_pb2.ListModelsRequest(), timeout=TIMEOUT_SECONDS
            )
            assert {model.name for model in listed.models} == {"idle", "writer", "player"}
        with Client(address, tls=certificates.authority, timeout=TIMEOUT_SECONDS) as gateway_client:
            assert gateway_client.generate("writer", "ab").text == client.generate("writer", "ab").text
            assert "".join(gateway_client.generate_stream("writer", "ab")) == client.generate("writer", "ab").text
            size = gateway_client.describe("player").state_size
            with (
                gateway_client.episode("player", target_return=1.0) as gateway_episode,
                client.episode("player", target_return=1.0) as direct_episode,
            ):
                for step in range(3):
                    state, reward = [float(step)] * size, 0.5 if step else None
                    action = gateway_episode.step(state, reward)
                    assert action.continuous == direct_episode.step(state, reward).continuous
        context = ssl.create_default_context(cadata=certificates.authority.decode())
        with urllib.request.urlopen(f"https://{address}/models", context=context, timeout=TIMEOUT_SECONDS) as response:
            assert {model["name"] for model in json.load(response)["models"]} == {"idle", "writer", "player"}
        with Client(address, timeout=2) as plain, pytest.raises(HeadwaiterError):
            plain.models()
        assert (
            status_code(lambda: generate(address, grpc.ssl_channel_credentials())) == "UNAVAILABLE"
        )  # the certificate is not trusted


@pytest.mark.slow
def test_gateway_with_client_ca_rejects_untrusted_clients(certificates: Certificates, service: ServiceProcess) -> None:
    with gateway(certificates, service.ports, clients=True) as address:
        assert (
            status_code(lambda: generate(address, grpc.ssl_channel_credentials(certificates.authority)))
            == "UNAVAILABLE"
        )
        trusted = (certificates.read("client.key"), certificates.read("client.crt"))
        assert generate(address, grpc.ssl_channel_credentials(certificates.authority, *trusted)).model.name == "writer"
        other = Certificates(_folder(certificates, "other"))
        untrusted = (other.read("client.key"), other.read("client.crt"))
        assert (
            status_code(lambda: generate(address, grpc.ssl_channel_credentials(certificates.authority, *untrusted)))
            == "UNAVAILABLE"
        )


@pytest.mark.slow
def test_gateway_with_jwt_rejects_invalid_tokens(certificates: Certificates, service: ServiceProcess) -> None:
    trust = grpc.ssl_channel_credentials(certificates.authority)
    keys = Jwt(issuer=ISSUER, audience=AUDIENCE, keys=str(certificates.folder / "jwks.json"))
    rejections = {
        None: "UNAUTHENTICATED",
        certificates.token(seconds=-600): "UNAUTHENTICATED",
        certificates.token(audience="elsewhere"): "PERMISSION_DENIED",
        Certificates(_folder(certificates, "issuer")).token(): "UNAUTHENTICATED",
        "soup": "UNAUTHENTICATED",
    }
    with gateway(certificates, service.ports, jwt=keys) as address:
        assert generate(address, trust, token=certificates.token()).model.name == "writer"
        assert {
            token: status_code(lambda token=token: generate(address, trust, token=token)) for token in rejections
        } == rejections
        with Client(address, tls=certificates.authority, key=certificates.token(), timeout=TIMEOUT_SECONDS) as client:
            assert client.describe("writer").name == "writer"


@pytest.mark.slow
def test_gateway_over_rate_limit_rejects_requests(certificates: Certificates, service: ServiceProcess) -> None:
    trust = grpc.ssl_channel_credentials(certificates.authority)
    with gateway(certificates, service.ports, rate=Rate(per_second=1, burst=3)) as address:
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
    ("text", "fragment"),
    [
        ("prot: 1", "prot: "),
        ("jwt: {issuer: me}", "jwt.audience: "),
        ("rate: {per_second: 0}", "rate.per_second: "),
        ("{", "cannot be read"),
    ],
)
def test_load_config_invalid_gateway_yaml_raises(tmp_path: Path, text: str, fragment: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    with pytest.raises(GatewayError) as caught:
        load_config(file)
    assert str(caught.value).startswith(str(file))
    assert fragment in str(caught.value)


def _folder(certificates: Certificates, name: str) -> Path:
    folder = certificates.folder / name
    folder.mkdir()
    return folder
