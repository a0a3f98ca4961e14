from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from service.keys import PREFIX, KeyFile, Keys, KeysError, append, line_for, make_key
from service.serving import add_commands


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.txt"


def test_keys_are_long_random_and_told_apart() -> None:
    keys = {make_key() for _ in range(100)}

    assert len(keys) == 100
    assert all(key.startswith(PREFIX) and len(key) == len(PREFIX) + 43 for key in keys)


def test_the_file_never_holds_a_key(file: Path) -> None:
    key = make_key()

    append(file, line_for("alice", key))

    assert key not in file.read_text()


def test_a_new_file_is_for_its_owner_only(file: Path) -> None:
    append(file, line_for("alice", make_key()))

    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("before", ["", "# ours\n", "# no newline at the end"])
def test_a_key_is_appended_on_a_line_of_its_own(file: Path, before: str) -> None:
    file.write_text(before)
    first, second = make_key(), make_key()

    append(file, line_for("alice", first))
    append(file, line_for("bob", second))

    keys = Keys.load(file)
    assert (keys.check(f"Bearer {first}"), keys.check(f"Bearer {second}")) == ("alice", "bob")


def test_a_file_that_is_wrong_is_not_appended_to(file: Path) -> None:
    file.write_text("nonsense\n")

    with pytest.raises(KeysError, match="line 1"):
        append(file, line_for("alice", make_key()))

    assert file.read_text() == "nonsense\n"


def test_one_name_may_have_two_keys(file: Path) -> None:
    """The old one and the new one, while a key is changed."""
    old, new = make_key(), make_key()
    file.write_text(f"{line_for('alice', old)}\n{line_for('alice', new)}\n")

    keys = Keys.load(file)

    assert keys.check(f"Bearer {old}") == keys.check(f"Bearer {new}") == "alice"


KEY = f"hw_{'a1B2' * 10}xyz"  # the same in every worker: it is part of tests' names


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
def test_check(file: Path, bearer: str | None, name: str | None) -> None:
    file.write_text(f"# people\n\n  {line_for('alice', KEY)}   # since May\n")

    assert Keys.load(file).check(bearer) == name


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("alice\n", "line 1: a line is `NAME sha256:` and 64 hex digits"),
        (f"# fine\n\nalice sha256:{'0' * 63}\n", "line 3: a line is"),
        (f"alice sha256:{'g' * 64}\n", "line 1: a line is"),
        (f"alice md5:{'0' * 64}\n", "line 1: a line is"),
        (f"al ice sha256:{'0' * 64}\n", "line 1: a line is"),
        (b"\xff\xfe", "it is not text"),
        (None, "cannot be read .No such file"),
    ],
)
def test_a_file_that_is_wrong_is_told_by_line(file: Path, content: str | bytes | None, sentence: str) -> None:
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(KeysError, match=sentence):
        Keys.load(file)


def test_a_key_pasted_into_the_file_is_not_repeated_in_the_error(file: Path) -> None:
    file.write_text(f"{KEY}\n")

    with pytest.raises(KeysError) as raised:
        Keys.load(file)

    assert KEY not in str(raised.value)


@pytest.mark.parametrize("name", ["", "al ice", "-alice", "alice#", "a" * 65, "älice"])
def test_names_that_no_key_can_have(name: str) -> None:
    with pytest.raises(KeysError, match="cannot name a key"):
        line_for(name, KEY)


def _replace(file: Path, content: str) -> None:
    """As editors and Kubernetes do it."""
    new = file.with_suffix(".new")
    new.write_text(content)
    os.replace(new, file)


def test_keys_follow_their_file(file: Path) -> None:
    other = make_key()
    _replace(file, line_for("alice", KEY))
    keys = KeyFile(file, every=0)
    assert keys.check(f"Bearer {KEY}") == "alice"

    _replace(file, line_for("bob", other))
    assert keys.check(f"Bearer {KEY}") is None
    assert keys.check(f"Bearer {other}") == "bob"

    _replace(file, "")
    assert keys.check(f"Bearer {other}") is None


@pytest.mark.parametrize("wrong", ["nonsense", None])
def test_keys_stay_while_their_file_is_wrong(file: Path, wrong: str | None) -> None:
    _replace(file, line_for("alice", KEY))
    keys = KeyFile(file, every=0)

    if wrong is None:
        file.unlink()
    else:
        _replace(file, wrong)

    assert keys.check(f"Bearer {KEY}") == "alice"


def _run(*arguments: str) -> Result:
    app = typer.Typer()
    add_commands(app)
    return CliRunner().invoke(app, ["key", *arguments])


def test_the_command_shows_a_key_and_its_line(file: Path) -> None:
    result = _run("--name", "alice")

    (key,) = re.findall(rf"{PREFIX}\S+", result.stdout)
    (line,) = re.findall(r"alice sha256:\w+", result.stdout)
    file.write_text(line)
    assert Keys.load(file).check(f"Bearer {key}") == "alice"


def test_the_command_adds_the_line_to_a_file(file: Path) -> None:
    results = [_run("--append", str(file)) for _ in range(2)]

    keys = [re.findall(rf"{PREFIX}\S+", result.stdout)[0] for result in results]
    names = {Keys.load(file).check(f"Bearer {key}") for key in keys}
    assert len(names) == 2
    assert all(re.fullmatch(r"key-[0-9a-f]{6}", str(name)) for name in names)


@pytest.mark.parametrize("name", ["", "al ice"])
def test_the_command_refuses_a_name(name: str, file: Path) -> None:
    result = _run("--name", name, "--append", str(file))

    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot name a key" in result.stderr
    assert not file.exists()
