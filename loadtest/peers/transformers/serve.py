"""transformers behind FastAPI, one request at a time with all cores."""

from __future__ import annotations

import threading

import uvicorn
from engines import TORCH_ENGINES, options
from fastapi import FastAPI

arguments = options()
engine = TORCH_ENGINES[arguments.task](arguments.model, arguments.threads)
lock = threading.Lock()
app = FastAPI()


@app.post("/predict")
def predict(request: dict[str, str]) -> dict[str, str]:
    with lock:
        return {"answer": engine([request[arguments.field]])[0]}


uvicorn.run(app, port=arguments.port, log_level="warning")
