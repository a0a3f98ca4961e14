"""Reads serve.yaml and explains in a sentence why it is not valid YAML or not a valid configuration."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from headwaiter.engine.settings_errors import format_error
from headwaiter.serving.config.schema import Config

_UNKNOWN_KEY_HINTS = {"grpc.host": "the bind address of gRPC is http.host"}
_EXPECTED_VALUES = {"http.host": "127.0.0.1 (this machine only) or 0.0.0.0 (every interface)"}


class ConfigError(Exception):
    """serve.yaml is invalid; the message names the key and the accepted values."""


def invalid_config(file: Path, error: ValidationError) -> ConfigError:
    clause = format_error(error, Config, unknown_key_hints=_UNKNOWN_KEY_HINTS, expected_values=_EXPECTED_VALUES)
    return ConfigError(f"{file}: {clause}.")


class _Loader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys, which PyYAML would silently overwrite."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"duplicate key {key.value}", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(file: Path) -> Any:
    """The content of the file. Raises ConfigError."""
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
