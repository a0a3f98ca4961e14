"""Builds the OpenAPI document of a model from its methods and the comments of the .proto files."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from headwaiter.api.context import TIMEOUT_HEADER
from headwaiter.api.endpoint import Endpoint
from headwaiter.api.http.bounds import with_bounds
from headwaiter.api.http.events import MEDIA_TYPE as EVENTS
from headwaiter.api.http.examples import example, reads_text
from headwaiter.api.http.fields import inputs_field
from headwaiter.api.http.proto_comments import comment
from headwaiter.api.http.routes import DESCRIBE, ROUTES, Route
from headwaiter.api.http.schema import message_type, request_type
from headwaiter.api.methods import Method
from headwaiter.v1.models_pb2 import DescribeResponse

_JSON, _FORM = "application/json", "multipart/form-data"
_SCHEMAS = "#/components/schemas/"
_HEALTH, _KEY = "health", "key"
_FAILURES = {
    400: "A field is invalid, missing, too large or cannot be decoded.",
    401: "The API key is missing or invalid.",
    408: "The body arrived too slowly.",
    429: "The server is overloaded; retry after the number of seconds in `retry-after`.",
    500: "Internal error; the server log has the details under the request id.",
    503: "The model is starting or stopping.",
    504: f"The timeout in `{TIMEOUT_HEADER}` expired.",
}
_OTHER_PATHS = (
    "An unknown path is answered with 404, a path of another task or a method that the path does not allow with 405; "
    "both have an `Error` as their body."
)
_FAILURE_HEADERS = {
    401: {"www-authenticate": {"description": "Bearer.", "schema": {"type": "string"}}},
    429: {"retry-after": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}},
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": {"type": "string", "description": "gRPC status code name."},
                "message": {"type": "string", "description": "What is wrong and what would be valid."},
                "field": {"type": "string", "description": "Path of the invalid field, such as `text[2]`."},
                "limit": {"type": "number", "description": "Maximum or minimum valid value."},
            },
        }
    },
}
_TIMEOUT = {
    "name": TIMEOUT_HEADER,
    "in": "header",
    "description": "Request timeout in milliseconds.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 10**9 - 1},
}
_STREAM_EXAMPLE = (
    'event: delta\ndata: {"delta":"…"}\n\n'
    'event: done\ndata: {"text":"…","score":-0.5,"usage":{},"timing":{},"finish_reason":"stop"}\n\n'
)


class _SchemaWithoutTitles(GenerateJsonSchema):
    """Omits field titles, which would only repeat the field names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


def build_openapi(endpoint: Endpoint, description: DescribeResponse, *, needs_key: bool) -> dict[str, Any]:
    routes = [route for route in ROUTES if route.method.name in endpoint.handlers]
    schemas = with_bounds(_schemas([route.method for route in routes]), description)
    if "ClassifyRequest" in schemas:
        schemas["ClassifyRequest"] = _restrict_inputs(schemas["ClassifyRequest"], description)
    if "Action" in schemas and description.action_kind:
        schemas["Action"] = _restrict_actions(schemas["Action"], description.action_kind)
    security: dict[str, Any] = {"security": [{_KEY: []}]} if needs_key else {}
    components: dict[str, Any] = {"schemas": schemas}
    if needs_key:
        components["securitySchemes"] = {_KEY: {"type": "http", "scheme": "bearer"}}
    paths = {
        route.path: {"post": {**_operation(route, description, schemas, needs_key), **security}} for route in routes
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": description.name, "version": description.version, "description": _summary(description)},
        "paths": {**paths, "/": {"get": {**_describe_operation(needs_key), **security}}, **_health_paths()},
        "components": components,
    }


def _summary(description: DescribeResponse) -> str:
    values = [description.task, description.family, description.precision, description.device, description.license]
    return " · ".join(value for value in values if value) + f"\n\n{_OTHER_PATHS}"


def _operation(route: Route, description: DescribeResponse, schemas: dict[str, Any], needs_key: bool) -> dict[str, Any]:
    method, request = route.method, schemas[_request_name(route.method)]
    content = {_JSON: {"schema": _reference(_request_name(method)), "example": example(method, description)}}
    if "image" in request["properties"]:
        content[_FORM] = {"schema": _form_schema(request)}
    responses: dict[str, Any] = {_JSON: {"schema": _reference(_response_name(method))}}
    notes = (
        "Inputs are a single value or a list; results are in the same order."
        if inputs_field(_descriptor(method.request))
        else ""
    )
    if route.stream is not None:
        responses[EVENTS] = {"schema": {"type": "string"}, "example": _STREAM_EXAMPLE}
        notes += f" With `accept: {EVENTS}`, the response to a single input is streamed."
    return {
        "operationId": method.name,
        "tags": [description.task],
        "summary": comment(f"{method.service}.{method.name}"),
        "description": notes,
        "parameters": [_TIMEOUT],
        "requestBody": {
            "description": _body_limits(request, description),
            "required": bool(request.get("required") or request.get("oneOf")),
            "content": content,
        },
        "responses": {"200": {"description": "Results.", "content": responses}, **_failures(needs_key, *_FAILURES)},
    }


