# syntax=docker/dockerfile:1
# Serving dependencies only, without torch and transformers. Model packages are mounted at /models, or are in /opt/models
# (target `baked`).
#   docker build -f deploy/docker/cpu.Dockerfile -t headwaiter:0.2.0-cpu .
#   docker run -p 8000:8000 -p 9000:9000 -v ./models:/models:ro -v ./serve.yaml:/etc/headwaiter/serve.yaml:ro headwaiter:0.2.0-cpu

FROM python:3.11.14-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/headwaiter
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY constraints constraints
COPY service service
RUN /opt/headwaiter/bin/pip install -c constraints/serve-cpu.txt '.[serve,cpu]'

FROM python:3.11.14-slim-bookworm AS serve
RUN useradd --uid 1000 --create-home headwaiter && install -d -o headwaiter /models /etc/headwaiter
COPY --from=build /opt/headwaiter /opt/headwaiter
ENV PATH=/opt/headwaiter/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RAY_SERVE_ENABLE_HA_PROXY=1 \
    RAY_SERVE_THROUGHPUT_OPTIMIZED=1 \
    RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS=1 \
    RAY_USAGE_STATS_ENABLED=0
USER 1000
WORKDIR /home/headwaiter
EXPOSE 8000 9000 8080
CMD ["headwaiter", "serve", "/etc/headwaiter/serve.yaml"]

# `--target baked`: model packages in the image, at a path that no volume covers.
FROM serve AS baked
COPY --chown=1000 models /opt/models

# Default target.
FROM serve
