"""Reference implementations of attention architectures in PyTorch, built from shared layers.

`layers/` has the building blocks, `architectures/` one file per architecture, and `data/` the small datasets they are
trained on. A trained model is a directory with config.json and model.safetensors that is exported and served like any
other checkpoint.
"""