def _describe_operation(needs_key: bool) -> dict[str, Any]:
    content = {_JSON: {"schema": _reference(_response_name(DESCRIBE))}}
    return {
        "operationId": DESCRIBE.name,
        "tags": ["model"],
        "summary": comment(f"{DESCRIBE.service}.{DESCRIBE.name}"),
        "responses": {
            "200": {"description": "Description of the model.", "content": content},
            **_failures(needs_key, 401, 500),
        },
    }


def _health_paths() -> dict[str, Any]:
    def operation(name: str, summary: str, *failures: int) -> dict[str, Any]:
        content = {_JSON: {"schema": {"type": "object"}}}
        responses = {"200": {"description": "Yes.", "content": content}, **_failures(False, *failures)}
        return {"get": {"operationId": name, "tags": [_HEALTH], "summary": summary, "responses": responses}}

    return {
        "/healthz": operation(
            "healthz", "Whether the model still produces results; if not, it must be restarted.", 503
        ),
        "/readyz": operation("readyz", "Whether the model is loaded and warmed up.", 503),
    }


def _failures(needs_key: bool, *statuses: int) -> dict[str, Any]:
    content = {_JSON: {"schema": _reference("Error")}}
    return {
        str(status): {
            "description": _FAILURES[status],
            "content": content,
            **({"headers": _FAILURE_HEADERS[status]} if status in _FAILURE_HEADERS else {}),
        }
        for status in statuses
        if needs_key or status != 401
    }


def _body_limits(request: dict[str, Any], description: DescribeResponse) -> str:
    """The limits that a schema cannot express: the size of the body and of images."""
    limits = description.limits
    sentences = [f"At most {limits['message_mb']:,} MiB."] if "message_mb" in limits else []
    if "image" in request["properties"] and "pixels" in limits:
        sentences.append(f"Images have at most {limits['pixels']:,} pixels each.")
    return " ".join(sentences)


def _form_schema(request: dict[str, Any]) -> dict[str, Any]:
    """The schema as a form: images are files, objects are JSON or have dotted names, such as `decoding.num_beams`."""
    files = {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}
    fields = {**request["properties"], "image": files | {"description": "Image files."}}
    return {"type": "object", "required": ["image"], "properties": fields}


def _restrict_inputs(request: dict[str, Any], description: DescribeResponse) -> dict[str, Any]:
    """Remove the inputs that the classifier does not take: the protocol has texts and images, a model only one."""
    excluded = {"image"} if reads_text(description) else {"text", "text_pair"}
    fields = {name: value for name, value in request["properties"].items() if name not in excluded}
    alternatives = [alternative for alternative in request["oneOf"] if not excluded & set(alternative["required"])]
    return {**request, "properties": fields, "oneOf": alternatives}


def _restrict_actions(action: dict[str, Any], kind: str) -> dict[str, Any]:
    """Remove the action that is not in the policy's action space."""
    excluded = {"discrete": "continuous", "continuous": "discrete"}[kind]
    fields = {name: value for name, value in action["properties"].items() if name != excluded}
    return {name: value for name, value in action.items() if name != "allOf"} | {"properties": fields}


def _schemas(methods: list[Method]) -> dict[str, Any]:
    types = {_request_name(method): request_type(_descriptor(method.request)) for method in methods}
    types |= {_response_name(method): message_type(_descriptor(method.response)) for method in (*methods, DESCRIBE)}
    adapters: Any = [(name, "validation", TypeAdapter(type_)) for name, type_ in types.items()]
    _, document = TypeAdapter.json_schemas(
        adapters, ref_template=_SCHEMAS + "{model}", schema_generator=_SchemaWithoutTitles
    )
    return {**document["$defs"], "Error": _ERROR}


def _request_name(method: Method) -> str:
    return method.request.DESCRIPTOR.name


def _response_name(method: Method) -> str:
    return method.response.DESCRIPTOR.name


def _descriptor(message: Any) -> Any:
    return message.DESCRIPTOR


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"{_SCHEMAS}{name}"}
