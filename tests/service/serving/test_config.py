from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from headwaiter.api.keys import format_key_line, make_key
from headwaiter.engine.settings import Batch, Limits, ModelSettings
from headwaiter.engine.settings_errors import SettingsError, nested_section, parse_settings
from headwaiter.package.manifest import FORMAT
from headwaiter.serving.config import Config, ConfigError, Model, load_config
from tests.serving_kit import write_config, write_package


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_package(tmp_path / "models", "tiny")
    return tmp_path / "serve.yaml"


def test_load_config_minimal_file_uses_defaults(file: Path) -> None:
    service = load_config(write_config(file, "models: {tiny: {path: models/tiny}}"))

    assert service.config == Config(models={"tiny": Model(path="models/tiny")})
    assert service.config.ports == {"grpc.port": 9000, "http.port": 8000, "metrics.port": 8080}
    assert service.packages["tiny"].folder == file.parent / "models/tiny/1/fp32"
    assert service.is_local
    assert service.keys is None


def test_load_config_full_file_reads_every_key(file: Path) -> None:
    (file.parent / "keys.txt").write_text(format_key_line("alice", make_key()))
    text = """
        grpc: {port: 9001}
        http: {host: 0.0.0.0, port: 8001}
        metrics: {port: 8081}
        auth: {keys: keys.txt}
        models:
          tiny:
            path: models/tiny
            version: 1
            precision: int8
            device: cuda
            resources: {cpus: 0.5, gpus: 0.25}
            autoscale: {min: 2, max: 8, target: 0.5, scale_down_delay_s: 60}
            max_sequences: 16
            limits:
              {max_queue_wait_ms: 10, text: 20, new_tokens: 30, num_beams: 4, pixels: 50, images: 70, message_mb: 60}
    """

    service = load_config(write_config(file, text))

    tiny = service.config.models["tiny"]
    assert (tiny.version, tiny.precision, tiny.max_sequences, tiny.initial_replicas) == ("1", "int8", 16, 2)
    assert tiny.limits == Limits(
        max_queue_wait_ms=10, text=20, new_tokens=30, num_beams=4, pixels=50, images=70, message_mb=60
    )
    assert service.keys == file.parent / "keys.txt"
    assert not service.is_local


def test_load_config_resolves_paths_relative_to_file(
    file: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(file, "models: {tiny: {path: models/tiny}}")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))

    assert load_config(file).packages["tiny"].manifest.name == "tiny"


