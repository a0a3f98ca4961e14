"""Several lanes over one line: who takes what, what is counted, and what a lane that dies leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event

import pytest

from service.engine.binding import Binding
from service.engine.decoder import Decoder, open_decoder
from service.engine.jobs import ClosedError
from service.engine.lanes import Lanes
from service.engine.sequence import DecodeJob
from service.engine.session import Session
from service.package import Package
from tests.conftest import Packages
from tests.service.test_decoder import engine as one_lane
from tests.service.test_decoder import job, plain, run, sources

ROOM, ROWS = 40, 32  # of a lane


@pytest.fixture
def package(packages: Packages) -> Package:
    return packages("marian", "int8").package


@contextmanager
def two_lanes(package: Package) -> Iterator[Lanes[DecodeJob]]:
    session = Session(package, threads=2)
    lanes = Lanes(session, 2 * [partial(Decoder, session, rows=ROWS, room=ROOM)])
    try:
        yield lanes
    finally:
        lanes.close(drain=False)


def requests(package: Package, count: int, **how: object) -> list[DecodeJob]:
    return [job(package, tokens, plain(package, **how)) for tokens in sources(package, count)]


@pytest.mark.parametrize(
    ("threads", "rows", "expected"), [(1, 64, [64]), (2, 64, [32, 32]), (2, 16, [16]), (3, 64, [22, 21, 21])]
)
def test_lanes_are_as_many_as_threads_where_rows_suffice(
    threads: int, rows: int, expected: list[int], package: Package
) -> None:
    engine = open_decoder(Session(package, threads=threads), rows=rows, room=ROOM)
    lanes = engine.lanes if isinstance(engine, Lanes) else [engine]
    assert [lane.meters.rows for lane in lanes] == expected
    assert engine.meters.rows == rows


class Watched(Session):
    """Notes whether the steps of its decoder were bound to a lane's share of the threads."""

    def __init__(self, package: Package, *, threads: int) -> None:
        super().__init__(package, threads=threads)
        self.narrow: list[bool] = []

    def binding(self, graph: str, *, narrow: bool = False) -> Binding:
        self.narrow.append(narrow)
        return super().binding(graph, narrow=narrow)


def test_lanes_share_the_threads_only_while_most_are_busy(package: Package) -> None:
    session = Watched(package, threads=2)
    engine = open_decoder(session, rows=2 * ROWS, room=ROOM)
    assert isinstance(engine, Lanes)
    one, other = engine.lanes
    few, many = requests(package, 2), requests(package, 38)
    for each in few:
        engine.submit(each)
    one.turn()
    assert session.narrow == [False], "alone, a lane has all threads"
    for each in many:
        engine.submit(each)
    other.turn()
    one.turn()
    assert session.narrow[1:] == [True, True]
    engine.start()
    answers = [each.future.result(60).hypotheses[0].tokens for each in few + many]
    engine.close()
    with one_lane(package) as decoder:
        expected = run(decoder, requests(package, 2) + requests(package, 38))
    assert answers == [each.hypotheses[0].tokens for each in expected]


@pytest.mark.parametrize(("waiting", "shares"), [(3, (3, 0)), (8, (8, 0)), (20, (10, 10)), (100, (32, 32))])
def test_few_stay_together_and_many_are_divided(waiting: int, shares: tuple[int, int], package: Package) -> None:
    """Lanes that are not started take nothing by themselves: each turn here is one of the test."""
    with two_lanes(package) as lanes:
        for each in requests(package, waiting):
            lanes.submit(each)
        taken = []
        for lane in lanes.lanes:
            lane.turn()
            taken.append(lane.load())
        assert tuple(taken) == shares
        assert lanes.meters.rows_in_use == sum(shares)
        lanes.start()


def test_wide_beams_find_a_lane(package: Package) -> None:
    with two_lanes(package) as lanes:
        lanes.start()
        asked = requests(package, 12, beams=8, max_new_tokens=5)
        for each in asked:
            lanes.submit(each)
        assert all(each.future.result(60).hypotheses for each in asked)
        assert lanes.meters.finished == 12


def test_the_wait_is_that_of_all_lanes_together(package: Package) -> None:
    with two_lanes(package) as lanes:
        assert lanes.estimated_wait() == 0
        for each in requests(package, 200, max_new_tokens=10):
            lanes.submit(each)
        assert lanes.estimated_wait() is None, "nothing is known of the pace"
        lanes.lanes[0].pace.note(1000, 1.0)
        alone = lanes.estimated_wait()
        lanes.lanes[1].pace.note(3000, 1.0)
        both = lanes.estimated_wait()
        assert alone is not None
        assert both == pytest.approx(alone / 2)
        lanes.start()


class Dies(Decoder):
    """As a mistake of ours would make it: not an error of the runtime, which costs only its rows."""

    def turn(self) -> None:
        raise AssertionError("a mistake")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lane_that_dies_ends_the_engine_and_nobody_waits_forever(package: Package) -> None:
    session = Session(package, threads=1)
    lanes = Lanes(session, [partial(Dies, session, rows=8, room=ROOM), partial(Decoder, session, rows=8, room=ROOM)])
    asked = requests(package, 40)
    for each in asked:
        lanes.submit(each)
    lanes.start()
    for each in asked:
        assert each.future.result(60).hypotheses, "the other lane drains the line"
    assert not lanes.is_alive
    with pytest.raises(ClosedError):
        lanes.submit(requests(package, 1)[0])
    lanes.close()


def test_closing_drains_the_line_or_lets_it_go(package: Package) -> None:
    for drain in (True, False):
        with two_lanes(package) as lanes:
            begun = Event()
            asked = requests(package, 150)
            asked[0].listener = lambda _, begun=begun: begun.set()
            for each in asked:
                lanes.submit(each)
            lanes.start()
            assert begun.wait(60)
            lanes.close(drain=drain)
            failed = [each for each in asked if each.future.exception(0) is not None]
            assert bool(failed) is not drain
            assert all(isinstance(each.future.exception(), ClosedError) for each in failed)
