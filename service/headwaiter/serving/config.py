"""Schema, validation and error messages of serve.yaml."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from headwaiter.api.keys import Keys, KeysError
from headwaiter.engine.settings import Count, ModelSettings, Section
from headwaiter.engine.settings_errors import format_error, format_value
from headwaiter.package.manifest import NAME_PATTERN, Package, PackageError, Precision, open_package

CATALOG = "catalog"
LOOPBACK: Literal["127.0.0.1"] = "127.0.0.1"


Ports = Mapping[str, int]  # section name (grpc, http, metrics) to port
_NO_PORTS: Ports = {}
_UNKNOWN_KEY_HINTS = {"grpc.host": "the bind address of gRPC is http.host"}
_EXPECTED_VALUES = {"http.host": "127.0.0.1 (this machine only) or 0.0.0.0 (every interface)"}


class ConfigError(Exception):
    """serve.yaml is invalid; the message names the key and the accepted values."""


def _int_to_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _resolve_localhost(value: Any) -> Any:
    return LOOPBACK if value == "localhost" else value


Port = Annotated[int, Field(ge=1, le=65535)]
Version = Annotated[str, BeforeValidator(_int_to_text), Field(pattern=r"^[0-9]+$")]
# Ray's HAProxy connects to its replicas over loopback, so they must listen there or on every interface.
Host = Annotated[Literal["127.0.0.1", "0.0.0.0"], BeforeValidator(_resolve_localhost)]


class Grpc(Section):
    port: Port = 9000
    """gRPC port; the bind address is `http.host`."""


class Http(Section):
    host: Host = LOOPBACK
    """Bind address of HTTP, gRPC and metrics: 127.0.0.1 (this machine only) or 0.0.0.0 (every interface)."""
    port: Port = 8000
    """HTTP port."""


class Metrics(Section):
    port: Port = 8080
    """Prometheus metrics port on every node."""


class Auth(Section):
    keys: str | None = None
    """File of hashed API keys, relative to this file; no authentication if unset."""


class Resources(Section):
    """Resources of one replica."""

    cpus: float = Field(default=1, gt=0)
    """CPU cores per replica; fractions are allowed."""
    gpus: float = Field(default=0, ge=0)
    """GPUs per replica; fractions below 1 are allowed."""

    @model_validator(mode="after")
    def _check_whole_gpus(self) -> Self:
        if self.gpus > 1 and not self.gpus.is_integer():
            raise ValueError(f"sets gpus to {self.gpus}; above 1 it must be a whole number")
        return self


class Autoscale(Section):
    """Bounds and target of the autoscaler."""

    min: int = Field(default=1, ge=0)
    """Minimum replicas; with 0 an idle model scales to zero and starts again on the next request."""
    max: Count
    """Maximum replicas."""
    target: float = Field(default=0.7, gt=0, le=1)
    """Target utilisation per replica, as a fraction."""
    scale_down_delay_s: float = Field(default=300, gt=0)
    """Scale-down delay in seconds."""

    @model_validator(mode="after")
    def _check_min_max(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"sets min to {self.min} and max to {self.max}; min must not exceed max")
        return self


class Model(ModelSettings):
    path: str
    """Package directory, relative to this file."""
    version: Version | None = None
    """Package version; the newest if unset."""
    precision: Precision | None = None
    """Weight precision: fp32, fp16 or int8; if unset or not exported, fp32 or else the only one exported."""
    resources: Resources = Resources()
    replicas: Count | None = None
    """Fixed number of replicas (1 if neither this nor `autoscale` is set)."""
    autoscale: Autoscale | None = None
    optional: bool = False
    """Skip the model while its package directory does not exist, instead of failing."""

    @property
    def initial_replicas(self) -> int:
        """Replicas at deployment; at least one, so that loading the model is verified."""
        return max(1, self.autoscale.min) if self.autoscale else self.replicas or 1

    def replica_settings(self) -> ModelSettings:
        """The settings of one replica, with everything that depends on its resources resolved."""
        return ModelSettings(
            device=self.device if self.resources.gpus else "cpu",
            threads=self.threads or math.ceil(self.resources.cpus),
            max_sequences=self.max_sequences,
            batch=self.batch,
            limits=self.limits.model_copy(update={"num_beams": min(self.limits.num_beams, self.max_sequences)}),
        )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.replicas is not None and self.autoscale is not None:
            raise ValueError("sets both replicas and autoscale; remove one of them")
        if self.device == "cuda" and self.resources.gpus == 0:
            raise ValueError("sets device to cuda and resources.gpus to 0; set resources.gpus above 0")
        if "num_beams" in self.limits.model_fields_set and self.limits.num_beams > self.max_sequences:
            raise ValueError(
                f"sets limits.num_beams to {self.limits.num_beams} and max_sequences to {self.max_sequences}; "
                "num_beams must not exceed max_sequences"
            )
        return self


class Config(Section):
    grpc: Grpc = Grpc()
    http: Http = Http()
    metrics: Metrics = Metrics()
    auth: Auth = Auth()
    models: dict[str, Model]

    @property
    def ports(self) -> dict[str, int]:
        return {"grpc.port": self.grpc.port, "http.port": self.http.port, "metrics.port": self.metrics.port}

    @model_validator(mode="after")
    def _check_ports_differ(self) -> Self:
        for (first, first_port), (second, second_port) in combinations(self.ports.items(), 2):
            if first_port == second_port:
                raise ValueError(f"{first} and {second} are both {first_port}; the ports must differ")
        return self

    @model_validator(mode="after")
    def _check_model_names(self) -> Self:
        if not self.models:
            raise ValueError("models is empty; list at least one model")
        for name in self.models:
            if name == CATALOG:
                raise ValueError(f"models.{name} is a reserved name; choose another")
            if not NAME_PATTERN.fullmatch(name):
                raise ValueError(
                    f"models.{name} is not a valid model name; use lowercase letters, digits, dots and hyphens"
                )
        return self


@dataclass(frozen=True, slots=True)
class Service:
    """A validated serve.yaml and the model packages it refers to."""

    file: Path
    config: Config
    packages: dict[str, Package]
    keys: Path | None
    skipped_models: tuple[str, ...] = ()
    """Optional models whose package directory does not exist."""
    port_overrides: Ports = field(default_factory=dict)
    """Ports set on the command line, which override those in the file."""

    @property
    def is_local(self) -> bool:
        """Whether the service is reachable from this machine only."""
        return self.config.http.host == LOOPBACK


def read_config(file: Path, ports: Ports = _NO_PORTS) -> Config:
    """Read serve.yaml without opening its packages. `ports` override those in the file. Raises ConfigError."""
    content = _read_yaml(file)
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is {format_value(content)}; it must be a mapping with `models`.")
    for section, port in ports.items():
        settings = content.get(section) or {}
        if isinstance(settings, dict):  # other types are rejected by the validation below
            content[section] = settings | {"port": port}
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        clause = format_error(error, Config, unknown_key_hints=_UNKNOWN_KEY_HINTS, expected_values=_EXPECTED_VALUES)
        raise ConfigError(f"{file}: {clause}.") from error


def load_config(file: Path, ports: Ports = _NO_PORTS) -> Service:
    """Read serve.yaml and open its packages; paths are relative to the file. Raises ConfigError."""
    config = read_config(file, ports)
    folder = file.resolve().parent
    models = {name: model for name, model in config.models.items() if not _is_skippable(model, folder)}
    if not models:
        raise ConfigError(
            f"{file}: no package directory of its models exists; `headwaiter menu export` creates those of the menu."
        )
    packages = {name: _open_package(file, name, model, folder) for name, model in models.items()}
    for name, package in packages.items():
        _check_applicable_keys(file, name, config.models[name], package)
    skipped_models = tuple(name for name in config.models if name not in models)
    keys = _resolve_keys(file, config.auth, folder)
    return Service(file, config.model_copy(update={"models": models}), packages, keys, skipped_models, ports)


def _check_applicable_keys(file: Path, name: str, model: Model, package: Package) -> None:
    """Reject `max_sequences` for single-pass models and `batch` for models that decode step by step."""
    manifest = package.manifest
    if manifest.task in ("classification", "detection") or manifest.noise is not None:
        key, reason = "max_sequences", "the model runs a single forward pass; `batch` sets the size of its batches"
    else:
        key, reason = "batch", "the model decodes step by step; `max_sequences` sets the size of its batches"
    if key in model.model_fields_set:
        raise ConfigError(f"{file}: models.{name}.{key} does not apply: {reason}.")


def _is_skippable(model: Model, folder: Path) -> bool:
    return model.optional and not (folder / model.path).is_dir()


def _open_package(file: Path, name: str, model: Model, folder: Path) -> Package:
    try:
        return open_package(folder / model.path, version=model.version, precision=model.precision)
    except PackageError as error:
        raise ConfigError(f"{file}: models.{name}: {error}") from error


def _resolve_keys(file: Path, auth: Auth, folder: Path) -> Path | None:
    if auth.keys is None:
        return None
    keys = folder / auth.keys
    try:
        if not Keys.load(keys).digests:
            raise KeysError(f"{keys} contains no key; `headwaiter key --append {keys}` adds one.")
    except KeysError as error:
        raise ConfigError(f"{file}: auth.keys: {error}") from error
    return keys


class _Loader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys, which PyYAML would silently overwrite."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"duplicate key {key.value}", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_yaml(file: Path) -> Any:
    try:
        return yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist; see deploy/serve.yaml for an example.") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text.") from error
    except yaml.MarkedYAMLError as error:
        mark, problem = error.problem_mark, error.problem or error.context
        place = f"{file}, line {mark.line + 1}" if mark else str(file)
        raise ConfigError(f"{place}: {problem}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not valid YAML: {str(error).splitlines()[0]}.") from error
