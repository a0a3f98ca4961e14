"""`python -m deploy.config_reference`: write the table of serve.yaml keys in docs/configuration.md."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headwaiter.engine.settings_errors import nested_section
from headwaiter.serving.config import Config
from headwaiter_export.generated_sections import README, table, write_section

PAGE = README.parent / "docs/configuration.md"


def config_table() -> str:
    return table(("key", "default", "description"), _rows(Config, "")) + "\n"


def _rows(section: type[BaseModel], path: str) -> Iterator[tuple[str, str, str]]:
    required_keys_first = sorted(
        section.model_fields.items(), key=lambda item: not item[1].is_required() or nested_section(item[1]) is not None
    )
    for name, field in required_keys_first:
        if (nested := nested_section(field)) is not None:
            yield from _rows(nested, f"{path}{name}.NAME." if name == "models" else f"{path}{name}.")
        else:
            yield f"`{path}{name}`", _default(field), field.description or ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    return "–" if value is None else str(value).lower()


if __name__ == "__main__":
    write_section("keys", config_table(), PAGE)
