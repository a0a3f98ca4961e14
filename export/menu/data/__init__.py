"""What the models of the house learn from: packages of public registries, and scenes composed of their art."""
