"""Run as a program instead of HAProxy: changes Ray Serve's configuration of HAProxy, then becomes HAProxy.

Ray Serve lets a request wait in its own proxy while an application has no replica, and answers in plain text. The
changes make these answers those of the API:

- A probe never waits for a replica: it is answered with 503 or UNAVAILABLE at once.
- An HTTP request that waits for a replica fails when its `x-timeout-ms` has passed.
- A request that finds no replica, or whose replica was killed, gets 503 with `retry-after`, or UNAVAILABLE. Where
  HAProxy still holds the HTTP request, it is sent to another replica instead.
- Without any application, and while applications are removed, the answer is 503 or UNAVAILABLE, not 404 or NOT_FOUND.
- The catalog answers gRPC calls that no other application answers.
- A connection with incomplete headers is closed after some seconds.

Only the standard library is imported, because HAProxy is restarted at every change of replicas. If a line that a change
looks for does not exist, that change is left out.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_Section = list[str]
_HTTP_FRONTEND, _GRPC_FRONTEND = "frontend http_frontend", "frontend grpc_frontend"
_HTTP_DEFAULT, _GRPC_DEFAULT = "backend default_backend", "backend default_grpc_backend"
_HTTP_PROBES = "{ path_end /healthz /readyz }"
_GRPC_PROBES = "{ path_beg /grpc.health.v1.Health/ }"
_USE_BACKEND = re.compile(r"^ *use_backend (\S+) if is_\1 *$")
_FALLBACK = re.compile(r"^ *server \S+ \S+( proto h2)? check backup *$")
_REPLICA = re.compile(r"^ *server (\S+) (\S+)( proto h2)? check\b(?!.* backup)")
NO_REPLICA = "the model has no replica that could answer; try again"
NO_ANSWER = "no replica answered before the deadline"
NO_APPLICATION = "the service is starting or stopping; try again"
_RETRY_AFTER_SECONDS = 1
_HEADER_SECONDS = 10
_UNAVAILABLE = 14
_FROM_RAY = "{ srv_name -m beg SERVE_PROXY_ACTOR }"
"""Ray Serve's own proxy has answered. It finds nothing while the applications are being removed."""


def _error(code: str, message: str) -> str:
    return json.dumps({"error": {"code": code, "message": message}}, separators=(",", ":"))


def _unavailable(message: str) -> str:
    body = json.dumps(_error("UNAVAILABLE", message))  # quotes and escapes it for HAProxy, too
    return f"status 503 content-type application/json hdr retry-after {_RETRY_AFTER_SECONDS} string {body}"


_HTTP_ANSWER = f"    http-request return {_unavailable(NO_APPLICATION)}"
_GRPC_ANSWER = f'    http-request return status 200 hdr grpc-status {_UNAVAILABLE} hdr grpc-message "{NO_APPLICATION}"'
_HTTP_REQUESTS = [
    # 100 ms after the deadline, at which a replica itself fails the request
    "    http-request set-timeout server req.hdr(x-timeout-ms),add(100)"
    " if { req.hdr(x-timeout-ms) -m reg ^[0-9]{1,9}$ }",
    # Requests have no side effects, so HAProxy may send one whose replica was killed before it answered to another
    # replica. Few retries, because the request itself may be what ends the replicas. Without `empty-response`, and with
    # reused connections to replicas, HAProxy would close the client's connection without a response.
    "    http-reuse never",
    "    retry-on conn-failure empty-response",
    "    retries 2",
    f"    http-response return {_unavailable(NO_APPLICATION)} if {_FROM_RAY} {{ status 404 }}"
    " { res.hdr(content-type) -m beg text/plain }",
]


