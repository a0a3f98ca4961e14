from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.config import Batch, Config, ConfigError, Limits, Model, load
from service.keys import line_for, make_key
from service.model import Options
from tests.serving_kit import write_config, write_package


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_package(tmp_path / "models", "tiny")
    return tmp_path / "serve.yaml"


def test_the_least_that_can_be_said(file: Path) -> None:
    service = load(write_config(file, "models: {tiny: {path: models/tiny}}"))

    assert service.config == Config(models={"tiny": Model(path="models/tiny")})
    assert service.config.ports == {"grpc.port": 9000, "http.port": 8000, "metrics.port": 8080}
    assert service.packages["tiny"].folder == file.parent / "models/tiny/1/fp32"
    assert service.is_local
    assert service.keys is None


def test_everything_that_can_be_said(file: Path) -> None:
    (file.parent / "keys.txt").write_text(line_for("alice", make_key()))
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
            autoscale: {min: 2, max: 8, target: 0.5, shrink_s: 60}
            rows: 16
            limits: {wait_ms: 10, text: 20, new_tokens: 30, beams: 4, pixels: 50, images: 70, message_mb: 60}
    """

    service = load(write_config(file, text))

    tiny = service.config.models["tiny"]
    assert (tiny.version, tiny.precision, tiny.rows, tiny.least_replicas) == ("1", "int8", 16, 2)
    assert tiny.limits == Limits(wait_ms=10, text=20, new_tokens=30, beams=4, pixels=50, images=70, message_mb=60)
    assert service.keys == file.parent / "keys.txt"
    assert not service.is_local


def test_paths_are_relative_to_the_file(
    file: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(file, "models: {tiny: {path: models/tiny}}")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))

    assert load(file).packages["tiny"].manifest.name == "tiny"


def test_limits_are_those_of_a_model_opened_in_process() -> None:
    here, there = Limits(), Options()

    for name in ("text", "new_tokens", "pixels", "images"):
        assert getattr(here, name) == getattr(there, name)
    assert Model(path="").rows == there.rows
    assert Batch() == Batch(tokens=there.batch_tokens, pixels=there.batch_pixels)


@pytest.mark.parametrize(
    ("task", "said", "sentence"),
    [
        ("detection", "rows: 8", "models.tiny.rows is of no use to tiny: it answers in one pass and keeps no rows"),
        ("policy", "batch: {tokens: 8}", "models.tiny.batch is of no use to tiny: it keeps rows from step to step"),
    ],
)
def test_what_does_not_concern_a_model_is_refused(file: Path, task: str, said: str, sentence: str) -> None:
    write_package(file.parent / "models", "tiny", task=task)
    with pytest.raises(ConfigError, match=sentence):
        load(write_config(file, _tiny(said)))


def test_batches_of_a_model_of_one_pass(file: Path) -> None:
    write_package(file.parent / "models", "tiny", task="detection")
    assert load(write_config(file, _tiny("batch: {pixels: 9}"))).config.models["tiny"].batch == Batch(pixels=9)


def _tiny(addition: str) -> str:
    return f"models: {{tiny: {{path: models/tiny, {addition}}}}}"


TINY = _tiny("")
WRONG = [
    ("", "is empty; it must be a mapping with `models`"),
    ("- tiny", "is a list; it must be a mapping with `models`"),
    ("models: [", "line 1: expected the node content, but found '<stream end>'"),
    ("models:\n\ttiny: 1", "line 2: found character '\\t' that cannot start any token"),
    ("models:\n  tiny: {path: a}\n  tiny: {path: b}", "line 3: tiny is there twice"),
    (
        "models: {tiny: {path: a, limits: {beams: 1,\n beams: 2}}}",
        "line 2: beams is there twice",
    ),
    ("models: {tiny: !!python/name:os.system x}", "line 1: could not determine a constructor"),
    ("models:", "models is empty; it must be a mapping"),
    ("models: {}", "models is empty; name at least one model"),
    ("models: {tiny: models/tiny}", "models.tiny is models/tiny; it must be a mapping"),
    ("models: {tiny: {}}", "models.tiny.path is missing"),
    ("models: {tiny: {pth: models/tiny}}", "models.tiny.pth is not a key; path is"),
    ("models: {tiny: {path: 7}}", "models.tiny.path is 7; it must be text"),
    ("models: {catalog: {path: models/tiny}}", "models.catalog has the name of the list of models"),
    ("models: {Tiny: {path: models/tiny}}", "models.Tiny is not a name for a model; names are small letters"),
    ("models: {a/b: {path: models/tiny}}", "models.a/b is not a name for a model"),
    ("models: {7: {path: models/tiny}}", "models.7 is not text; put it in quotes"),
    ("model: {}", "model is not a key; models is"),
    (f"colour: red\n{TINY}", "colour is not a key; keys here are grpc, http, metrics, auth, models"),
    (f"grpc: 9000\n{TINY}", "grpc is 9000; it must be a mapping"),
    (f"grpc:\n{TINY}", "grpc is empty; it must be a mapping"),
    (f"grpc: {{host: localhost}}\n{TINY}", "grpc.host is not a key; gRPC listens where HTTP does, at http.host"),
    (f"grpc: {{port: 0}}\n{TINY}", "grpc.port is 0; it must be at least 1"),
    (f"grpc: {{port: 65536}}\n{TINY}", "grpc.port is 65536; it must be at most 65535"),
    (f"grpc: {{port: '9000'}}\n{TINY}", 'grpc.port is "9000" in quotes; it must be a whole number'),
    (f"grpc: {{port: 8000}}\n{TINY}", "grpc.port and http.port are both 8000; each needs a port of its own"),
    (f"metrics: {{port: 9000}}\n{TINY}", "grpc.port and metrics.port are both 9000"),
    (f"http: {{host: 10.0.0.7}}\n{TINY}", "http.host is 10.0.0.7; it must be 127.0.0.1 (this machine only) or 0.0.0.0"),
    (f"auth: {{keys: nowhere.txt}}\n{TINY}", "auth.keys: {folder}/nowhere.txt cannot be read"),
    (f"auth: {{keys: serve.yaml}}\n{TINY}", "auth.keys: {folder}/serve.yaml, line 1: a line is `NAME sha256:`"),
    (f"auth: {{keys: empty.txt}}\n{TINY}", "auth.keys: {folder}/empty.txt has no key"),
    (_tiny("version: newest"), "models.tiny.version is newest; it must be a whole number"),
    (_tiny("version: 7"), "models.tiny: {folder}/models/tiny has no version 7; it has 1"),
    (_tiny("precision: int4"), "models.tiny.precision is int4; it must be fp32, fp16 or int8"),
    (_tiny("device: tpu"), "models.tiny.device is tpu; it must be auto, cpu or cuda"),
    (_tiny("device: cuda"), "models.tiny has device cuda and resources.gpus 0; give it a GPU"),
    (_tiny("resources: {cpus: 0}"), "models.tiny.resources.cpus is 0; it must be more than 0"),
    (_tiny("resources: {cpus: .nan}"), "models.tiny.resources.cpus is nan; it must be a finite number"),
    (_tiny("resources: {gpus: 1.5}"), "models.tiny.resources has gpus 1.5; above 1 it must be a whole number"),
    (_tiny("resources: {gpu: 1}"), "models.tiny.resources.gpu is not a key; gpus is"),
    (_tiny("replicas: 0"), "models.tiny.replicas is 0; it must be at least 1"),
    (_tiny("replicas: 2, autoscale: {max: 3}"), "models.tiny has both replicas and autoscale; keep one of the two"),
    (_tiny("autoscale: {min: 1}"), "models.tiny.autoscale.max is missing"),
    (_tiny("autoscale: {min: 4, max: 2}"), "models.tiny.autoscale has min 4 and max 2; min must not be more than max"),
    (_tiny("autoscale: {min: -1, max: 2}"), "models.tiny.autoscale.min is -1; it must be at least 0"),
    (_tiny("autoscale: {min: 0, max: 0}"), "models.tiny.autoscale.max is 0; it must be at least 1"),
    (_tiny("autoscale: {max: 2, shrink_s: 0}"), "models.tiny.autoscale.shrink_s is 0; it must be more than 0"),
    (_tiny("autoscale: {max: 2, target: 70}"), "models.tiny.autoscale.target is 70; it must be at most 1"),
    (_tiny("rows: 2.5"), "models.tiny.rows is 2.5; it must be a whole number"),
    (_tiny("rows: true"), "models.tiny.rows is true; it must be a whole number"),
    (_tiny("limits: {beams: 0}"), "models.tiny.limits.beams is 0; it must be at least 1"),
    (_tiny("limits: {beam: 4}"), "models.tiny.limits.beam is not a key; beams is"),
    (_tiny("limits: {message_mb: 512}"), "models.tiny.limits.message_mb is 512; it must be at most 256"),
    (_tiny("rows: 4, limits: {beams: 5}"), "models.tiny has limits.beams 5 and rows 4; each beam takes a row"),
    ("models: {tiny: {path: models/huge}}", "models.tiny: {folder}/models/huge is not there; `headwaiter export`"),
    ("models: {tiny: {path: models}}", "models.tiny: {folder}/models holds no model package"),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_what_is_wrong_is_told_in_one_sentence(file: Path, text: str, sentence: str) -> None:
    (file.parent / "empty.txt").write_text("# nobody yet\n")

    with pytest.raises(ConfigError) as raised:
        load(write_config(file, text))

    told = str(raised.value)
    assert told.startswith(str(file))
    assert sentence.format(folder=file.parent) in told if "{folder}" in sentence else sentence in told
    assert "\n" not in told
    assert told.endswith(".")


def test_a_file_that_is_not_there_or_not_text(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not there; deploy/serve\.yaml is an example"):
        load(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(file.parent)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not text in UTF-8"):
        load(file)


def test_a_package_of_a_newer_format(file: Path) -> None:
    write_package(file.parent / "models", "tiny", format=2)

    with pytest.raises(ConfigError, match=r"models\.tiny: .* has package format 2; .* upgrade headwaiter"):
        load(write_config(file, TINY))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["grpc", "http", "metrics", "auth", "models", "port", "host", "keys", "path", "rows", "limits"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.dictionaries(KEYS, VALUES | st.dictionaries(KEYS | st.just("tiny"), VALUES, max_size=4), max_size=5))
def test_whatever_it_says_it_is_valid_or_told(file: Path, content: dict[str, object]) -> None:
    told = ""
    try:
        load(write_config(file, content))
    except ConfigError as error:
        told = str(error)
    assert "Input should" not in told
