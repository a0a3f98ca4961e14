"""Schema of gateway.yaml, the gateway settings of an overlay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

Port = Annotated[int, Field(ge=1, le=65535)]
SECRETS = "/etc/headwaiter"  # mount point of certificates and keys in the pods


class GatewayError(Exception):
    """gateway.yaml is invalid; the message names the key."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tls(_Section):
    certificate: str = f"{SECRETS}/tls/tls.crt"
    key: str = f"{SECRETS}/tls/tls.key"
    clients: str | None = None  # CA certificates; if set, clients must present a certificate


class Jwt(_Section):
    issuer: str
    audience: str
    keys: str = f"{SECRETS}/jwks/jwks.json"  # JWKS file with the issuer's public keys
    header: str = "authorization"  # set another one if the service also requires API keys


class Rate(_Section):
    """Request rate limit per client address and gateway pod."""

    per_second: int = Field(default=100, ge=1)
    burst: int = Field(default=200, ge=1)


class Upstream(_Section):
    host: str = "headwaiter"
    grpc: Port = 9000
    http: Port = 8000
    connection_seconds: int = Field(default=30, ge=1)  # maximum age; in-flight requests finish


class Gateway(_Section):
    host: str = "0.0.0.0"
    port: Port = 8443
    upstream: Upstream = Upstream()
    tls: Tls = Tls()
    jwt: Jwt | None = None
    rate: Rate = Rate()


def load_config(file: Path) -> Gateway:
    try:
        return Gateway.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    except (OSError, yaml.YAMLError) as error:
        raise GatewayError(f"{file} cannot be read ({error}).") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(step) for step in first["loc"])
        raise GatewayError(f"{file}: {key}: {first['msg']}.") from error
