"""CTranslate2 behind FastAPI; a translator is thread-safe and has its own workers."""

from __future__ import annotations

import uvicorn
from engines import CTranslate2, options
from fastapi import FastAPI
from pydantic import BaseModel


class PredictRequest(BaseModel):
    text: str


arguments = options()
translate = CTranslate2(arguments.model, arguments.threads, workers=arguments.threads)
app = FastAPI()


@app.post("/predict")
def predict(request: PredictRequest) -> dict[str, str]:
    return {"answer": translate([request.text])[0]}


uvicorn.run(app, port=arguments.port, log_level="warning")
