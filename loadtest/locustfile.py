"""`locust -f loadtest/locustfile.py`: load-test a running service with requests of every task over gRPC and HTTP.

Users pause between requests (closed loop); with `--arrivals RATE` requests arrive at that rate per second regardless of
pending ones (open loop). The models are discovered from the service.
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

from loadtest.traffic.cli_options import TRANSPORTS, add_options, api_key
from loadtest.traffic.locust_stats import SampleCallback, locust_callback
from loadtest.traffic.open_loop import OpenLoopDriver, Transport
from loadtest.traffic.request_generators import (
    BUILDERS,
    LoadRequest,
    ServiceUnavailableError,
    WorkloadMix,
    build_workload,
)
from loadtest.traffic.transports import GrpcTransport, HttpTransport, configure_gevent

configure_gevent()


class ThinkingUser(User):
    abstract = True
    task_name: str = ""
    transport: str = ""
    driver: OpenLoopDriver[LoadRequest]

    def wait_time(self) -> float:
        return random.expovariate(1 / self.environment.parsed_options.think)

    @task
    def call(self) -> None:
        self.driver.send_one()


class Arrivals(User):
    """A single user that sends open-loop arrivals."""

    fixed_count = 1
    driver: OpenLoopDriver[LoadRequest]

    @task
    def send_arrivals(self) -> None:
        rate = self.environment.parsed_options.arrivals
        self.driver.send_arrivals(lambda _: rate, math.inf)


def _user_class(task_name: str, transport: str) -> type[ThinkingUser]:
    name = f"{task_name.capitalize()}{transport.capitalize()}"
    return type(
        name,
        (ThinkingUser,),
        {"task_name": task_name, "transport": transport, "abstract": False, "__module__": __name__},
    )


globals().update(
    {
        user_class.__name__: user_class
        for user_class in (_user_class(task_name, transport) for task_name in BUILDERS for transport in TRANSPORTS)
    }
)


@events.init_command_line_parser.add_listener
def _add_options(parser: LocustArgumentParser, **_: Any) -> None:
    add_options(parser.add_argument)
    parser.add_argument("--think", type=float, default=1.0, help="mean seconds between the requests of a user")
    parser.add_argument(
        "--arrivals", type=float, default=0.0, help="requests per second, open loop; 0 selects the closed loop"
    )


@events.init.add_listener
def _assign_workload(environment: Environment, **_: Any) -> None:
    options = environment.parsed_options
    assert options is not None
    transports: dict[str, Transport[LoadRequest]] = {
        "grpc": GrpcTransport(options.grpc, key=api_key()),
        "http": HttpTransport(options.http, key=api_key()),
    }
    try:
        workload = build_workload(options.grpc, options.models, seed=options.seed, key=api_key())
    except ServiceUnavailableError as error:
        sys.exit(str(error))
    environment.user_classes = [
        user_class
        for user_class in environment.user_classes
        if _configure_user(user_class, workload, transports, options, locust_callback(environment))
    ]


def _configure_user(
    user_class: type[User],
    workload: WorkloadMix,
    transports: dict[str, Transport[LoadRequest]],
    options: Namespace,
    on_sample: SampleCallback,
) -> bool:
    """Give a user class its driver; return whether the class takes part in this run."""
    if issubclass(user_class, Arrivals):
        user_class.driver = OpenLoopDriver(workload, list(transports.values()), on_sample, seed=options.seed)
        return options.arrivals > 0
    assert issubclass(user_class, ThinkingUser)
    task_workload = workload.of(user_class.task_name)
    if options.arrivals > 0 or not task_workload.generators:
        return False
    user_class.driver = OpenLoopDriver(task_workload, [transports[user_class.transport]], on_sample, seed=options.seed)
    return True
