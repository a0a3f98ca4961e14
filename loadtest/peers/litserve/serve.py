from __future__ import annotations

from collections.abc import Sequence

from engines import BATCH, FAST, options
from litserve import LitAPI, LitServer

told = options()


class Api(LitAPI):
    def setup(self, device: str) -> None:  # noqa: ARG002
        self.engine = FAST[told.task](told.model, told.threads)

    def decode_request(self, request: dict[str, str]) -> str:
        return request[told.field]

    def predict(self, batch: Sequence[str]) -> Sequence[str]:
        return self.engine(batch)

    def encode_response(self, output: str) -> dict[str, str]:
        return {"answer": output}


if __name__ == "__main__":
    api = Api(max_batch_size=BATCH[told.task], batch_timeout=0.01)
    server = LitServer(api, accelerator="cpu", workers_per_device=1, timeout=120)
    server.run(host="127.0.0.1", port=told.port, log_level="warning", generate_client_file=False)
