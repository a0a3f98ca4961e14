"""JSON bodies of requests over HTTP."""

from __future__ import annotations

from typing import Any

from headwaiter.api.http.encoding import dump, to_json_value
from headwaiter.api.http.fields import inputs_field, oneof_fields


def json_body(request: Any) -> bytes:
    """Return the JSON body of a request; inputs of a oneof become lists named after the field."""
    content, inputs = to_json_value(request), inputs_field(request.DESCRIPTOR)
    if inputs is not None and oneof_fields(inputs.message_type):
        for item in content.pop(inputs.name):
            for name, value in item.items():
                content.setdefault(name, []).append(value)
    return dump(content)
