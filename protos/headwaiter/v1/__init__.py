"""The protocol, as Python. Made from the `.proto` files beside it by `make protos`."""
