"""Small data that need no hub: drawn, generated, or shipped with a library."""
