"""The protocol as Python stubs, generated from `protos/headwaiter/v1/*.proto` by `make protos`."""
