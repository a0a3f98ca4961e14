"""Who is served what: models found by asking the service, and the inputs that fit each."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loadtest.traffic.addresses import KEY
from loadtest.traffic.materials import TEXTS, Picture, chinese, photographs
from loadtest.traffic.plays import Play, play_for
from service.client import Client, HeadwaiterError, History, InvalidInput, Step, Unauthenticated, verbs
from service.client.call import Call, EpisodeCall, StreamCall
from service.client.results import Description

Asked = Call | StreamCall | EpisodeCall  # type: ignore[type-arg]

STREAMED = 0.3  # of the calls to a model that can
_MOST_SENTENCES = 6
_SPECIAL = 2  # tokens that are put around a text
_FEWEST_TOKENS, _MOST_TOKENS = 8, 32  # of a generated text


class NoServiceError(Exception):
    """Nobody to send anything to; the message says what would be right."""


@dataclass(frozen=True, slots=True)
class Order:
    """One call, whichever way it goes; an episode comes with what it plays."""

    call: Asked
    play: Play | None = None

    @property
    def model(self) -> str:
        return self.call.model

    @property
    def method(self) -> str:
        return self.call.method


class Guest:
    """Orders from one model, the same ones for the same seed."""

    def __init__(self, about: Description, seed: int) -> None:
        self.about, self._random = about, random.Random(f"{about.name} {seed}")
        self._order = _ORDERS[about.task]
        self._pictures: list[Picture] = []

    @property
    def name(self) -> str:
        return self.about.name

    def order(self, *, way: str = "grpc", streamed: float = STREAMED) -> Order:
        return self._order(self, way, self._random.random() < streamed)

    def fit_pictures(self, client: Client) -> None:
        """Some models take pictures of any size and some of one; the service knows."""
        if self.about.task not in _SEEING or self._reads_text:
            return
        self._pictures = photographs()
        try:
            client.ask(self.order(streamed=0).call)  # type: ignore[arg-type]
        except InvalidInput as error:
            limits = self.about.limits
            if not {"width", "height"} <= limits.keys():
                raise NoServiceError(f"{self.name} refuses every picture: {error}") from error
            self._pictures = photographs((limits["width"], limits["height"]))

    @property
    def _reads_text(self) -> bool:
        return self.about.task == "classification" and "length" in self.about.limits

    @property
    def _picture(self) -> bytes:
        return self._random.choice(self._pictures).data

    @property
    def _text(self) -> str:
        """Many short ones and few long ones."""
        languages = self.about.languages
        sentences = chinese() if languages is not None and "zh" in languages.source else TEXTS
        count = min(int(self._random.lognormvariate(0, 0.6)) + 1, _MOST_SENTENCES)
        return " ".join(self._random.choices(sentences, k=count))

    def translate(self, _: str, streamed: bool) -> Order:
        return Order((verbs.translate_stream if streamed else verbs.translate)(self.name, self._text))

    def caption(self, _: str, streamed: bool) -> Order:
        return Order((verbs.caption_stream if streamed else verbs.caption)(self.name, self._picture))

    def classify(self, _: str, __: bool) -> Order:
        if self._reads_text:
            short = self._text[: self.about.limits["length"] - _SPECIAL]  # no token is shorter than a character
            return Order(verbs.classify(self.name, text=short, top_k=3))
        return Order(verbs.classify(self.name, image=self._picture, top_k=3))

    def detect(self, _: str, __: bool) -> Order:
        return Order(verbs.detect(self.name, self._picture))

    def generate(self, _: str, streamed: bool) -> Order:
        if self.about.decoding is None:  # it makes images
            return Order(verbs.generate_images(self.name, count=1, seed=self._random.randrange(1000)))
        tokens = self._random.randint(_FEWEST_TOKENS, _MOST_TOKENS)
        words = " ".join(self._text.split()[:4])
        return Order((verbs.generate_stream if streamed else verbs.generate)(self.name, words, max_new_tokens=tokens))

    def play(self, way: str, _: bool) -> Order:
        """HTTP has no stream in both directions: there, each step is asked for with its history."""
        play = play_for(self.about, self._random.randrange(2**31))
        if way == "grpc":
            return Order(verbs.episode(self.name, target_return=play.target_return, seed=play.seed), play)
        state = play.reset()
        return Order(verbs.act(self.name, History([Step(state=state)], target_return=play.target_return)))


_ORDERS = {
    "translation": Guest.translate,
    "captioning": Guest.caption,
    "classification": Guest.classify,
    "detection": Guest.detect,
    "policy": Guest.play,
    "generation": Guest.generate,
}
_SEEING = ("captioning", "classification", "detection")


class Table:
    """All guests: whose turn it is, is drawn by their weights."""

    def __init__(self, guests: Iterable[Guest], weights: Mapping[str, float], seed: int) -> None:
        self.guests, self._named, self._seed = list(guests), weights, seed
        self._weights = [weights.get(guest.name, 1.0) for guest in self.guests]
        self._random = random.Random(seed)

    def of(self, task: str) -> Table:
        """Only those who want something of this task."""
        return Table([guest for guest in self.guests if guest.about.task == task], self._named, self._seed)

    def order(self, way: str = "grpc") -> Order:
        return self._random.choices(self.guests, self._weights)[0].order(way=way)


def seat(address: str, wanted: Mapping[str, float], *, seed: int = 0, key: str | None = None) -> Table:
    """A guest for each model that is served, or for each of those wanted, by name and weight."""
    with Client(address, key=key, timeout=20) as client:
        try:
            served = {model.name: model for model in client.models() if model.ready}
        except Unauthenticated as error:
            raise NoServiceError(f"{address} wants a key; put one into the variable {KEY}") from error
        except HeadwaiterError as error:
            raise NoServiceError(
                f"nothing answers at {address} ({error.code}); start it with `make serve`, or give --grpc HOST:PORT"
            ) from error
        if unknown := sorted(set(wanted) - set(served)):
            raise NoServiceError(f"{address} serves no {', '.join(unknown)}; it has {', '.join(sorted(served))}")
        if not served:
            raise NoServiceError(f"{address} serves no model that is ready; wait until one is")
        guests = [Guest(client.describe(name), seed) for name in sorted(wanted or served)]
        for guest in guests:
            guest.fit_pictures(client)
    return Table(guests, wanted, seed)
