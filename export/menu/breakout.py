"""MinAtar's Breakout: a paddle, a ball, three rows of bricks, a point for each brick; over when the ball is missed.

The game is its authors' and under the GPL, so it is no part of this house: its package is fetched when somebody plays.
"""

from __future__ import annotations

import importlib.util
import zipimport
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.packages import Parcel, fetch

MOVES = ("stay", "left", "right")
TIMESTEPS = 500
STATE = (10, 10, 4)
PADDLE, BALL, TRAIL, BRICK = range(4)  # channels of a state
_PARCEL = Parcel("wheel", "MinAtar==1.0.15", "f40450e133c552b97222702bb7b1c5254b47758390f4bd25e411399af0b21d42")
_ACTIONS = (0, 1, 3)  # of MinAtar's six: the others do nothing here
_STICKY = 0.1  # how often a move is that of the moment before, as MinAtar has it


class Breakout:
    """As gymnasium's environments are called; a state is flat."""

    def __init__(self) -> None:
        self._game = _module().Env()
        self._rng, self._last, self._time = np.random.default_rng(), 0, 0

    def reset(self, seed: int) -> tuple[NDArray[np.float32], dict[str, Any]]:
        self._rng, self._last, self._time = np.random.default_rng(seed), 0, 0
        self._game.random = np.random.RandomState(seed % 2**32)
        self._game.reset()
        return self._state(), {}

    def step(self, move: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self._rng.random() >= _STICKY:
            self._last = move
        self._time += 1
        reward, over = self._game.act(_ACTIONS[self._last])
        return self._state(), float(reward), bool(over), self._time == TIMESTEPS, {}

    def _state(self) -> NDArray[np.float32]:
        state: NDArray[np.float32] = self._game.state().astype(np.float32).ravel()
        return state


def sensible(state: NDArray[np.float32]) -> int:
    """The move towards where the ball comes down, or towards the ball while it rises."""
    seen = state.reshape(STATE)
    (paddle,) = seen[9, :, PADDLE].nonzero()[0]
    (row, column), (row_before, column_before) = (np.argwhere(seen[..., channel])[0] for channel in (BALL, TRAIL))
    wanted = column
    if row > row_before:
        across = np.sign(column - column_before) or (1 if column == 0 else -1)
        way = column + across * (8 - row)
        wanted = way if 0 <= way <= 9 else -1 - way if way < 0 else 19 - way  # a wall costs a step
    return 0 if wanted == paddle else 1 if wanted < paddle else 2


def _module() -> Any:
    """The game alone: the package around it wants libraries for plots. Wheels are archives that Python can import."""
    spec = zipimport.zipimporter(f"{fetch(_PARCEL)}/minatar/environments").find_spec("breakout")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
