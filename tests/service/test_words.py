"""Translation, generation and captioning through `open_model`, on tiny models: whole and streamed."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, GPT2LMHeadModel, VisionEncoderDecoderModel

from service import open_model
from service.model import CaptioningModel, GenerationModel, Options, TranslationModel, open_with
from service.tasks.decoding import Decoding
from service.tasks.errors import InputError
from service.tasks.images import prepare
from tests.conftest import Packages

SENTENCES = ["The kitchen is open.", "今天天气很好。", "Où est la gare ?", "We close at ten!", "Noch ein Satz."]
TEXT = "The kitchen is open. We close at ten!\n\n  - Où est la gare ?\n今天天气很好。我们去公园吧！\tEnde"


@pytest.fixture(scope="module")
def translator(packages: Packages) -> Iterator[TranslationModel]:
    with open_model(packages("marian", "fp32").package.folder, threads=1, rows=8, new_tokens=24) as model:
        yield model


@pytest.fixture(scope="module")
def generator(packages: Packages) -> Iterator[GenerationModel]:
    with open_model(packages("gpt2", "fp32").package.folder, threads=1, rows=8, new_tokens=24) as model:
        yield model


@pytest.fixture(scope="module")
def captioner(packages: Packages) -> Iterator[CaptioningModel]:
    with open_model(packages("caption-vit", "fp32").package.folder, threads=1, rows=4, new_tokens=24) as model:
        yield model


def picture(seed: int = 0, size: tuple[int, int] = (33, 21)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def test_a_text_is_its_sentences_translated_and_keeps_its_layout(translator: TranslationModel) -> None:
    (whole,) = translator.translate(TEXT)
    alone = [translator.translate(text, split=False)[0].text for text in ("The kitchen is open.", "We close at ten!")]
    assert whole.text.startswith(alone[0])
    assert alone[1] + "\n\n  - " in whole.text
    assert len(whole.sentences) == 6
    assert whole.usage.output_tokens > 0
    assert whole.timing.run_ms > 0


@pytest.mark.parametrize("text", ["", " ", "\n\n", "\t \r\n", "\x00\x01", "…!?", "\u200b"])
def test_nothing_to_translate_is_given_back(translator: TranslationModel, text: str) -> None:
    (answer,) = translator.translate(text)
    assert answer.text == text
    assert answer.usage.output_tokens == 0


def test_answers_come_in_the_order_of_the_texts(translator: TranslationModel) -> None:
    alone = [translator.translate(text)[0].text for text in SENTENCES]
    assert [answer.text for answer in translator.translate(SENTENCES * 5)] == alone * 5


@pytest.mark.parametrize("decoding", [{}, {"beams": 3}, {"sample": True, "seed": 5, "temperature": 0.7}])
@pytest.mark.parametrize("text", [TEXT, "The kitchen is open.", "", " \n"])
def test_a_stream_gives_the_same_text(translator: TranslationModel, text: str, decoding: dict[str, float]) -> None:
    pieces = list(translator.translate_stream(text, **decoding))
    assert "".join(pieces) == translator.translate(text, **decoding)[0].text
    assert all(pieces)


def test_a_stream_left_early_frees_its_rows(translator: TranslationModel) -> None:
    before = translator.meters["cancelled"]
    stream = translator.translate_stream(TEXT * 3)
    assert list(itertools.islice(stream, 1))
    stream.cancel()  # type: ignore[attr-defined]
    translator.translate("The kitchen is open.")
    assert translator.meters["cancelled"] > before
    assert translator.meters["rows_in_use"] == 0


def test_coroutines_wait_for_answers_and_streams(translator: TranslationModel) -> None:
    async def ask() -> tuple[list[str], str]:
        answers = await asyncio.gather(*(_translated(translator, text) for text in SENTENCES))
        pieces = [piece async for piece in translator.task.translate_stream(TEXT, Decoding())]
        return answers, "".join(pieces)

    answers, streamed = asyncio.run(ask())
    assert answers == [answer.text for answer in translator.translate(SENTENCES)]
    assert streamed == translator.translate(TEXT)[0].text


async def _translated(model: TranslationModel, text: str) -> str:
    return (await model.task.translate(text, Decoding())).text


def test_a_cancelled_coroutine_frees_its_rows(translator: TranslationModel) -> None:
    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_translated(translator, TEXT * 20), 0.005)

    before = translator.meters["cancelled"]
    asyncio.run(give_up())
    translator.translate("The kitchen is open.")
    assert translator.meters["cancelled"] > before


def test_seeds_repeat_alone_and_in_company(translator: TranslationModel) -> None:
    how = {"sample": True, "temperature": 1.5, "top_k": 0, "seed": 11, "best": 3}
    (alone,) = translator.translate(SENTENCES[0], **how)
    together = translator.translate([*SENTENCES, SENTENCES[0]], **how)
    assert together[0].hypotheses == together[-1].hypotheses == alone.hypotheses
    assert len({one.text for one in alone.hypotheses}) > 1
    other = translator.translate(SENTENCES[0], **{**how, "seed": 12})[0]
    assert other.hypotheses != alone.hypotheses


def test_long_sentences_are_cut_not_shortened(translator: TranslationModel) -> None:
    limit = translator.task.longest_source
    endless = "word " * 4 * limit
    (answer,) = translator.translate(endless)
    assert len(answer.sentences) > 1
    with pytest.raises(InputError, match=r"text\[0\] has [\d,]+ tokens; the limit is"):
        translator.translate(endless, split=False)


@pytest.mark.parametrize(
    ("decoding", "message"),
    [
        ({"beams": 0}, "decoding.beams is 0; it has to be at least 1"),
        ({"beams": 9}, "decoding.beams is 9; the limit is 8"),
        ({"max_new_tokens": -1}, "decoding.max_new_tokens is -1; it has to be at least 1"),
        ({"max_new_tokens": 100_000}, "decoding.max_new_tokens is 100,000; the limit is 24"),
        ({"length_penalty": 2000.0, "beams": 2}, "decoding.length_penalty is 2000; it has to be from -10 to 10"),
        ({"repetition_penalty": 1e-300}, "decoding.repetition_penalty is 1e-300; it has to be from 0.01 to 100"),
        ({"temperature": 0.0, "sample": True}, "decoding.temperature is 0; it has to be from 0.001 to 1000"),
        ({"temperature": float("nan")}, "decoding.temperature is nan; it has to be a number"),
        ({"top_p": 1.5}, "decoding.top_p is 1.5; the limit is 1.0"),
        ({"beams": 1, "best": 2}, "decoding.best is 2; without decoding.sample it is at most 1"),
        ({"sample": True, "beams": 2}, "decoding.beams is 2; with decoding.sample it is 1"),
        ({"seed": -1}, "decoding.seed is -1; it has to be at least 0"),
    ],
)
def test_bad_decoding_is_named(translator: TranslationModel, decoding: dict[str, float], message: str) -> None:
    with pytest.raises(InputError) as error:
        translator.translate("The kitchen is open.", **decoding)
    assert str(error.value) == message
    assert translator.translate("The kitchen is open.")[0].text


def test_a_text_that_is_too_long_stops_the_whole_request(translator: TranslationModel) -> None:
    with pytest.raises(InputError) as error:
        translator.translate(["short", "x" * 30_000])
    assert str(error.value) == "text[1] has 30,000 characters; the limit is 20,000"
    assert (error.value.field, error.value.limit) == ("text[1]", 20_000)


def test_generation_goes_on_as_the_original_does(generator: GenerationModel, packages: Packages) -> None:
    source = packages("gpt2", "fp32").checkpoint
    tokenizer, original = AutoTokenizer.from_pretrained(source), GPT2LMHeadModel.from_pretrained(source).eval()
    prompts = ["The kitchen", "今天天气", "a", "Guten Morgen, was darf es sein?"]
    for prompt, answer in zip(prompts, generator.generate(prompts), strict=True):
        ids = tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            out = original.generate(**ids, max_new_tokens=24, do_sample=False)
        expected = tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        assert answer.text == expected
        assert "".join(generator.generate_stream(prompt)) == expected


def test_prompts_that_do_not_fit(generator: GenerationModel) -> None:
    with pytest.raises(InputError, match=r"prompt\[0\] has [\d,]+ tokens; the limit is 60"):
        generator.generate("long " * 200)


def test_captions_are_the_originals(captioner: CaptioningModel, packages: Packages) -> None:
    source = packages("caption-vit", "fp32").checkpoint
    original = VisionEncoderDecoderModel.from_pretrained(source).eval()
    settings = captioner.manifest.preprocessing.image
    images = [picture(seed) for seed in range(6)]
    answers = captioner.caption(images, max_new_tokens=24, beams=1)
    for data, answer in zip(images, answers, strict=True):
        pixels = prepare(Image.open(io.BytesIO(data)), settings)[None]
        with torch.no_grad():
            out = original.generate(torch.from_numpy(pixels), max_new_tokens=24, do_sample=False, num_beams=1)
        assert answer.text == captioner.task.tokenizer.decode(out[0, 1:].tolist())
        assert answer.usage.images == 1
    prompted = captioner.caption(images[0], prompt="a plate of")[0]
    assert prompted.text != answers[0].text


def test_a_picture_that_is_none(captioner: CaptioningModel) -> None:
    with pytest.raises(InputError, match=r"image\[1\]"):
        captioner.caption([picture(), b"not an image"])
    assert captioner.caption(picture())[0].text


def test_the_smallest_limits_can_be_opened(packages: Packages) -> None:
    with open_model(packages("marian", "fp32").package.folder, threads=1, rows=1, new_tokens=1) as model:
        assert model.translate("The kitchen is open.", beams=1)[0].usage.output_tokens == 1
        with pytest.raises(InputError, match=r"decoding\.beams is 2; the limit is 1"):
            model.translate("The kitchen is open.", beams=2)


def test_a_models_own_beams_stay_within_the_limit(packages: Packages) -> None:
    """Who asks for nothing is not refused for what the model would rather do."""
    package = packages("marian", "fp32").package
    assert package.manifest.decoding is not None
    wide = replace(
        package,
        manifest=package.manifest.model_copy(
            update={"decoding": package.manifest.decoding.model_copy(update={"beams": 4})}
        ),
    )
    with open_with(wide, Options(threads=1, rows=2)) as model:
        (found,), (asked,) = model.translate("The kitchen is open."), model.translate("The kitchen is open.", beams=2)
        assert found.hypotheses == asked.hypotheses


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "text or image is needed, one of the two"),
        ({"text": "a", "image": b"b"}, "text or image is needed, one of the two"),
        ({"text": "a", "top_k": 0}, "top_k is 0; it must be at least 1"),
    ],
)
def test_what_a_classifier_cannot_be_asked(packages: Packages, asked: dict[str, Any], message: str) -> None:
    with open_model(packages("bert", "fp32").package.folder, threads=1) as model:
        ran = model.meters["row_steps"]
        with pytest.raises(InputError) as error:
            model.classify(**asked)
        assert str(error.value) == message
        assert model.meters["row_steps"] == ran
