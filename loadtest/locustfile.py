"""`locust -f loadtest/locustfile.py`: guests of every task, over gRPC and over HTTP, against a running service.

Guests think between calls; with `--arrivals RATE` they come as they come instead, so many a second, and nobody waits
for anybody's answer. Which models there are is asked of the service.
"""

from __future__ import annotations

import math
import random
import sys
from argparse import Namespace
from typing import Any

from locust import User, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from loadtest.traffic.addresses import WAYS, add_options, key
from loadtest.traffic.crowd import Crowd, Way
from loadtest.traffic.guests import NoServiceError, Order, Table, seat
from loadtest.traffic.telling import Tell, teller
from loadtest.traffic.ways import Grpc, Http, make_ready

make_ready()
TASKS = ("translation", "captioning", "classification", "detection", "policy", "generation")


class Guest(User):
    abstract = True
    about: str = ""  # a task
    way: str = ""
    crowd: Crowd[Order]

    def wait_time(self) -> float:
        return random.expovariate(1 / self.environment.parsed_options.think)

    @task
    def call(self) -> None:
        self.crowd.serve_one()


class Arrivals(User):
    """One is enough: it sends guests and waits for none."""

    fixed_count = 1
    crowd: Crowd[Order]

    @task
    def arrive(self) -> None:
        rate = self.environment.parsed_options.arrivals
        self.crowd.arrive(lambda _: rate, math.inf)


def _guest_class(about: str, way: str) -> type[Guest]:
    name = f"{about.capitalize()}{way.capitalize()}"
    return type(name, (Guest,), {"about": about, "way": way, "abstract": False, "__module__": __name__})


globals().update({each.__name__: each for each in (_guest_class(about, way) for about in TASKS for way in WAYS)})


@events.init_command_line_parser.add_listener
def _add_options(parser: LocustArgumentParser, **_: Any) -> None:
    add_options(parser.add_argument)
    parser.add_argument("--think", type=float, default=1.0, help="seconds between calls of a guest, on average")
    parser.add_argument("--arrivals", type=float, default=0.0, help="guests a second, open loop; 0: users who think")


@events.init.add_listener
def _seat_guests(environment: Environment, **_: Any) -> None:
    options = environment.parsed_options
    assert options is not None
    ways: dict[str, Way[Order]] = {"grpc": Grpc(options.grpc, key=key()), "http": Http(options.http, key=key())}
    try:
        table = seat(options.grpc, options.models, seed=options.seed, key=key())
    except NoServiceError as error:
        sys.exit(str(error))
    chosen = [each for each in environment.user_classes if _prepared(each, table, ways, options, teller(environment))]
    environment.user_classes = chosen


def _prepared(kind: type[User], table: Table, ways: dict[str, Way[Order]], options: Namespace, tell: Tell) -> bool:
    """Whether users of this kind have anything to do here; if so they know what."""
    if issubclass(kind, Arrivals):
        kind.crowd = Crowd(table, list(ways.values()), tell, seed=options.seed)
        return options.arrivals > 0
    assert issubclass(kind, Guest)
    fitting = table.of(kind.about)
    if options.arrivals > 0 or not fitting.guests:
        return False
    kind.crowd = Crowd(fitting, [ways[kind.way]], tell, seed=options.seed)
    return True
