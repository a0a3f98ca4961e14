"""What all verbs of `headwaiter call` share: where to ask, how to show it, how to fail."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, NoReturn, TypeVar, get_type_hints

import typer
from rich.console import Console
from rich.text import Text

from service.calls import show
from service.calls.documents import document
from service.client import Client, HeadwaiterError, InvalidInput, NotFound, Unauthenticated, WrongTask
from service.client.call import Call, Decoding, Options, StreamCall

_OF_THE_CALLER = (InvalidInput, NotFound, Unauthenticated, WrongTask)

Result = TypeVar("Result")


def _option(name: str, kind: Any, default: Any, text: str, *flags: str, **more: Any) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(*flags, help=text, **more)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_SERVICE: dict[str, Any] = {"rich_help_panel": "Service"}
CONNECTION = (
    _option("address", str, "localhost:9000", "HOST:PORT of the service.", envvar="HEADWAITER_ADDRESS", **_SERVICE),
    _option("key", str | None, None, "Where the service asks for one.", envvar="HEADWAITER_KEY", **_SERVICE),
    _option("tls", bool, False, "Encrypt; the certificate is checked.", "--tls", **_SERVICE),
    _option("timeout", float, 60.0, "Seconds until the answer must be there.", min=0.0, **_SERVICE),
    _option("as_json", bool, False, "One JSON document, with the protocol's names.", "--json", **_SERVICE),
)

_DECODING_HELP = {
    "max_new_tokens": "The most tokens to write.",
    "beams": "How many sequences a beam search keeps; 1 is greedy.",
    "best": "How many texts come back, best first.",
    "length_penalty": "Above 0 favours longer texts, in a beam search.",
    "early_stopping": "End a beam search at the first finished beams.",
    "sample": "Draw tokens by their chances.",
    "temperature": "Below 1 makes likely tokens likelier.",
    "top_k": "Draw from this many likeliest tokens; 0 is all.",
    "top_p": "Draw from the likeliest tokens that together have this chance.",
    "seed": "The same seed draws the same tokens.",
    "repetition_penalty": "Above 1 makes tokens that are there already less likely.",
    "no_repeat_ngram_size": "No sequence of this many tokens comes twice.",
}
_DECODING_TYPES = {name: kind for name, kind in get_type_hints(Decoding).items() if name not in Options.__annotations__}
DECODING = tuple(
    _option(name, kind, None, _DECODING_HELP[name], rich_help_panel="Decoding, else the model's own")
    for name, kind in _DECODING_TYPES.items()
)


@dataclass(frozen=True, slots=True)
class Order:
    model: str
    client: Client
    as_json: bool
    console: Console

    def ask(self, call: Call[Result], present: Callable[[Console, Result], None]) -> Result:
        reply: Any = self.client.ask(replace(call, parse=_as_it_is))
        result = call.parse(reply)
        if self.as_json:
            self._print(document(reply))
        else:
            present(self.console, result)
        return result

    def stream(self, call: StreamCall) -> None:
        if self.as_json:
            for event in self.client.events(call):
                self._print(document(event))
            return
        stream = self.client.stream(call)
        for piece in stream:
            self.console.out(piece, end="", highlight=False)
            self.console.file.flush()
        self.console.out("")
        show.footer(self.console, stream.result)

    def _print(self, content: Any) -> None:
        self.console.file.write(json.dumps(content, ensure_ascii=False) + "\n")
        self.console.file.flush()


def _as_it_is(reply: Any) -> Any:
    return reply


def verb(*options: inspect.Parameter) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command of an order: takes the connection's options and these besides its own, fails with one sentence."""

    def wrap(function: Callable[..., None]) -> Callable[..., None]:
        def command(context: typer.Context, *args: Any, **given: Any) -> None:
            terms = {each.name: given.pop(each.name) for each in CONNECTION}
            as_json = terms.pop("as_json")
            console = Console(highlight=False)
            with one_sentence(), Client(**terms) as client:
                function(Order(context.obj, client, as_json, console), *args, **given)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        named = [each for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]
        context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        parameters = [context, *named, *options, *CONNECTION]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return wrap


@contextmanager
def one_sentence() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except HeadwaiterError as error:
        fail(error.message, 2 if isinstance(error, _OF_THE_CALLER) else 1)
    except OSError as error:
        fail(f"{error.filename} cannot be used: {error.strerror}." if error.filename else str(error), 2)
    except ValueError as error:
        fail(str(error), 2)


def fail(sentence: str, code: int) -> NoReturn:
    errors = Console(stderr=True, highlight=False)
    errors.print(Text.assemble(("✗ ", "red"), sentence), soft_wrap=True)  # a sentence may have brackets of its own
    sys.exit(code)
