"""serve.yaml: what it may say, and one sentence for everything that it may not."""

from __future__ import annotations

import difflib
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from service.keys import Keys, KeysError
from service.package import NAME_PATTERN, Package, PackageError, Precision, open_package

CATALOG = "catalog"
LOOPBACK: Literal["127.0.0.1"] = "127.0.0.1"


class ConfigError(Exception):
    """serve.yaml cannot be served; the message says where it is wrong and what would be right."""


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _as_address(value: Any) -> Any:
    return LOOPBACK if value == "localhost" else value


Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1)]
Version = Annotated[str, BeforeValidator(_as_text), Field(pattern=r"^[0-9]+$")]
# Ray's HAProxy meets its replicas on the loopback address: they listen there or everywhere.
Host = Annotated[Literal["127.0.0.1", "0.0.0.0"], BeforeValidator(_as_address)]


class _Section(BaseModel):
    """A string below a field says what it is, for the README's table: `python -m deploy.configuration`."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Grpc(_Section):
    port: Port = 9000
    """Where gRPC listens, on the host of HTTP."""


class Http(_Section):
    host: Host = LOOPBACK
    """Who is heard: this machine only, or with 0.0.0.0 every interface."""
    port: Port = 8000
    """Where HTTP listens."""


class Metrics(_Section):
    port: Port = 8080
    """Where every node serves its page for Prometheus."""


class Auth(_Section):
    keys: str | None = None
    """A file of hashed keys; without one, everybody may call."""


class Resources(_Section):
    """Of one replica."""

    cpus: float = Field(default=1, gt=0)
    """Of each replica; a share of one is allowed."""
    gpus: float = Field(default=0, ge=0)
    """Of each replica; a share of one is allowed."""

    @model_validator(mode="after")
    def _whole_gpus(self) -> Self:
        if self.gpus > 1 and not self.gpus.is_integer():
            raise ValueError(f"has gpus {self.gpus}; above 1 it must be a whole number")
        return self


class Autoscale(_Section):
    """How many replicas there are, by what they have to do."""

    min: int = Field(default=1, ge=0)
    """Replicas at least; with 0 the last one leaves too, and comes back with the next call."""
    max: Count
    """Replicas at most."""
    target: float = Field(default=0.7, gt=0, le=1)
    """The share of its rows that each replica should have in use."""
    shrink_s: float = Field(default=300, gt=0)
    """Seconds for which fewer must have been enough before there are fewer."""

    @model_validator(mode="after")
    def _min_below_max(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"has min {self.min} and max {self.max}; min must not be more than max")
        return self


class Limits(_Section):
    """What a request may ask for. These defaults hold wherever serve.yaml says nothing."""

    wait_ms: Count = 2_000
    """Whoever would wait longer than this is refused at once."""
    text: Count = 20_000
    """Characters of a text."""
    new_tokens: Count = 256
    """That an answer may have."""
    beams: Count = 8
    """Of one answer; each takes a row."""
    pixels: Count = 32_000_000
    """Of an image as it is sent."""
    images: int = Field(default=64, ge=1, le=256)
    """That one call may have made."""
    message_mb: int = Field(default=32, ge=1, le=256)
    """Of a request."""


class Batch(_Section):
    """What runs together at most, padding included, where a model answers in one pass."""

    tokens: Count = 512
    """Of texts that are classified together."""
    pixels: Count = 4 * 224 * 224
    """Of images that go through the model together."""


class Model(_Section):
    path: str
    """Its packages, from where the file is."""
    version: Version | None = None
    """Else the newest."""
    precision: Precision | None = None
    """fp32, fp16 or int8; else what there is."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto, cpu or cuda."""
    resources: Resources = Resources()
    replicas: Count | None = None
    """A fixed number of them, 1 unless told; or `autoscale`."""
    autoscale: Autoscale | None = None
    rows: Count = 64
    """Sequences decoded at once, or episodes open at once, in each replica."""
    batch: Batch = Batch()
    limits: Limits = Limits()
    optional: bool = False
    """Left out while its package is not there, instead of refused."""

    @property
    def least_replicas(self) -> int:
        """Those that it begins with: at least one, which shows that the model can be served."""
        return max(1, self.autoscale.min) if self.autoscale else self.replicas or 1

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.replicas is not None and self.autoscale is not None:
            raise ValueError("has both replicas and autoscale; keep one of the two")
        if self.device == "cuda" and self.resources.gpus == 0:
            raise ValueError("has device cuda and resources.gpus 0; give it a GPU or a share of one")
        if "beams" in self.limits.model_fields_set and self.limits.beams > self.rows:
            raise ValueError(f"has limits.beams {self.limits.beams} and rows {self.rows}; each beam takes a row")
        return self


class Config(_Section):
    grpc: Grpc = Grpc()
    http: Http = Http()
    metrics: Metrics = Metrics()
    auth: Auth = Auth()
    models: dict[str, Model]

    @property
    def ports(self) -> dict[str, int]:
        return {"grpc.port": self.grpc.port, "http.port": self.http.port, "metrics.port": self.metrics.port}

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        for (one, port), (other, same) in combinations(self.ports.items(), 2):
            if port == same:
                raise ValueError(f"{one} and {other} are both {port}; each needs a port of its own")
        return self

    @model_validator(mode="after")
    def _names(self) -> Self:
        if not self.models:
            raise ValueError("models is empty; name at least one model")
        for name in self.models:
            if name == CATALOG:
                raise ValueError(f"models.{name} has the name of the list of models; choose another")
            if not NAME_PATTERN.fullmatch(name):
                raise ValueError(
                    f"models.{name} is not a name for a model; names are small letters, digits, dots and hyphens"
                )
        return self


