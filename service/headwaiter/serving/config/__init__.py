"""The configuration file serve.yaml."""

from headwaiter.serving.config.loading import Ports, Service, load_config, read_config
from headwaiter.serving.config.schema import CATALOG, CATALOG_MESSAGE_MB, Config, Model
from headwaiter.serving.config.yaml_file import ConfigError

__all__ = [
    "CATALOG",
    "CATALOG_MESSAGE_MB",
    "Config",
    "ConfigError",
    "Model",
    "Ports",
    "Service",
    "load_config",
    "read_config",
]
