"""The architectures of the attention story, in PyTorch: short files from one kit of blocks.

`kit/` has the blocks, `systems/` one file per architecture, `data/` the small data they learn from. A trained system is
a folder with config.json and model.safetensors, exported and served like any other checkpoint.
"""
