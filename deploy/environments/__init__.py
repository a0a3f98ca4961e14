"""The Python environments of the project: what each installs, how it is set up, and whether it resolves."""
