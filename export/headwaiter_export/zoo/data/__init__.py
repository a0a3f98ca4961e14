"""Small datasets that need no model hub: generated, bundled with a library or downloaded from a package registry."""
