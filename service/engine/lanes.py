"""Several engines over one line and one session: while one of them thinks in Python, or meets the part of a graph that
does not spread over threads, the others keep the processors busy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from service.engine.jobs import Job
from service.engine.line import Line
from service.engine.meters import Meters
from service.engine.session import Session
from service.engine.worker import Worker, seconds_for

J = TypeVar("J", bound=Job[Any])


class Lanes(Generic[J]):
    def __init__(self, session: Session, makers: Iterable[Callable[..., Worker[J]]]) -> None:
        self.session = session
        self.line: Line[J] = Line(Meters())
        self.lanes = [make(line=self.line) for make in makers]

    def start(self) -> None:
        for lane in self.lanes:
            lane.start()

    @property
    def is_alive(self) -> bool:
        return all(lane.is_alive for lane in self.lanes)

    @property
    def meters(self) -> Meters:
        return Meters.total([self.line.meters, *(lane.meters for lane in self.lanes)])

    def submit(self, job: J) -> None:
        self.lanes[0].submit(job)

    def close(self, *, drain: bool = True) -> None:
        self.line.close(drain=drain)
        for lane in self.lanes:
            lane.join()

    def estimated_wait(self) -> float | None:
        room = sum(lane.room() for lane in self.lanes)
        known = [lane.pace.rate for lane in self.lanes if lane.pace.rate is not None]
        rate = sum(known) / len(known) * len(self.lanes) if known else None
        return seconds_for(self.line.work_beyond(room), rate)
