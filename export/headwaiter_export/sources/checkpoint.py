"""Load checkpoint directories: Hugging Face models, and families that other packages register."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from headwaiter_export.errors import SourceError
from headwaiter_export.families.family import Family, find_family
from headwaiter_export.sources.checkpoint_files import check_weights, read_config
from headwaiter_export.sources.registry import find_checkpoint_loader


def load_checkpoint(folder: Path) -> Family:
    """Load a checkpoint of a registered or built-in family. Raises `SourceError` if it is damaged or not supported."""
    config = read_config(folder)
    model_type = str(config["model_type"])
    if (load := find_checkpoint_loader(model_type)) is not None:
        check_weights(folder)
        return load(folder, config)
    family_class = find_family(model_type)
    check_weights(folder)
    return family_class(_load_model(folder, family_class, config), folder)


def _load_model(folder: Path, family_class: type[Family], config: dict[str, Any]) -> Any:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model, report = getattr(transformers, family_class.transformers_class).from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="eager",
            ignore_mismatched_sizes=True,  # reported below, with the name of the weight
            output_loading_info=True,
        )
    except (ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise SourceError(f"{folder} cannot be loaded as {family_class.transformers_class}: {reason}") from error
    if mismatched := sorted(report["mismatched_keys"]):
        name, shape, expected = mismatched[0]
        raise SourceError(
            f"The weights in {folder} do not match its config.json: {name} has shape {list(shape)}, expected "
            f"{list(expected)}."
        )
    if missing := sorted(report["missing_keys"]):
        architectures = ", ".join(config.get("architectures") or ["no architecture"])
        raise SourceError(
            f"The weights in {folder} lack {missing[0]}{_and_more(missing)}; {family_class.transformers_class} is "
            f"required, config.json states {architectures}."
        )
    return model


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