@dataclass(frozen=True, slots=True)
class Service:
    """A serve.yaml that holds: what it says, and the packages that it means."""

    file: Path
    config: Config
    packages: dict[str, Package]
    keys: Path | None
    left_out: tuple[str, ...] = ()
    """Optional models that are not there."""

    @property
    def is_local(self) -> bool:
        """Reached from this machine only."""
        return self.config.http.host == LOOPBACK


def load(file: Path) -> Service:
    """Reads serve.yaml; paths in it are relative to where it is."""
    content = _read(file)
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is {_shown(content)}; it must be a mapping with `models`.")
    try:
        config = Config.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{file}: {_sentence(error.errors())}.") from error
    folder = file.resolve().parent
    there = {name: model for name, model in config.models.items() if not _may_be_left_out(model, folder)}
    if not there:
        raise ConfigError(f"{file}: none of its models is there; `headwaiter menu export` makes those of the menu.")
    packages = {name: _package(file, name, model, folder) for name, model in there.items()}
    for name, package in packages.items():
        _demand_fitting(file, name, config.models[name], package)
    left_out = tuple(name for name in config.models if name not in there)
    keys = _keys(file, config.auth, folder)
    return Service(file, config.model_copy(update={"models": there}), packages, keys, left_out)


def _demand_fitting(file: Path, name: str, model: Model, package: Package) -> None:
    """What is said of a model must concern it."""
    manifest = package.manifest
    if manifest.task in ("classification", "detection") or manifest.noise is not None:
        idle, why = "rows", "it answers in one pass and keeps no rows; `batch` is what runs together"
    else:
        idle, why = "batch", "it keeps rows from step to step; `rows` is how many"
    if idle in model.model_fields_set:
        raise ConfigError(f"{file}: models.{name}.{idle} is of no use to {name}: {why}.")


def _may_be_left_out(model: Model, folder: Path) -> bool:
    return model.optional and not (folder / model.path).is_dir()


def _package(file: Path, name: str, model: Model, folder: Path) -> Package:
    try:
        return open_package(folder / model.path, version=model.version, precision=model.precision)
    except PackageError as error:
        raise ConfigError(f"{file}: models.{name}: {error}") from error


def _keys(file: Path, auth: Auth, folder: Path) -> Path | None:
    if auth.keys is None:
        return None
    keys = folder / auth.keys
    try:
        if not Keys.load(keys).digests:
            raise KeysError(f"{keys} has no key; `headwaiter key --append {keys}` makes one.")
    except KeysError as error:
        raise ConfigError(f"{file}: auth.keys: {error}") from error
    return keys


class _Loader(yaml.SafeLoader):
    """YAML in which a key that is there twice is a mistake, not the last one's victory."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is there twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read(file: Path) -> Any:
    try:
        return yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise ConfigError(f"{file} is not there; deploy/serve.yaml is an example.") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not text in UTF-8.") from error
    except yaml.MarkedYAMLError as error:
        mark, problem = error.problem_mark, error.problem or error.context
        place = f"{file}, line {mark.line + 1}" if mark else str(file)
        raise ConfigError(f"{place}: {problem}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not YAML: {str(error).splitlines()[0]}.") from error


_SECTIONS: dict[tuple[str, ...], type[_Section]] = {
    (): Config,
    ("grpc",): Grpc,
    ("http",): Http,
    ("metrics",): Metrics,
    ("auth",): Auth,
    ("models", "*"): Model,
    ("models", "*", "resources"): Resources,
    ("models", "*", "autoscale"): Autoscale,
    ("models", "*", "limits"): Limits,
}
_HINTS = {"grpc.host": "gRPC listens where HTTP does, at http.host"}
_WANTED = {
    "http.host": "127.0.0.1 (this machine only) or 0.0.0.0 (every interface)",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_pattern_mismatch": "a whole number",
    "literal_error": "{expected}",
    "model_type": "a mapping",
    "dict_type": "a mapping",
}


def _sentence(errors: list[ErrorDetails]) -> str:
    """About the first mistake; an unknown key comes first, since it is often why another one is missing."""
    error = min(errors, key=lambda each: each["type"] != "extra_forbidden")
    steps = tuple(str(step) for step in error["loc"])
    place, kind, context = ".".join(steps), error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{place} is not a key; {_HINTS.get(place) or _nearest(steps)}"
    if kind == "missing":
        return f"{place} is missing"
    if kind == "value_error":
        return f"{place} {context['error']}".strip()
    if steps[-1] == "[key]":
        return f"{'.'.join(steps[:-1])} is not text; put it in quotes"
    wanted = _WANTED.get(place) or _WANTED.get(kind)
    if wanted is None:
        return f"{place}: {error['msg']}"
    right = wanted.format(**context).replace("'", "")
    return f"{place} is {_shown(error['input'])}; it must be {right}"


def _nearest(steps: tuple[str, ...]) -> str:
    *parents, key = steps
    section = _SECTIONS[tuple("*" if parents[:step] == ["models"] else name for step, name in enumerate(parents))]
    known = list(section.model_fields)
    near = difflib.get_close_matches(key, known, n=1)
    return f"{near[0]} is" if near else f"keys here are {', '.join(known)}"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case str() if value.isdecimal():
            return f'"{value}" in quotes'
        case _:
            return str(value)
