"""LitServe with dynamic batching."""

from __future__ import annotations

from collections.abc import Sequence

from engines import FAST_ENGINES, MAX_BATCH_SIZE, options
from litserve import LitAPI, LitServer

arguments = options()


class Api(LitAPI):
    def setup(self, device: str) -> None:  # noqa: ARG002
        self.engine = FAST_ENGINES[arguments.task](arguments.model, arguments.threads)

    def decode_request(self, request: dict[str, str]) -> str:
        return request[arguments.field]

    def predict(self, batch: Sequence[str]) -> Sequence[str]:
        return self.engine(batch)

    def encode_response(self, output: str) -> dict[str, str]:
        return {"answer": output}


if __name__ == "__main__":
    api = Api(max_batch_size=MAX_BATCH_SIZE[arguments.task], batch_timeout=0.01)
    server = LitServer(api, accelerator="cpu", workers_per_device=1, timeout=120)
    server.run(host="127.0.0.1", port=arguments.port, log_level="warning", generate_client_file=False)
