# syntax=docker/dockerfile:1
# As cpu.Dockerfile, with the CUDA build of ONNX Runtime. CUDA and cuDNN are installed from PyPI; the driver comes from
# the node (NVIDIA Container Toolkit).
#   docker build -f deploy/docker/cuda.Dockerfile -t headwaiter:0.2.0-cuda .
#   docker run --gpus all -p 8000:8000 -p 9000:9000 -v ./models:/models:ro -v ./serve.yaml:/etc/headwaiter/serve.yaml:ro headwaiter:0.2.0-cuda

FROM python:3.11.14-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/headwaiter
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY constraints constraints
COPY service service
RUN /opt/headwaiter/bin/pip install -c constraints/serve-gpu.txt '.[serve,gpu]'

FROM python:3.11.14-slim-bookworm AS serve
RUN useradd --uid 1000 --create-home headwaiter && install -d -o headwaiter /models /etc/headwaiter
COPY --from=build /opt/headwaiter /opt/headwaiter
ENV NVIDIA=/opt/headwaiter/lib/python3.11/site-packages/nvidia
ENV PATH=/opt/headwaiter/bin:$PATH \
    LD_LIBRARY_PATH=$NVIDIA/cu13/lib:$NVIDIA/cudnn/lib \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
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
