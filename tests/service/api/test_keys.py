from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from headwaiter.api.keys import PREFIX, KeyFile, Keys, KeysError, append, format_key_line, make_key
from headwaiter.cli.serve import add_commands


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.txt"


def test_make_key_returns_unique_prefixed_keys() -> None:
    keys = {make_key() for _ in range(100)}

    assert len(keys) == 100
    assert all(key.startswith(PREFIX) and len(key) == len(PREFIX) + 43 for key in keys)


def test_key_file_contains_only_hashes(file: Path) -> None:
    key = make_key()

    append(file, format_key_line("alice", key))

    assert key not in file.read_text()


def test_new_key_file_is_readable_only_by_owner(file: Path) -> None:
    append(file, format_key_line("alice", make_key()))

    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("before", ["", "# comment\n", "# no newline at the end"])
def test_append_starts_new_line(file: Path, before: str) -> None:
    file.write_text(before)
    first, second = make_key(), make_key()

    append(file, format_key_line("alice", first))
    append(file, format_key_line("bob", second))

    keys = Keys.load(file)
    assert (keys.check(f"Bearer {first}"), keys.check(f"Bearer {second}")) == ("alice", "bob")


def test_append_to_invalid_file_raises_and_keeps_file(file: Path) -> None:
    file.write_text("invalid\n")

    with pytest.raises(KeysError, match="line 1"):
        append(file, format_key_line("alice", make_key()))

    assert file.read_text() == "invalid\n"


def test_two_keys_with_same_name_are_both_valid(file: Path) -> None:
    """Allows key rotation without downtime."""
    old, new = make_key(), make_key()
    file.write_text(f"{format_key_line('alice', old)}\n{format_key_line('alice', new)}\n")

    keys = Keys.load(file)

    assert keys.check(f"Bearer {old}") == keys.check(f"Bearer {new}") == "alice"


KEY = f"hw_{'a1B2' * 10}xyz"  # constant, because it is part of test ids, which pytest-xdist compares across workers


@pytest.mark.parametrize(
    ("bearer", "name"),
    [
        (f"Bearer {KEY}", "alice"),
        (f"bearer {KEY}", "alice"),
        (f"Bearer  {KEY} ", "alice"),
        (f"Basic {KEY}", None),
        (KEY, None),
        (f"Bearer {KEY}x", None),
        (f"Bearer {KEY[:-1]}", None),
        (f"Bearer hw_{'b2C3' * 10}xyz", None),
        ("Bearer", None),
        ("Bearer ключ", None),
        ("", None),
        (None, None),
    ],
)
def test_check_returns_name_of_valid_key(file: Path, bearer: str | None, name: str | None) -> None:
    file.write_text(f"# comment\n\n  {format_key_line('alice', KEY)}   # trailing comment\n")

    assert Keys.load(file).check(bearer) == name


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        ("alice\n", "line 1: .* expected `NAME sha256:` and 64 hex digits"),
        (f"# valid\n\nalice sha256:{'0' * 63}\n", "line 3: .* expected"),
        (f"alice sha256:{'g' * 64}\n", "line 1: .* expected"),
        (f"alice md5:{'0' * 64}\n", "line 1: .* expected"),
        (f"al ice sha256:{'0' * 64}\n", "line 1: .* expected"),
        (b"\xff\xfe", "cannot be read .not UTF-8 text"),
        (None, "cannot be read .No such file"),
    ],
)
def test_load_invalid_file_raises_with_line(file: Path, content: str | bytes | None, pattern: str) -> None:
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(KeysError, match=pattern):
        Keys.load(file)


def test_load_error_does_not_contain_key(file: Path) -> None:
    file.write_text(f"{KEY}\n")

    with pytest.raises(KeysError) as raised:
        Keys.load(file)

    assert KEY not in str(raised.value)


@pytest.mark.parametrize("name", ["", "al ice", "-alice", "alice#", "a" * 65, "älice"])
def test_invalid_key_name_is_rejected(name: str) -> None:
    with pytest.raises(KeysError, match="not a valid key name"):
        format_key_line(name, KEY)


def _replace(file: Path, content: str) -> None:
    """Replace the file atomically, as editors and Kubernetes do."""
    new = file.with_suffix(".new")
    new.write_text(content)
    os.replace(new, file)


def test_key_file_change_is_picked_up(file: Path) -> None:
    other = make_key()
    _replace(file, format_key_line("alice", KEY))
    keys = KeyFile(file, refresh_seconds=0)
    assert keys.check(f"Bearer {KEY}") == "alice"

    _replace(file, format_key_line("bob", other))
    assert keys.check(f"Bearer {KEY}") is None
    assert keys.check(f"Bearer {other}") == "bob"

    _replace(file, "")
    assert keys.check(f"Bearer {other}") is None


@pytest.mark.parametrize("content", ["invalid", None])
def test_key_file_invalid_or_missing_keeps_previous_keys(file: Path, content: str | None) -> None:
    _replace(file, format_key_line("alice", KEY))
    keys = KeyFile(file, refresh_seconds=0)

    if content is None:
        file.unlink()
    else:
        _replace(file, content)

    assert keys.check(f"Bearer {KEY}") == "alice"


def _run(*arguments: str) -> Result:
    app = typer.Typer()
    add_commands(app)
    return CliRunner().invoke(app, ["key", *arguments])


def test_key_command_prints_key_and_file_line(file: Path) -> None:
    result = _run("--name", "alice")

    (key,) = re.findall(rf"{PREFIX}\S+", result.stdout)
    (line,) = re.findall(r"alice sha256:\w+", result.stdout)
    file.write_text(line)
    assert Keys.load(file).check(f"Bearer {key}") == "alice"


def test_key_command_with_append_adds_line_to_file(file: Path) -> None:
    results = [_run("--append", str(file)) for _ in range(2)]

    keys = [re.findall(rf"{PREFIX}\S+", result.stdout)[0] for result in results]
    names = {Keys.load(file).check(f"Bearer {key}") for key in keys}
    assert len(names) == 2
    assert all(re.fullmatch(r"key-[0-9a-f]{6}", str(name)) for name in names)


@pytest.mark.parametrize("name", ["", "al ice"])
def test_key_command_rejects_invalid_name(name: str, file: Path) -> None:
    result = _run("--name", name, "--append", str(file))

    assert (result.exit_code, result.stdout) == (2, "")
    assert "not a valid key name" in result.stderr
    assert not file.exists()
