"""`headwaiter play`: an episode over the network, drawn in the terminal."""

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

from export.console import console, fail
from export.errors import SourceError
from export.menu.breakout import BALL, BRICK, PADDLE, STATE, TRAIL, Breakout
from service.calls.orders import one_sentence
from service.client import Client

_LOOKS = {BRICK: ("▆▆", "red"), TRAIL: ("· ", "dim"), BALL: ("● ", "bold yellow"), PADDLE: ("▀▀", "cyan")}


def play_command(
    model: Annotated[str, typer.Argument(help="A served policy that plays Breakout.")] = "breakout-dt",
    target_return: Annotated[float, typer.Option(help="The return to ask for.")] = 40.0,
    seed: Annotated[int, typer.Option(help="The same seed begins the same game.", min=0)] = 0,
    delay: Annotated[float, typer.Option(help="Seconds between two moves.", min=0.0)] = 0.08,
    most: Annotated[int, typer.Option(help="The most moves.", min=1)] = 500,
    address: Annotated[
        str, typer.Option(help="HOST:PORT of the service.", envvar="HEADWAITER_ADDRESS")
    ] = "localhost:9000",
    key: Annotated[str | None, typer.Option(help="Where the service asks for one.", envvar="HEADWAITER_KEY")] = None,
) -> None:
    """Let a served policy play an episode of MinAtar's Breakout, which is fetched the first time.

    Examples:

      headwaiter play

      headwaiter play breakout-dt --target-return 3 --seed 7
    """
    try:
        game = Breakout()
    except SourceError as error:
        fail(str(error), 2)
    with one_sentence(), Client(address, key=key) as client, Live(console=console, auto_refresh=False) as live:
        for moment in islice(_moments(client, model, target_return, game, seed), most):
            if console.is_terminal:
                live.update(drawn(moment), refresh=True)
                time.sleep(delay)
    if not console.is_terminal:
        console.print(drawn(moment))
    console.print(f"{moment.gained:g} bricks in {moment.moves} moves, asked for {target_return:g}")


class Moment(NamedTuple):
    state: NDArray[np.float32]
    gained: float
    moves: int


def _moments(client: Client, model: str, target: float, game: Breakout, seed: int) -> Iterator[Moment]:
    """After each move, until the game is over."""
    (state, _), reward, gained = game.reset(seed), None, 0.0
    with client.episode(model, target_return=target) as episode:
        for moves in count(1):
            action = episode.step(state, reward).discrete
            assert action is not None
            state, reward, ended, stopped, _ = game.step(action)
            gained += reward
            yield Moment(state, gained, moves)
            if ended or stopped:
                return


def drawn(moment: Moment) -> Text:
    """The board, two letters a cell; what is named first lies below."""
    board = Text()
    for row in moment.state.reshape(STATE):
        for cell in row:
            letters, style = next((_LOOKS[each] for each in reversed(_LOOKS) if cell[each]), ("  ", ""))
            board.append(letters, style)
        board.append("\n")
    return board.append(f"{moment.gained:g} bricks, {moment.moves} moves", "dim")