def test_replica_settings_resolve_resources() -> None:
    model = Model.model_validate({"path": "", "resources": {"cpus": 1.5}, "max_sequences": 4})

    assert model.replica_settings() == ModelSettings(
        device="cpu", threads=2, max_sequences=4, limits=Limits(num_beams=4)
    )
    assert ModelSettings.model_validate(json.loads(json.dumps(model.replica_settings().model_dump())))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_sequence": 8}, "max_sequence is not a valid key; the closest valid key is max_sequences"),
        ({"limits": {"text": 0}}, "limits.text is 0; it must be at least 1"),
        ({"threads": "two"}, "threads is two; it must be a whole number"),
    ],
)
def test_parse_settings_invalid_raises_one_sentence(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        parse_settings(values)


@pytest.mark.parametrize(
    ("task", "setting", "key", "alternative"),
    [
        ("detection", "max_sequences: 8", "max_sequences", "batch"),
        ("policy", "batch: {tokens: 8}", "batch", "max_sequences"),
    ],
)
def test_load_config_inapplicable_key_raises(file: Path, task: str, setting: str, key: str, alternative: str) -> None:
    write_package(file.parent / "models", "tiny", task=task)
    with pytest.raises(ConfigError, match=rf"models\.tiny\.{key} does not apply: .*`{alternative}`"):
        load_config(write_config(file, _tiny(setting)))


def test_load_config_single_pass_model_accepts_batch(file: Path) -> None:
    write_package(file.parent / "models", "tiny", task="detection")
    assert load_config(write_config(file, _tiny("batch: {pixels: 9}"))).config.models["tiny"].batch == Batch(pixels=9)


def _tiny(setting: str) -> str:
    return f"models: {{tiny: {{path: models/tiny, {setting}}}}}"


TINY = _tiny("")
GOLDEN = [
    (_tiny("limits: {num_beams: 0}"), "models.tiny.limits.num_beams is 0; it must be at least 1."),
    ("models: {tiny: {pth: models/tiny}}", "models.tiny.pth is not a valid key; the closest valid key is path."),
    (f"colour: red\n{TINY}", "colour is not a valid key; valid keys are grpc, http, metrics, auth, models."),
    (_tiny("replicas: 2, autoscale: {max: 3}"), "models.tiny sets both replicas and autoscale; remove one of them."),
]


@pytest.mark.parametrize(("text", "message"), GOLDEN)
def test_load_config_error_message(file: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(write_config(file, text))

    assert str(raised.value) == f"{file}: {message}"


# The message must contain each of the fragments: the key or line, the value, and what would be right.
INVALID: list[tuple[str, tuple[str, ...]]] = [
    ("", ("empty", "mapping", "`models`")),
    ("- tiny", ("a list", "mapping", "`models`")),
    ("models: [", ("line 1:", "expected the node content")),
    ("models:\n\ttiny: 1", ("line 2:", "'\\t'")),
    ("models:\n  tiny: {path: a}\n  tiny: {path: b}", ("line 3:", "duplicate key tiny")),
    ("models: {tiny: {path: a, limits: {num_beams: 1,\n num_beams: 2}}}", ("line 2:", "duplicate key num_beams")),
    ("models: {tiny: !!python/name:os.system x}", ("line 1:", "could not determine a constructor")),
    ("models:", ("models is empty", "a mapping")),
    ("models: {}", ("models is empty", "at least one model")),
    ("models: {tiny: models/tiny}", ("models.tiny is models/tiny", "a mapping")),
    ("models: {tiny: {}}", ("models.tiny.path is missing",)),
    ("models: {tiny: {path: 7}}", ("models.tiny.path is 7", "a string")),
    ("models: {catalog: {path: models/tiny}}", ("models.catalog", "reserved")),
    ("models: {Tiny: {path: models/tiny}}", ("models.Tiny", "not a valid model name", "lowercase")),
    ("models: {a/b: {path: models/tiny}}", ("models.a/b", "not a valid model name")),
    ("models: {7: {path: models/tiny}}", ("models.7", "not a string", "quotes")),
    ("model: {}", ("model is not a valid key", "models")),
    (f"grpc: 9000\n{TINY}", ("grpc is 9000", "a mapping")),
    (f"grpc:\n{TINY}", ("grpc is empty", "a mapping")),
    (f"grpc: {{host: localhost}}\n{TINY}", ("grpc.host is not a valid key", "http.host")),
    (f"grpc: {{port: 0}}\n{TINY}", ("grpc.port is 0", "at least 1")),
    (f"grpc: {{port: 65536}}\n{TINY}", ("grpc.port is 65536", "at most 65535")),
    (f"grpc: {{port: '9000'}}\n{TINY}", ("grpc.port is", '"9000"', "a whole number")),
    (f"grpc: {{port: 8000}}\n{TINY}", ("grpc.port and http.port are both 8000",)),
    (f"metrics: {{port: 9000}}\n{TINY}", ("grpc.port and metrics.port are both 9000",)),
    (f"http: {{host: 10.0.0.7}}\n{TINY}", ("http.host is 10.0.0.7", "127.0.0.1", "0.0.0.0")),
    (f"auth: {{keys: nowhere.txt}}\n{TINY}", ("auth.keys: {folder}/nowhere.txt",)),
    (f"auth: {{keys: serve.yaml}}\n{TINY}", ("auth.keys: {folder}/serve.yaml", "line 1", "sha256:")),
    (f"auth: {{keys: empty.txt}}\n{TINY}", ("auth.keys: {folder}/empty.txt", "no key", "headwaiter key --append")),
    (_tiny("version: newest"), ("models.tiny.version is newest", "a whole number")),
    (_tiny("version: 7"), ("models.tiny: {folder}/models/tiny", "version 7", "1")),
    (_tiny("precision: int4"), ("models.tiny.precision is int4", "fp32, fp16 or int8")),
    (_tiny("device: tpu"), ("models.tiny.device is tpu", "auto, cpu or cuda")),
    (_tiny("device: cuda"), ("models.tiny", "cuda", "resources.gpus")),
    (_tiny("resources: {cpus: 0}"), ("models.tiny.resources.cpus is 0", "more than 0")),
    (_tiny("resources: {cpus: .nan}"), ("models.tiny.resources.cpus is nan", "a finite number")),
    (_tiny("resources: {gpus: 1.5}"), ("models.tiny.resources", "gpus", "1.5", "a whole number")),
    (_tiny("resources: {gpu: 1}"), ("models.tiny.resources.gpu is not a valid key", "gpus")),
    (_tiny("replicas: 0"), ("models.tiny.replicas is 0", "at least 1")),
    (_tiny("autoscale: {min: 1}"), ("models.tiny.autoscale.max is missing",)),
    (_tiny("autoscale: {min: 4, max: 2}"), ("models.tiny.autoscale", "min to 4", "max to 2")),
    (_tiny("autoscale: {min: -1, max: 2}"), ("models.tiny.autoscale.min is -1", "at least 0")),
    (_tiny("autoscale: {min: 0, max: 0}"), ("models.tiny.autoscale.max is 0", "at least 1")),
    (
        _tiny("autoscale: {max: 2, scale_down_delay_s: 0}"),
        ("models.tiny.autoscale.scale_down_delay_s is 0", "more than 0"),
    ),
    (_tiny("autoscale: {max: 2, target: 70}"), ("models.tiny.autoscale.target is 70", "at most 1")),
    (_tiny("autoscale: {maximum: 2}"), ("models.tiny.autoscale.maximum is not a valid key", "max")),
    (_tiny("max_sequences: 2.5"), ("models.tiny.max_sequences is 2.5", "a whole number")),
    (_tiny("max_sequences: true"), ("models.tiny.max_sequences is true", "a whole number")),
    (_tiny("limits: {beam: 4}"), ("models.tiny.limits.beam is not a valid key", "num_beams")),
    (_tiny("limits: {message_mb: 512}"), ("models.tiny.limits.message_mb is 512", "at most 256")),
    (_tiny("batch: {token: 4}"), ("models.tiny.batch.token is not a valid key", "tokens")),
    (_tiny("batch: {rows: 4}"), ("models.tiny.batch.rows is not a valid key", "tokens, pixels")),
    (_tiny("max_sequences: 4, limits: {num_beams: 5}"), ("models.tiny", "num_beams to 5", "max_sequences to 4")),
    (_tiny("limits: {concurrent_mb: 31}"), ("models.tiny.limits", "message_mb to 32", "concurrent_mb to 31")),
    ("models: {tiny: {path: models/huge}}", ("models.tiny: {folder}/models/huge", "`headwaiter export`")),
    ("models: {tiny: {path: models}}", ("models.tiny: {folder}/models", "no model package")),
]


@pytest.mark.parametrize(("text", "fragments"), INVALID, ids=[" ".join(fragments) for _, fragments in INVALID])
def test_load_config_invalid_file_raises_one_sentence(file: Path, text: str, fragments: tuple[str, ...]) -> None:
    (file.parent / "empty.txt").write_text("# no keys\n")

    with pytest.raises(ConfigError) as raised:
        load_config(write_config(file, text))

    message = str(raised.value)
    assert message.startswith(str(file))
    for fragment in fragments:
        assert fragment.replace("{folder}", str(file.parent)) in message
    assert "\n" not in message
    assert message.endswith(".")


def test_load_config_unreadable_file_raises(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"deploy/serve\.yaml"):
        load_config(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(file.parent)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(file)


def test_load_config_newer_package_format_raises(file: Path) -> None:
    write_package(file.parent / "models", "tiny", format=FORMAT + 1)

    with pytest.raises(ConfigError, match=rf"models\.tiny: .*format {FORMAT + 1}; .*upgrade headwaiter"):
        load_config(write_config(file, TINY))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=6,
)


def _mappings(schema: type[BaseModel]) -> st.SearchStrategy[dict[str, object]]:
    """Mappings with known, misspelt and unknown keys, whose values may be valid, of another type or nested sections."""
    keys = dict.fromkeys((*schema.model_fields, "port", "unknown"), VALUES)
    keys |= {f"{name}s": VALUES for name in schema.model_fields}
    for name, field in schema.model_fields.items():
        if (section := nested_section(field)) is not None:
            nested = _mappings(section)
            is_mapping = get_origin(field.annotation) is dict
            keys[name] = VALUES | (st.fixed_dictionaries({"tiny": nested}) if is_mapping else nested)
    chosen = st.lists(st.sampled_from(sorted(keys)), unique=True, max_size=5)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({name: keys[name] for name in names}))


def _models(section: str) -> st.SearchStrategy[dict[str, object]]:
    """A valid file, except for one section of its model."""
    schema = nested_section(Model.model_fields[section])
    assert schema is not None
    model = st.fixed_dictionaries({"path": st.just("models/tiny"), section: _mappings(schema)})
    return st.fixed_dictionaries({"models": st.fixed_dictionaries({"tiny": model})})


SECTIONS = sorted(name for name, field in Model.model_fields.items() if nested_section(field) is not None)


def test_sections_cover_nested_models() -> None:
    assert {"autoscale", "batch", "limits", "resources"} <= set(SECTIONS)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=_mappings(Config) | st.sampled_from(SECTIONS).flatmap(_models))
def test_load_config_arbitrary_content_is_valid_or_raises_config_error(file: Path, content: dict[str, object]) -> None:
    message = ""
    try:
        load_config(write_config(file, content))
    except ConfigError as error:
        message = str(error)
    assert "Input should" not in message
