#!/bin/sh
# Prints the newest installed Python that the project supports, or nothing. A launcher that does not run (pyenv's shims
# of inactive versions) and a Python without venv or pip (Debian's python3 without python3-venv) do not count.
for minor in 13 12 11; do
    for name in "python3.$minor" python3 python; do
        command -v "$name" > /dev/null 2>&1 || continue
        if "$name" -c "import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, $minor))" 2> /dev/null; then
            command -v "$name"
            exit 0
        fi
    done
done
