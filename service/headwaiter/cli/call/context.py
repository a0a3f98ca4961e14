"""What the subcommands of `headwaiter call` share: connection options, output and error handling."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from rich.console import Console

from headwaiter.cli.call import output
from headwaiter.cli.call.json_messages import message_to_dict
from headwaiter.client import Client, HeadwaiterError, InvalidInput, NotFound, Unauthenticated, WrongAddress, WrongTask
from headwaiter.client.call import Call, Decoding, Options, StreamCall
from headwaiter.console import fail

_CALLER_ERRORS = (InvalidInput, NotFound, WrongAddress, WrongTask)

Result = TypeVar("Result")


def _option(name: str, kind: Any, default: Any, text: str, *flags: str, **settings: Any) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(*flags, help=text, **settings)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_SERVICE_PANEL: dict[str, Any] = {"rich_help_panel": "Service"}
CONNECTION_OPTIONS = (
    _option(
        "address",
        str,
        "localhost:9000",
        "Address of the service as HOST:PORT.",
        envvar="HEADWAITER_ADDRESS",
        **_SERVICE_PANEL,
    ),
    _option(
        "key", str | None, None, "API key, if the service requires one.", envvar="HEADWAITER_KEY", **_SERVICE_PANEL
    ),
    _option("tls", bool, False, "Connect with TLS and verify the certificate.", "--tls", **_SERVICE_PANEL),
    _option("timeout", float, 60.0, "Time limit of the call in seconds, including retries.", min=0.0, **_SERVICE_PANEL),
    _option(
        "as_json",
        bool,
        False,
        "Print the raw response as JSON, one document per event with --stream.",
        "--json",
        **_SERVICE_PANEL,
    ),
)

_DECODING_HELP = {
    "max_new_tokens": "Maximum number of generated tokens.",
    "num_beams": "Number of beams; 1 disables beam search.",
    "num_return_sequences": "Number of texts to return, best first.",
    "length_penalty": "Exponent of the length in beam scores; values above 0 favour longer texts.",
    "early_stopping": "Stop beam search once num_beams sequences are complete.",
    "do_sample": "Sample tokens instead of choosing the most probable ones.",
    "temperature": "Sampling temperature; values below 1 favour probable tokens.",
    "top_k": "Sample from this many most probable tokens; 0 is all.",
    "top_p": "Sample from the most probable tokens with this cumulative probability, 0 to 1.",
    "seed": "Random seed, for reproducible samples.",
    "repetition_penalty": "Penalty on tokens that already occurred; values above 1 make them less probable.",
    "no_repeat_ngram_size": "Length of n-grams that may occur only once; 0 allows repetition.",
}
_DECODING_TYPES = {name: kind for name, kind in get_type_hints(Decoding).items() if name not in Options.__annotations__}
DECODING_OPTIONS = tuple(
    _option(name, kind, None, _DECODING_HELP[name], rich_help_panel="Decoding (defaults: the model's)")
    for name, kind in _DECODING_TYPES.items()
)


@dataclass(frozen=True, slots=True)
class CallContext:
    """Model, client and output settings of one `headwaiter call`."""

    model: str
    client: Client
    as_json: bool
    console: Console

    def execute(self, call: Call[Result], print_result: Callable[[Console, Result], None]) -> Result:
        """Send the call, print its result (or the raw response with --json) and return the result."""
        reply: Any = self.client.execute(replace(call, parse=_identity))
        result = call.parse(reply)
        if self.as_json:
            self._print_json(message_to_dict(reply))
        else:
            print_result(self.console, result)
        return result

    def stream(self, call: StreamCall) -> None:
        """Send the call and print chunks as they arrive."""
        if self.as_json:
            for event in self.client.events(call):
                self._print_json(message_to_dict(event))
            return
        stream = self.client.stream(call)
        for chunk in stream:
            self.console.out(chunk, end="", highlight=False)
            self.console.file.flush()
        self.console.out("")
        output.print_footer(self.console, stream.result)
        output.note_truncation([stream.result])

    def _print_json(self, content: Any) -> None:
        self.console.file.write(json.dumps(content, ensure_ascii=False) + "\n")
        self.console.file.flush()


def _identity(reply: Any) -> Any:
    return reply


def subcommand(*options: inspect.Parameter) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a function as a subcommand that also takes `options` and the connection options.

    The function receives a CallContext as its first argument. Errors are printed as one sentence and exit the process.
    """

    def wrap(function: Callable[..., None]) -> Callable[..., None]:
        def command(context: typer.Context, *args: Any, **kwargs: Any) -> None:
            connection = {option.name: kwargs.pop(option.name) for option in CONNECTION_OPTIONS}
            as_json = connection.pop("as_json")
            console = Console(highlight=False)
            with exit_on_error(), Client(**connection) as client:
                function(CallContext(context.obj, client, as_json, console), *args, **kwargs)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        named = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        parameters = [context, *named, *options, *CONNECTION_OPTIONS]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return wrap


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print errors as one sentence and exit: code 2 for errors of the caller, else 1."""
    try:
        yield
    except BrokenPipeError:
        raise
    except Unauthenticated:
        fail("The service requires an API key and did not accept this call's; pass one with --key KEY.", 2)
    except HeadwaiterError as error:
        fail(error.message, 2 if isinstance(error, _CALLER_ERRORS) else 1)
    except OSError as error:
        fail(f"{error.filename} cannot be accessed: {error.strerror}." if error.filename else str(error), 2)
    except ValueError as error:
        fail(str(error), 2)
