"""What a gateway is told: gateway.yaml of an overlay, or a test."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

Port = Annotated[int, Field(ge=1, le=65535)]
SECRETS = "/etc/headwaiter"  # where the pods have certificates and keys


class GatewayError(Exception):
    """gateway.yaml cannot be used; the message says where it is wrong."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tls(_Section):
    certificate: str = f"{SECRETS}/tls/tls.crt"
    key: str = f"{SECRETS}/tls/tls.key"
    clients: str | None = None  # certificates of those who may sign a client's; with it every client needs one


class Jwt(_Section):
    issuer: str
    audience: str
    keys: str = f"{SECRETS}/jwks/jwks.json"  # the issuer's public keys
    header: str = "authorization"  # another one where the service asks for API keys too


class Rate(_Section):
    """Of one client address."""

    per_second: int = Field(default=100, ge=1)
    burst: int = Field(default=200, ge=1)


class Upstream(_Section):
    host: str = "headwaiter"
    grpc: Port = 9000
    http: Port = 8000
    connection_seconds: int = Field(default=30, ge=1)  # then another; calls under way on it end there


class Gateway(_Section):
    host: str = "0.0.0.0"
    port: Port = 8443
    upstream: Upstream = Upstream()
    tls: Tls = Tls()
    jwt: Jwt | None = None
    rate: Rate = Rate()


def load(file: Path) -> Gateway:
    try:
        return Gateway.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    except (OSError, yaml.YAMLError) as error:
        raise GatewayError(f"{file} cannot be read ({error}).") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise GatewayError(f"{file}: {place}: {first['msg']}.") from error
