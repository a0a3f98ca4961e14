"""A translator is safe to call from many threads: it has workers of its own."""

from __future__ import annotations

import uvicorn
from engines import CTranslate2, options
from fastapi import FastAPI
from pydantic import BaseModel


class Asked(BaseModel):
    text: str


told = options()
translate = CTranslate2(told.model, told.threads, workers=told.threads)
app = FastAPI()


@app.post("/predict")
def predict(asked: Asked) -> dict[str, str]:
    return {"answer": translate([asked.text])[0]}


uvicorn.run(app, port=told.port, log_level="warning")
