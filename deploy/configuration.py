"""`python -m deploy.configuration`: writes the README's table of everything that serve.yaml can say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from export.readme import renew
from loadtest.bench_tables import table
from service.config import Config


def keys() -> str:
    return table(("key", "unless told", "what it is"), _rows(Config, "")) + "\n"


def _rows(section: type[BaseModel], path: str) -> Iterator[tuple[str, str, str]]:
    for name, field in section.model_fields.items():
        if (inner := _section(field)) is not None:
            yield from _rows(inner, f"{path}{name}.NAME." if name == "models" else f"{path}{name}.")
        else:
            yield f"`{path}{name}`", _default(field), field.description or ""


def _section(field: FieldInfo) -> type[BaseModel] | None:
    """What is below a key, where that is a mapping."""
    kinds = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.default
    return "–" if value is None else str(value).lower()


if __name__ == "__main__":
    renew("keys", keys())
