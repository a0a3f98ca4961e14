"""Random requests for the models that a service lists, with inputs that fit each model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headwaiter.client import Client, HeadwaiterError, History, InvalidInput, Step, Unauthenticated, operations
from headwaiter.client.call import Call, EpisodeCall, StreamCall
from headwaiter.client.results import Description
from loadtest.traffic.cli_options import KEY
from loadtest.traffic.rollouts import Rollout, rollout_for
from loadtest.traffic.sample_inputs import TEXTS, SampleImage, chinese_sentences, sample_photos

ClientCall = Call | StreamCall | EpisodeCall  # type: ignore[type-arg]

STREAM_SHARE = 0.3  # of the requests to models that can stream
_MAX_SENTENCES = 6
_SPECIAL_TOKENS = 2  # added around a text by the tokenizer
_MIN_TOKENS, _MAX_TOKENS = 8, 32  # range of max_new_tokens


class ServiceUnavailableError(Exception):
    """The service cannot be load-tested; the message states the fix."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request, independent of the transport; an episode carries the rollout that drives it."""

    call: ClientCall
    rollout: Rollout | None = None

    @property
    def model(self) -> str:
        return self.call.model

    @property
    def method(self) -> str:
        return self.call.method


class RequestGenerator:
    """Generates requests to one model; the same seed gives the same requests."""

    def __init__(self, description: Description, seed: int) -> None:
        self.description, self.random = description, random.Random(f"{description.name} {seed}")
        if description.task not in BUILDERS:
            known = ", ".join(BUILDERS)
            raise ServiceUnavailableError(
                f"{description.name} has the task {description.task}, which has no request builder; there are {known}"
            )
        self._build_request = BUILDERS[description.task]
        self._images: list[SampleImage] = []

    @property
    def name(self) -> str:
        return self.description.name

    def request(self, *, transport: str = "grpc", streamed: float = STREAM_SHARE) -> LoadRequest:
        return self._build_request(self, transport, self.random.random() < streamed)

    def select_image_size(self, client: Client) -> None:
        """Use images of the model's fixed size if it rejects images of other sizes.

        Raises ServiceUnavailableError if the model rejects every image.
        """
        if self.description.task not in _IMAGE_TASKS or self.reads_text:
            return
        self._images = sample_photos()
        try:
            client.execute(self.request(streamed=0).call)  # type: ignore[arg-type]
        except InvalidInput as error:
            limits = self.description.limits
            if not {"width", "height"} <= limits.keys():
                raise ServiceUnavailableError(f"{self.name} rejects every sample image: {error}") from error
            self._images = sample_photos((limits["width"], limits["height"]))

    @property
    def reads_text(self) -> bool:
        return self.description.task == "classification" and "length" in self.description.limits

    @property
    def image(self) -> bytes:
        return self.random.choice(self._images).data

    @property
    def text(self) -> str:
        """A text of log-normally distributed length."""
        languages = self.description.languages
        sentences = chinese_sentences() if languages is not None and "zh" in languages.source else TEXTS
        count = min(int(self.random.lognormvariate(0, 0.6)) + 1, _MAX_SENTENCES)
        return " ".join(self.random.choices(sentences, k=count))


RequestBuilder = Callable[[RequestGenerator, str, bool], LoadRequest]
BUILDERS: dict[str, RequestBuilder] = {}
"""By task: builds a request from the generator's random inputs, for a transport, streamed or not."""


def request_builder(task: str) -> Callable[[RequestBuilder], RequestBuilder]:
    """Register a function as the builder of a task's requests."""

    def register(builder: RequestBuilder) -> RequestBuilder:
        BUILDERS[task] = builder
        return builder

    return register


@request_builder("translation")
def _translate(generator: RequestGenerator, _: str, streamed: bool) -> LoadRequest:
    operation = operations.translate_stream if streamed else operations.translate
    return LoadRequest(operation(generator.name, generator.text))


@request_builder("captioning")
def _caption(generator: RequestGenerator, _: str, streamed: bool) -> LoadRequest:
    operation = operations.caption_stream if streamed else operations.caption
    return LoadRequest(operation(generator.name, generator.image))