def change(config: str, folder: Path, catalog: str) -> str:
    """The changed configuration. `folder` has the files of `error_files`, `catalog` is the name of an application."""
    sections = _split(config)
    http, grpc = (_backends(sections.get(name, [])) for name in (_HTTP_FRONTEND, _GRPC_FRONTEND))
    catalog_backend = _catalog_backend(sections.get(_GRPC_FRONTEND, []), catalog)
    # Without a replica of the catalog the service is starting or stopping, and Ray Serve's proxy returns NOT_FOUND.
    has_catalog = any(_REPLICA.match(line) for line in sections.get(f"backend {catalog_backend}", []))
    http_errors = [f"    errorfile {status} {folder / name}" for status, name in _HTTP_ERRORS.items()]
    grpc_errors = [f"    errorfile {status} {folder / _GRPC_ERROR}" for status in _HTTP_ERRORS]
    if "defaults" in sections:
        _limit_header_time(sections["defaults"])
    for header, lines in sections.items():
        if header == "defaults" and any(line.lstrip().startswith("errorfile 50") for line in lines):
            lines[:] = [line for line in lines if not line.lstrip().startswith("errorfile 50")] + http_errors
        elif header == _HTTP_FRONTEND:
            lines[:] = _with_probes(lines, _HTTP_PROBES)
        elif header == _GRPC_FRONTEND:
            lines[:] = _with_default(_with_probes(lines, _GRPC_PROBES), catalog_backend) + grpc_errors
        elif header in (_HTTP_DEFAULT, _GRPC_DEFAULT):
            answer = _GRPC_ANSWER if header == _GRPC_DEFAULT else _HTTP_ANSWER
            lines[:] = [line for line in lines if not line.lstrip().startswith("http-request return")] + [answer]
        elif header.removeprefix("backend ") in http:
            lines[:] = [line for line in lines if not line.lstrip().startswith("http-reuse")] + _HTTP_REQUESTS
        elif header.removeprefix("backend ") in grpc:
            lines[:] = [line for line in lines if has_catalog or not _FALLBACK.match(line)] + grpc_errors
    for name in http:
        sections[f"backend {name}-probe"] = _probe_backend(name, sections.get(f"backend {name}", []), [])
    for name in grpc:
        sections[f"backend {name}-probe"] = _probe_backend(name, sections.get(f"backend {name}", []), grpc_errors)
    return "".join(f"{line}\n" for header, lines in sections.items() for line in (header, *lines))


def _limit_header_time(defaults: _Section) -> None:
    if not any(line.lstrip().startswith("timeout http-request") for line in defaults):
        defaults.append(f"    timeout http-request {_HEADER_SECONDS}s")


def error_files() -> dict[str, bytes]:
    """The responses that HAProxy gives instead of its own, by file name."""
    unavailable, deadline = _error("UNAVAILABLE", NO_REPLICA), _error("DEADLINE_EXCEEDED", NO_ANSWER)
    json_type, retry = "content-type: application/json", f"retry-after: {_RETRY_AFTER_SECONDS}"
    grpc_headers = ("content-type: application/grpc", f"grpc-status: {_UNAVAILABLE}", f"grpc-message: {NO_REPLICA}")
    return {
        "unavailable.http": _response("503 Service Unavailable", unavailable, json_type, retry),
        "deadline.http": _response("504 Gateway Timeout", deadline, json_type),
        _GRPC_ERROR: _response("200 OK", "", *grpc_headers),
    }


_HTTP_ERRORS = {502: "unavailable.http", 503: "unavailable.http", 504: "deadline.http"}
_GRPC_ERROR = "grpc-unavailable.http"


def _split(config: str) -> dict[str, _Section]:
    """The lines of each section by its header."""
    sections: dict[str, _Section] = {}
    lines: _Section = []
    for line in config.splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            lines = sections.setdefault(line.rstrip(), [])
        else:
            lines.append(line)
    return sections


def _backends(frontend: _Section) -> list[str]:
    return [match[1] for line in frontend if (match := _USE_BACKEND.match(line))]


def _with_probes(frontend: _Section, probes: str) -> _Section:
    return [changed for line in frontend for changed in _probe_rule(line, probes)]


def _probe_rule(line: str, probes: str) -> Iterator[str]:
    if match := _USE_BACKEND.match(line):
        yield f"    use_backend {match[1]}-probe if is_{match[1]} {probes}"
    yield line


def _catalog_backend(grpc_frontend: _Section, catalog: str) -> str | None:
    route = re.compile(rf"^ *acl is_(\S+) req\.hdr\(application\) -m str {re.escape(catalog)} *$")
    return next((match[1] for line in grpc_frontend if (match := route.match(line))), None)


def _with_default(grpc_frontend: _Section, backend: str | None) -> _Section:
    is_default = [line.split() == ["default_backend", "default_grpc_backend"] for line in grpc_frontend]
    return [
        f"    default_backend {backend}" if changes and backend is not None else line
        for line, changes in zip(grpc_frontend, is_default, strict=True)
    ]


def _probe_backend(name: str, backend: _Section, errors: _Section) -> _Section:
    """The same replicas with the same health, but no proxy in which a probe would wait for one, and no retries."""
    replicas = [match for line in backend if (match := _REPLICA.match(line))]
    return [
        "    mode http",
        "    log global",
        "    http-reuse never",
        "    retries 0",
        "    no option redispatch",
        *errors,
        *(f"    server {match[1]} {match[2]}{match[3] or ''} track {name}/{match[1]}" for match in replicas),
    ]


def _response(status: str, body: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, f"content-length: {len(body)}", "", body]).encode()


def main(haproxy: str, catalog: str, arguments: list[str]) -> None:
    file = Path(arguments[arguments.index("-f") + 1])
    for name, content in error_files().items():
        file.with_name(name).write_bytes(content)
    file.write_text(change(file.read_text(encoding="utf-8"), file.parent, catalog), encoding="utf-8")
    os.execv(haproxy, [haproxy, *arguments])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
