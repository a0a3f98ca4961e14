"""Loads serve.yaml, opens the model packages it refers to and checks that both fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from headwaiter.api.keys import Keys, KeysError
from headwaiter.engine.settings_errors import format_value
from headwaiter.package.manifest import Package, PackageError, open_package
from headwaiter.serving.config.schema import LOOPBACK, Auth, Config, Model
from headwaiter.serving.config.yaml_file import ConfigError, invalid_config, read_yaml

Ports = Mapping[str, int]  # section name (grpc, http, metrics) to port
_NO_PORTS: Ports = {}


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
    content = read_yaml(file)
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is {format_value(content)}; it must be a mapping with `models`.")
    for section, port in ports.items():
        settings = content.get(section) or {}
        if isinstance(settings, dict):  # other types are rejected by the validation below
            content[section] = settings | {"port": port}
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        raise invalid_config(file, error) from error


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