@request_builder("classification")
def _classify(generator: RequestGenerator, _: str, __: bool) -> LoadRequest:
    if generator.reads_text:
        max_characters = generator.description.limits["length"] - _SPECIAL_TOKENS  # a token has at least one character
        return LoadRequest(operations.classify(generator.name, text=generator.text[:max_characters], top_k=3))
    return LoadRequest(operations.classify(generator.name, image=generator.image, top_k=3))


@request_builder("detection")
def _detect(generator: RequestGenerator, _: str, __: bool) -> LoadRequest:
    return LoadRequest(operations.detect(generator.name, generator.image))


@request_builder("generation")
def _generate(generator: RequestGenerator, _: str, streamed: bool) -> LoadRequest:
    name, random_source = generator.name, generator.random
    if generator.description.decoding is None:  # generates images
        return LoadRequest(operations.generate_images(name, count=1, seed=random_source.randrange(1000)))
    tokens = random_source.randint(_MIN_TOKENS, _MAX_TOKENS)
    prompt = " ".join(generator.text.split()[:4])
    operation = operations.generate_stream if streamed else operations.generate
    return LoadRequest(operation(name, prompt, max_new_tokens=tokens))


@request_builder("policy")
def _rollout(generator: RequestGenerator, transport: str, _: bool) -> LoadRequest:
    """Build an episode over gRPC; HTTP has no bidirectional streams, so there a single step with its history."""
    name, rollout = generator.name, rollout_for(generator.description, generator.random.randrange(2**31))
    if transport == "grpc":
        return LoadRequest(operations.episode(name, target_return=rollout.target_return, seed=rollout.seed), rollout)
    state = rollout.reset()
    return LoadRequest(operations.act(name, History([Step(state=state)], target_return=rollout.target_return)))


_IMAGE_TASKS = ("captioning", "classification", "detection")


class WorkloadMix:
    """Draws requests from several generators in proportion to their weights."""

    def __init__(self, generators: Iterable[RequestGenerator], weights: Mapping[str, float], seed: int) -> None:
        self.generators, self._weights_by_name, self._seed = list(generators), weights, seed
        self._weights = [weights.get(generator.name, 1.0) for generator in self.generators]
        self._random = random.Random(seed)

    def of(self, task: str) -> WorkloadMix:
        """Return the part of the mix for one task."""
        return WorkloadMix(
            [generator for generator in self.generators if generator.description.task == task],
            self._weights_by_name,
            self._seed,
        )

    def draw(self) -> RequestGenerator:
        return self._random.choices(self.generators, self._weights)[0]

    def request(self, transport: str = "grpc") -> LoadRequest:
        return self.draw().request(transport=transport)


def build_workload(address: str, weights: Mapping[str, float], *, seed: int = 0, key: str | None = None) -> WorkloadMix:
    """Build a generator for every ready model, or for those in `weights` (weight by model name).

    Raises ServiceUnavailableError if the service does not answer or does not serve the models.
    """
    with Client(address, key=key, timeout=20) as client:
        try:
            served = {model.name: model for model in client.models() if model.ready}
        except Unauthenticated as error:
            raise ServiceUnavailableError(
                f"{address} requires an API key; set the environment variable {KEY}"
            ) from error
        except HeadwaiterError as error:
            raise ServiceUnavailableError(
                f"no service answers at {address} ({error.code}); start it with `make serve` or set --grpc HOST:PORT"
            ) from error
        if unknown := sorted(set(weights) - set(served)):
            raise ServiceUnavailableError(
                f"{address} does not serve {', '.join(unknown)}; it serves {', '.join(sorted(served))}"
            )
        if not served:
            raise ServiceUnavailableError(f"{address} has no ready model; wait until one is ready")
        generators = [RequestGenerator(client.describe(name), seed) for name in sorted(weights or served)]
        for generator in generators:
            generator.select_image_size(client)
    return WorkloadMix(generators, weights, seed)
