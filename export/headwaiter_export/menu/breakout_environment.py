"""MinAtar's Breakout: a paddle, a ball and three rows of bricks; one point per brick, over when the ball is missed.

The game is licensed under the GPL and therefore not part of this repository; its package is downloaded on first use.
"""

from __future__ import annotations

import importlib.util
import zipimport
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_export.sources.registry_packages import Artifact, fetch

MOVES = ("stay", "left", "right")
TIMESTEPS = 500
STATE = (10, 10, 4)
PADDLE, BALL, TRAIL, BRICK = range(4)  # channels of a state
_ARTIFACT = Artifact("wheel", "MinAtar==1.0.15", "f40450e133c552b97222702bb7b1c5254b47758390f4bd25e411399af0b21d42")
_ACTIONS = (0, 1, 3)  # indices of MinAtar's six actions; the others have no effect in Breakout
_STICKY_ACTION_PROBABILITY = 0.1  # probability that the previous move is repeated, as in MinAtar


class Breakout:
    """The game with the interface of a gymnasium environment; states are flat."""

    def __init__(self) -> None:
        self._game = _module().Env()
        self._rng, self._last, self._time = np.random.default_rng(), 0, 0

    def reset(self, seed: int) -> tuple[NDArray[np.float32], dict[str, Any]]:
        self._rng, self._last, self._time = np.random.default_rng(seed), 0, 0
        self._game.random = np.random.RandomState(seed % 2**32)
        self._game.reset()
        return self._state(), {}

    def step(self, move: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self._rng.random() >= _STICKY_ACTION_PROBABILITY:
            self._last = move
        self._time += 1
        reward, over = self._game.act(_ACTIONS[self._last])
        return self._state(), float(reward), bool(over), self._time == TIMESTEPS, {}

    def _state(self) -> NDArray[np.float32]:
        state: NDArray[np.float32] = self._game.state().astype(np.float32).ravel()
        return state


def heuristic_move(state: NDArray[np.float32]) -> int:
    """Move towards where the ball will land or, while it rises, towards the ball."""
    channels = state.reshape(STATE)
    (paddle,) = channels[9, :, PADDLE].nonzero()[0]
    (row, column), (row_before, column_before) = (np.argwhere(channels[..., channel])[0] for channel in (BALL, TRAIL))
    target = column
    if row > row_before:
        direction = np.sign(column - column_before) or (1 if column == 0 else -1)
        landing = column + direction * (8 - row)
        target = (
            landing if 0 <= landing <= 9 else -1 - landing if landing < 0 else 19 - landing
        )  # reflected at a wall, which takes one step
    return 0 if target == paddle else 1 if target < paddle else 2


def _module() -> Any:
    """Import the game from the wheel, without the package around it, which requires plotting libraries."""
    spec = zipimport.zipimporter(f"{fetch(_ARTIFACT)}/minatar/environments").find_spec("breakout")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
