"""The OpenAPI document of a model: the methods that it has, in the words of the .proto files."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from headwaiter.v1.models_pb2 import DescribeResponse
from service.ingress.calls import TIMEOUT
from service.ingress.endpoint import Endpoint
from service.ingress.http.comments import comment
from service.ingress.http.events import MEDIA_TYPE as EVENTS
from service.ingress.http.examples import example, reads_text
from service.ingress.http.fields import inputs_of
from service.ingress.http.routes import DESCRIBE, ROUTES, Route
from service.ingress.http.schema import message_type, request_type
from service.ingress.methods import Method

_JSON, _FORM = "application/json", "multipart/form-data"
_SCHEMAS = "#/components/schemas/"
_HEALTH, _KEY = "health", "key"
_FAILURES = {
    400: "A field is wrong, missing, too long, too large or cannot be decoded.",
    401: "No key was sent, or a wrong one.",
    429: "Too many requests are waiting; `retry-after` says for how many seconds to wait.",
    500: "A bug in the service; its log has the request id.",
    503: "The model is starting or stopping.",
    504: f"The time given in `{TIMEOUT}` is over.",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": {"type": "string", "description": "The name of the status in gRPC."},
                "message": {"type": "string", "description": "What is wrong, and what would be right."},
                "field": {"type": "string", "description": "Where it is wrong, such as `text[2]`."},
                "limit": {"type": "number", "description": "The most (or least) that would be right."},
            },
        }
    },
}
_TIMEOUT = {
    "name": TIMEOUT,
    "in": "header",
    "description": "Milliseconds after which the answer is of no use.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 10**9 - 1},
}
_DONE = 'event: delta\ndata: {"delta":"…"}\n\nevent: done\ndata: {"text":"…","score":-0.5,"usage":{},"timing":{}}\n\n'


class _Untitled(GenerateJsonSchema):
    """Fields have names; titles would say them again."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


def document(endpoint: Endpoint, about: DescribeResponse, *, needs_key: bool) -> dict[str, Any]:
    routes = [route for route in ROUTES if route.method.name in endpoint.verbs]
    schemas = _schemas([route.method for route in routes])
    if "ClassifyRequest" in schemas:
        schemas["ClassifyRequest"] = _fitting(schemas["ClassifyRequest"], about)
    lock: dict[str, Any] = {"security": [{_KEY: []}]} if needs_key else {}
    components: dict[str, Any] = {"schemas": schemas}
    if needs_key:
        components["securitySchemes"] = {_KEY: {"type": "http", "scheme": "bearer"}}
    paths = {route.path: {"post": {**_operation(route, about, schemas, needs_key), **lock}} for route in routes}
    return {
        "openapi": "3.1.0",
        "info": {"title": about.name, "version": about.version, "description": _introduction(about)},
        "paths": {**paths, "/": {"get": {**_description(needs_key), **lock}}, **_health()},
        "components": components,
    }


def _introduction(about: DescribeResponse) -> str:
    facts = [about.task, about.family, about.precision, about.device, about.license]
    return " · ".join(fact for fact in facts if fact)


def _operation(route: Route, about: DescribeResponse, schemas: dict[str, Any], needs_key: bool) -> dict[str, Any]:
    method, request = route.method, schemas[_request_name(route.method)]
    content = {_JSON: {"schema": _reference(_request_name(method)), "example": example(method.name, about)}}
    if "image" in request["properties"]:
        content[_FORM] = {"schema": _form(request)}
    answers: dict[str, Any] = {_JSON: {"schema": _reference(_response_name(method))}}
    how = (
        "Inputs may be one value or a list; results come in their order."
        if inputs_of(_descriptor(method.request))
        else ""
    )
    if route.stream is not None:
        answers[EVENTS] = {"schema": {"type": "string"}, "example": _DONE}
        how += f" With `accept: {EVENTS}` one input is answered piece by piece."
    return {
        "operationId": method.name,
        "tags": [about.task],
        "summary": comment(f"{method.service}.{method.name}"),
        "description": how,
        "parameters": [_TIMEOUT],
        "requestBody": {"required": bool(request.get("required") or request.get("oneOf")), "content": content},
        "responses": {"200": {"description": "The answer.", "content": answers}, **_failures(needs_key, *_FAILURES)},
    }


def _description(needs_key: bool) -> dict[str, Any]:
    answer = {_JSON: {"schema": _reference(_response_name(DESCRIBE))}}
    return {
        "operationId": DESCRIBE.name,
        "tags": ["model"],
        "summary": comment(f"{DESCRIBE.service}.{DESCRIBE.name}"),
        "responses": {"200": {"description": "The model.", "content": answer}, **_failures(needs_key, 401, 500)},
    }


def _health() -> dict[str, Any]:
    def operation(name: str, summary: str, *failures: int) -> dict[str, Any]:
        answer = {_JSON: {"schema": {"type": "object"}}}
        responses = {"200": {"description": "Yes.", "content": answer}, **_failures(False, *failures)}
        return {"get": {"operationId": name, "tags": [_HEALTH], "summary": summary, "responses": responses}}

    return {
        "/healthz": operation("healthz", "Whether the replica is alive."),
        "/readyz": operation("readyz", "Whether the model is loaded and warmed up.", 503),
    }


def _failures(needs_key: bool, *statuses: int) -> dict[str, Any]:
    content = {_JSON: {"schema": _reference("Error")}}
    known = {status: _FAILURES[status] for status in statuses if needs_key or status != 401}
    return {str(status): {"description": words, "content": content} for status, words in known.items()}


def _form(request: dict[str, Any]) -> dict[str, Any]:
    """The same as a form: images are files, objects are JSON or have dotted names, such as `decoding.beams`."""
    files = {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}
    fields = {**request["properties"], "image": files | {"description": "The images, as files."}}
    return {"type": "object", "required": ["image"], "properties": fields}


def _fitting(request: dict[str, Any], about: DescribeResponse) -> dict[str, Any]:
    """Classifiers take texts or images: the protocol has both, a model one."""
    barred = {"image"} if reads_text(about) else {"text", "text_pair"}
    fields = {name: value for name, value in request["properties"].items() if name not in barred}
    ways = [each for each in request["oneOf"] if not barred & set(each["required"])]
    return {**request, "properties": fields, "oneOf": ways}


def _schemas(methods: list[Method]) -> dict[str, Any]:
    wanted = {_request_name(method): request_type(_descriptor(method.request)) for method in methods}
    wanted |= {_response_name(each): message_type(_descriptor(each.response)) for each in (*methods, DESCRIBE)}
    adapters: Any = [(name, "validation", TypeAdapter(each)) for name, each in wanted.items()]
    _, made = TypeAdapter.json_schemas(adapters, ref_template=_SCHEMAS + "{model}", schema_generator=_Untitled)
    return {**made["$defs"], "Error": _ERROR}


def _request_name(method: Method) -> str:
    return method.request.DESCRIPTOR.name


def _response_name(method: Method) -> str:
    return method.response.DESCRIPTOR.name


def _descriptor(message: Any) -> Any:
    return message.DESCRIPTOR


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"{_SCHEMAS}{name}"}
