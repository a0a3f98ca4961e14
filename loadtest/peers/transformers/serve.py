"""One request after another: torch has all cores for each."""

from __future__ import annotations

import threading

import uvicorn
from engines import TORCH, options
from fastapi import FastAPI

told = options()
engine = TORCH[told.task](told.model, told.threads)
turn = threading.Lock()
app = FastAPI()


@app.post("/predict")
def predict(asked: dict[str, str]) -> dict[str, str]:
    with turn:
        return {"answer": engine([asked[told.field]])[0]}


uvicorn.run(app, port=told.port, log_level="warning")
