"""Datasets of the built-in models: packages of public registries, and scenes composed from their art."""
