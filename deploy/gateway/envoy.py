"""Envoy configuration of the gateway: TLS, authentication, rate limits and routing to models.

The model of a gRPC request is determined by the first of
- the first label of the host name (`opus-mt-zh-en.models.example`);
- the metadata key `application`;
- the gRPC service, which identifies the task: the first model of serve.yaml with that task. Generated stubs therefore
  work without metadata. ListModels, health and reflection go to the catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deploy.gateway.settings import Gateway, Jwt, Rate, Tls, Upstream
from headwaiter.serving.config import CATALOG

Envoy = dict[str, Any]
APPLICATION = "application"
_TYPES = "type.googleapis.com/envoy.extensions"
_FILTERS = f"{_TYPES}.filters.http"
_STREAM_SECONDS = "3600s"  # episodes are long-lived streams
_KEEPALIVE = {
    "connection_keepalive": {"interval": "10s", "timeout": "5s"}
}  # closes unresponsive connections after 15 s
_CIRCUIT_BREAKER_LIMITS = ("max_connections", "max_pending_requests", "max_requests")
_UNLIMITED = 1_000_000  # the replicas do admission control and return detailed errors
_CATALOG_PATHS = ("/headwaiter.v1.Models/ListModels", "/grpc.health.v1.Health/", "/grpc.reflection.")


def envoy(gateway: Gateway, tasks: Mapping[str, str]) -> Envoy:
    """Build the configuration. `tasks` maps model names to tasks, in the order of serve.yaml."""
    upstream = gateway.upstream
    return {
        "static_resources": {
            "listeners": [
                {
                    "name": "gateway",
                    "address": _address(gateway.host, gateway.port),
                    "per_connection_buffer_limit_bytes": 1 << 20,
                    "filter_chains": [
                        {
                            "transport_socket": _tls_context(gateway.tls),
                            "filters": [_connection_manager(gateway, tasks)],
                        }
                    ],
                }
            ],
            "clusters": [
                _cluster("grpc", upstream, upstream.grpc, {"http2_protocol_options": _KEEPALIVE}),
                _cluster("http", upstream, upstream.http, {"http_protocol_options": {}}),
            ],
        }
    }


def _connection_manager(gateway: Gateway, tasks: Mapping[str, str]) -> Envoy:
    filters = [_rate_limit_filter(gateway.rate), *([_jwt_filter(gateway.jwt)] if gateway.jwt else [])]
    router = {"name": "router", "typed_config": {"@type": f"{_FILTERS}.router.v3.Router"}}
    return {
        "name": "connections",
        "typed_config": {
            "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "gateway",
            "codec_type": "AUTO",
            "use_remote_address": True,
            "stream_idle_timeout": _STREAM_SECONDS,
            "common_http_protocol_options": {"headers_with_underscores_action": "REJECT_REQUEST"},
            "http2_protocol_options": {"max_concurrent_streams": 1000, **_KEEPALIVE},
            "route_config": {"name": "models", "virtual_hosts": _virtual_hosts(tasks)},
            "http_filters": [*filters, router],
        },
    }


def _virtual_hosts(tasks: Mapping[str, str]) -> list[Envoy]:
    by_host = [
        {"name": model, "domains": [f"{model}.*"], "routes": [*_http_routes(), _grpc_route({"prefix": "/"}, model)]}
        for model in tasks
    ]
    defaults: dict[str, str] = {}
    for model, task in tasks.items():
        defaults.setdefault(task, model)
    has_application = {"prefix": "/", "headers": [{"name": APPLICATION, "present_match": True}]}
    routes = [
        *_http_routes(),
        _grpc_route(has_application),
        *(_grpc_route({"prefix": path}, CATALOG) for path in _CATALOG_PATHS),
        *(_grpc_route({"prefix": f"/headwaiter.v1.{task.capitalize()}/"}, model) for task, model in defaults.items()),
        _grpc_route({"prefix": "/"}),
    ]
    return [*by_host, {"name": "any", "domains": ["*"], "routes": routes}]


def _http_routes() -> Iterable[Envoy]:
    """Route for everything but gRPC; the path contains the model."""
    not_grpc = {
        "name": "content-type",
        "string_match": {"prefix": "application/grpc"},
        "invert_match": True,
        "treat_missing_header_as_empty": True,
    }
    match = {"prefix": "/", "headers": [not_grpc]}
    return [{"match": match, "route": {"cluster": "http", "timeout": _STREAM_SECONDS}}]


def _grpc_route(match: Envoy, application: str | None = None) -> Envoy:
    """Route without a timeout: the client's deadline applies. `application` overrides the metadata key."""
    route: Envoy = {"match": match, "route": {"cluster": "grpc", "timeout": "0s"}}
    if application:
        route["request_headers_to_add"] = [
            {
                "header": {"key": APPLICATION, "value": application},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        ]
    return route


def _tls_context(tls: Tls) -> Envoy:
    context: Envoy = {
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "tls_certificates": [
            {"certificate_chain": {"filename": tls.certificate}, "private_key": {"filename": tls.key}}
        ],
    }
    if tls.clients:
        context["validation_context"] = {"trusted_ca": {"filename": tls.clients}}
    return {
        "name": "tls",
        "typed_config": {
            "@type": f"{_TYPES}.transport_sockets.tls.v3.DownstreamTlsContext",
            "require_client_certificate": bool(tls.clients),
            "common_tls_context": context,
        },
    }


def _jwt_filter(jwt: Jwt) -> Envoy:
    provider = {
        "issuer": jwt.issuer,
        "audiences": [jwt.audience],
        "local_jwks": {"filename": jwt.keys},
        "from_headers": [{"name": jwt.header, "value_prefix": "Bearer "}],
        "forward": False,
    }
    return {
        "name": "jwt",
        "typed_config": {
            "@type": f"{_FILTERS}.jwt_authn.v3.JwtAuthentication",
            "providers": {"issuer": provider},
            "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "issuer"}}],
        },
    }


def _rate_limit_filter(rate: Rate) -> Envoy:
    bucket = {"max_tokens": rate.burst, "tokens_per_fill": rate.per_second, "fill_interval": "1s"}
    unlimited = {"max_tokens": 1_000_000, "tokens_per_fill": 1_000_000, "fill_interval": "1s"}
    always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    return {
        "name": "rate",
        "typed_config": {
            "@type": f"{_FILTERS}.local_ratelimit.v3.LocalRateLimit",
            "stat_prefix": "rate",
            "token_bucket": unlimited,
            "filter_enabled": always,
            "filter_enforced": always,
            "rate_limited_as_resource_exhausted": True,
            "rate_limits": [{"actions": [{"remote_address": {}}]}],
            "descriptors": [
                {"entries": [{"key": "remote_address"}], "token_bucket": bucket}
            ],  # one bucket per client address
        },
    }


def _cluster(name: str, upstream: Upstream, port: int, protocol: Envoy) -> Envoy:
    """Upstream with limited connection age: only new connections to a Kubernetes Service reach new pods."""
    return {
        "name": name,
        "type": "STRICT_DNS",
        "connect_timeout": "5s",
        "circuit_breakers": {"thresholds": [dict.fromkeys(_CIRCUIT_BREAKER_LIMITS, _UNLIMITED)]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions",
                "common_http_protocol_options": {"max_connection_duration": f"{upstream.connection_seconds}s"},
                "explicit_http_config": protocol,
            }
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(upstream.host, port)}}]}],
        },
    }


def _address(host: str, port: int) -> Envoy:
    return {"socket_address": {"address": host, "port_value": port}}
