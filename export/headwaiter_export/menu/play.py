"""The `headwaiter play` command: plays an episode with a served policy and renders it in the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count, islice
from typing import Annotated, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from rich.live import Live
from rich.text import Text

from headwaiter.cli.call.context import exit_on_error
from headwaiter.client import Client
from headwaiter.console import CommandConsole
from headwaiter_export.errors import SourceError
from headwaiter_export.menu.breakout_environment import BALL, BRICK, PADDLE, STATE, TRAIL, Breakout

_GLYPHS = {BRICK: ("▆▆", "red"), TRAIL: ("· ", "dim"), BALL: ("● ", "bold yellow"), PADDLE: ("▀▀", "cyan")}


def play_command(
    model: Annotated[str, typer.Argument(help="A served policy that plays Breakout.")] = "breakout-dt",
    target_return: Annotated[float, typer.Option(help="Target return of the episode.")] = 40.0,
    seed: Annotated[int, typer.Option(help="Random seed of the game.", min=0)] = 0,
    delay: Annotated[float, typer.Option(help="Seconds between moves.", min=0.0)] = 0.08,
    max_moves: Annotated[int, typer.Option(help="Maximum number of moves.", min=1)] = 500,
    address: Annotated[
        str, typer.Option(help="HOST:PORT of the service.", envvar="HEADWAITER_ADDRESS")
    ] = "localhost:9000",
    key: Annotated[
        str | None, typer.Option(help="API key, if the server requires one.", envvar="HEADWAITER_KEY")
    ] = None,
) -> None:
    """Play an episode of MinAtar's Breakout with a served policy. The game is downloaded on first use.

    Examples:

      headwaiter play

      headwaiter play breakout-dt --target-return 3 --seed 7
    """
    console = CommandConsole()
    try:
        game = Breakout()
    except SourceError as error:
        console.fail(str(error), 2)
    with exit_on_error(), Client(address, key=key) as client, Live(console=console.out, auto_refresh=False) as live:
        for frame in islice(_play_episode(client, model, target_return, game, seed), max_moves):
            if console.out.is_terminal:
                live.update(render_board(frame), refresh=True)
                time.sleep(delay)
    if not console.out.is_terminal:
        console.print(render_board(frame))
    console.print(f"{frame.score:g} bricks in {frame.moves} moves; target return {target_return:g}")


class Frame(NamedTuple):
    state: NDArray[np.float32]
    score: float
    moves: int


def _play_episode(client: Client, model: str, target: float, game: Breakout, seed: int) -> Iterator[Frame]:
    """Yield a frame after each move until the game is over."""
    (state, _), reward, score = game.reset(seed), None, 0.0
    with client.episode(model, target_return=target) as episode:
        for moves in count(1):
            action = episode.step(state, reward).discrete
            assert action is not None
            state, reward, ended, stopped, _ = game.step(action)
            score += reward
            yield Frame(state, score, moves)
            if ended or stopped:
                return


def render_board(frame: Frame) -> Text:
    """Render the board with two characters per cell; later entries of `_GLYPHS` are drawn on top."""
    board = Text()
    for row in frame.state.reshape(STATE):
        for cell in row:
            characters, style = next((_GLYPHS[channel] for channel in reversed(_GLYPHS) if cell[channel]), ("  ", ""))
            board.append(characters, style)
        board.append("\n")
    return board.append(f"{frame.score:g} bricks, {frame.moves} moves", "dim")
