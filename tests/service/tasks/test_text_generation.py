"""Translation, text generation and captioning through `open_model`, on tiny models, with and without streaming."""

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

from headwaiter import open_model
from headwaiter.engine.settings import ModelSettings
from headwaiter.tasks.captioning import CaptioningModel
from headwaiter.tasks.decoding import DecodingOptions
from headwaiter.tasks.errors import InputError
from headwaiter.tasks.generation import GenerationModel
from headwaiter.tasks.images import prepare
from headwaiter.tasks.loading import load_model
from headwaiter.tasks.results import combine_finish_reasons
from headwaiter.tasks.translation import TranslationModel
from tests.conftest import Packages

SENTENCES = ["The kitchen is open.", "今天天气很好。", "Où est la gare ?", "We close at ten!", "Noch ein Satz."]
TIMEOUT_SECONDS = 60
TEXT = "The kitchen is open. We close at ten!\n\n  - Où est la gare ?\n今天天气很好。我们去公园吧！\tEnde"


@pytest.fixture(scope="module")
def translator(packages: Packages) -> Iterator[TranslationModel]:
    with open_model(
        packages("marian", "fp32").package.folder, threads=1, max_sequences=8, limits={"new_tokens": 24}
    ) as model:
        yield model


@pytest.fixture(scope="module")
def generator(packages: Packages) -> Iterator[GenerationModel]:
    with open_model(
        packages("gpt2", "fp32").package.folder, threads=1, max_sequences=8, limits={"new_tokens": 24}
    ) as model:
        yield model


@pytest.fixture(scope="module")
def captioner(packages: Packages) -> Iterator[CaptioningModel]:
    with open_model(
        packages("caption-vit", "fp32").package.folder, threads=1, max_sequences=4, limits={"new_tokens": 24}
    ) as model:
        yield model


def random_image(seed: int = 0, size: tuple[int, int] = (33, 21)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def test_translate_splits_sentences_and_preserves_layout(translator: TranslationModel) -> None:
    (result,) = translator.translate(TEXT)
    alone = [translator.translate(text, split=False)[0].text for text in ("The kitchen is open.", "We close at ten!")]
    assert result.text.startswith(alone[0])
    assert alone[1] + "\n\n  - " in result.text
    assert len(result.sentences) == 6
    assert result.usage.output_tokens > 0
    assert result.timing.run_ms > 0


@pytest.mark.parametrize("text", ["", " ", "\n\n", "\t \r\n", "\x00\x01", "…!?", "\u200b"])
def test_translate_without_sentences_returns_text(translator: TranslationModel, text: str) -> None:
    (result,) = translator.translate(text)
    assert result.text == text
    assert result.usage.output_tokens == 0
    assert result.finish_reason == "stop"


def test_translate_batch_keeps_order_of_texts(translator: TranslationModel) -> None:
    alone = [translator.translate(text)[0].text for text in SENTENCES]
    assert [result.text for result in translator.translate(SENTENCES * 5)] == alone * 5


@pytest.mark.parametrize("decoding", [{}, {"num_beams": 3}, {"do_sample": True, "seed": 5, "temperature": 0.7}])
@pytest.mark.parametrize("text", [TEXT, "The kitchen is open.", "", " \n"])
def test_translate_stream_equals_translate(translator: TranslationModel, text: str, decoding: dict[str, float]) -> None:
    pieces = list(translator.translate_stream(text, **decoding))
    assert "".join(pieces) == translator.translate(text, **decoding)[0].text
    assert all(pieces)


def test_translate_one_sentence_cut_off_finishes_with_length(translator: TranslationModel) -> None:
    (result,) = translator.translate(TEXT, max_new_tokens=2, num_beams=1)
    stream: Any = translator.translate_stream(TEXT, max_new_tokens=2, num_beams=1)
    assert list(stream)
    assert {sentence.finish_reason for sentence in result.sentences} >= {"length"}
    assert result.finish_reason == stream.result().finish_reason == "length"
    assert combine_finish_reasons(["stop", "length", "stop"]) == "length"
    assert combine_finish_reasons(["stop", "stop"]) == "stop"


def test_translate_stream_many_sentences_lays_out_each_once(translator: TranslationModel) -> None:
    """Laying out all sentences again at each token would take time quadratic in their number."""
    text = TEXT * 12
    stream = translator.task.translate_stream(text, DecodingOptions())
    layout, laid_out = stream._layout, []

    class Counting:
        def segment(self, previous: str, index: int, text: str) -> str:
            laid_out.append(layout.segment(previous, index, text))
            return laid_out[-1]

        def ending(self, last: str) -> str:
            return layout.ending(last)

    stream._layout = Counting()
    deltas = list(stream)
    (unary,) = translator.translate(text)
    assert "".join(deltas) == stream.result().text == unary.text
    longest = max(len(sentence.text) for sentence in unary.sentences)
    assert max(map(len, laid_out)) <= longest + len(TEXT)
    assert sum(map(len, laid_out)) <= stream.result().usage.output_tokens * (longest + 8)


def test_translate_stream_cancelled_frees_slots(translator: TranslationModel) -> None:
    before = translator.counters["cancelled"]
    stream = translator.translate_stream(TEXT * 3)
    assert list(itertools.islice(stream, 1))
    stream.cancel()  # type: ignore[attr-defined]
    translator.translate("The kitchen is open.")
    assert translator.counters["cancelled"] > before
    assert translator.counters["slots_in_use"] == 0


def test_translate_in_coroutines_equals_translate(translator: TranslationModel) -> None:
    async def run() -> tuple[list[str], str]:
        texts = await asyncio.gather(*(_translate(translator, text) for text in SENTENCES))
        pieces = [piece async for piece in translator.task.translate_stream(TEXT, DecodingOptions())]
        return texts, "".join(pieces)

    texts, streamed = asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))
    assert texts == [result.text for result in translator.translate(SENTENCES)]
    assert streamed == translator.translate(TEXT)[0].text


async def _translate(model: TranslationModel, text: str) -> str:
    return (await model.task.translate(text, DecodingOptions())).text


def test_translate_cancelled_coroutine_frees_slots(translator: TranslationModel) -> None:
    async def run_with_timeout() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_translate(translator, TEXT * 20), 0.005)

    before = translator.counters["cancelled"]
    asyncio.run(run_with_timeout())
    translator.translate("The kitchen is open.")
    assert translator.counters["cancelled"] > before


def test_translate_same_seed_gives_same_samples_in_any_batch(translator: TranslationModel) -> None:
    decoding = {"do_sample": True, "temperature": 1.5, "top_k": 0, "seed": 11, "num_return_sequences": 3}
    (alone,) = translator.translate(SENTENCES[0], **decoding)
    batch = translator.translate([*SENTENCES, SENTENCES[0]], **decoding)
    assert batch[0].hypotheses == batch[-1].hypotheses == alone.hypotheses
    assert len({hypothesis.text for hypothesis in alone.hypotheses}) > 1
    other = translator.translate(SENTENCES[0], **{**decoding, "seed": 12})[0]
    assert other.hypotheses != alone.hypotheses


def test_translate_long_sentence_is_split(translator: TranslationModel) -> None:
    limit = translator.task.max_source_length
    sentence = "word " * 4 * limit
    (result,) = translator.translate(sentence)
    assert len(result.sentences) > 1
    with pytest.raises(InputError, match=r"text\[0\] has [\d,]+ tokens; the limit is"):
        translator.translate(sentence, split=False)


@pytest.mark.parametrize(
    ("decoding", "field", "limit"),
    [
        ({"num_beams": 0}, "num_beams", 1),
        ({"num_beams": 9}, "num_beams", 8),
        ({"max_new_tokens": -1}, "max_new_tokens", 1),
        ({"max_new_tokens": 100_000}, "max_new_tokens", 24),
        ({"length_penalty": 2000.0, "num_beams": 2}, "length_penalty", 10),
        ({"length_penalty": -11.0, "num_beams": 2}, "length_penalty", -10),
        ({"repetition_penalty": 1e-300}, "repetition_penalty", 0.01),
        ({"temperature": 0.0, "do_sample": True}, "temperature", 0.001),
        ({"temperature": float("nan")}, "temperature", None),
        ({"top_p": 1.5}, "top_p", 1),
        ({"top_p": 0.0}, "top_p", 0),
        ({"num_return_sequences": 2, "num_beams": 1}, "num_return_sequences", 1),
        ({"num_beams": 2, "do_sample": True}, "num_beams", 1),
        ({"seed": -1}, "seed", 0),
    ],
)
def test_translate_invalid_decoding_option_is_rejected(
    translator: TranslationModel, decoding: dict[str, float], field: str, limit: float | None
) -> None:
    with pytest.raises(InputError, match=rf"^decoding\.{field} is ([-\d.,e]+|nan); ") as error:
        translator.translate("The kitchen is open.", **decoding)
    assert (error.value.field, error.value.limit) == (f"decoding.{field}", limit)
    assert translator.translate("The kitchen is open.")[0].text


@pytest.mark.parametrize(
    ("decoding", "message"),
    [
        ({"num_beams": 9}, "decoding.num_beams is 9; the limit is 8"),
        ({"max_new_tokens": -1}, "decoding.max_new_tokens is -1; it must be at least 1"),
        ({"temperature": 0.0}, "decoding.temperature is 0; it must be from 0.001 to 1000"),
    ],
)
def test_translate_invalid_decoding_option_message(
    translator: TranslationModel, decoding: dict[str, float], message: str
) -> None:
    with pytest.raises(InputError) as error:
        translator.translate("The kitchen is open.", **decoding)
    assert str(error.value) == message


def test_translate_stream_several_sequences_is_rejected(translator: TranslationModel) -> None:
    with pytest.raises(InputError, match="streams") as error:
        translator.translate_stream(TEXT, num_return_sequences=2, num_beams=2)
    assert (error.value.field, error.value.limit) == ("decoding.num_return_sequences", 1)


def test_translate_too_long_text_rejects_whole_request(translator: TranslationModel) -> None:
    with pytest.raises(InputError) as error:
        translator.translate(["short", "x" * 30_000])
    assert str(error.value) == "text[1] has 30,000 characters; the limit is 20,000"
    assert (error.value.field, error.value.limit) == ("text[1]", 20_000)


def test_generate_matches_transformers(generator: GenerationModel, packages: Packages) -> None:
    source = packages("gpt2", "fp32").checkpoint
    tokenizer, original = AutoTokenizer.from_pretrained(source), GPT2LMHeadModel.from_pretrained(source).eval()
    prompts = ["The kitchen", "今天天气", "a", "Guten Morgen, was darf es sein?"]
    for prompt, result in zip(prompts, generator.generate(prompts), strict=True):
        ids = tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            output = original.generate(**ids, max_new_tokens=24, do_sample=False)
        expected = tokenizer.decode(output[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        assert result.text == expected
        assert "".join(generator.generate_stream(prompt)) == expected


def test_generate_too_long_prompt_is_rejected(generator: GenerationModel) -> None:
    with pytest.raises(InputError, match=r"prompt\[0\] has [\d,]+ tokens; the limit is 60"):
        generator.generate("long " * 200)


def test_caption_matches_transformers(captioner: CaptioningModel, packages: Packages) -> None:
    source = packages("caption-vit", "fp32").checkpoint
    original = VisionEncoderDecoderModel.from_pretrained(source).eval()
    settings = captioner.manifest.preprocessing.image
    images = [random_image(seed) for seed in range(6)]
    results = captioner.caption(images, max_new_tokens=24, num_beams=1)
    for data, result in zip(images, results, strict=True):
        pixels = prepare(Image.open(io.BytesIO(data)), settings)[None]
        with torch.no_grad():
            output = original.generate(torch.from_numpy(pixels), max_new_tokens=24, do_sample=False, num_beams=1)
        assert result.text == captioner.task.tokenizer.decode(output[0, 1:].tolist())
        assert result.usage.images == 1
    prompted = captioner.caption(images[0], prompt="a plate of")[0]
    assert prompted.text != results[0].text


def test_caption_invalid_image_rejects_whole_request(captioner: CaptioningModel) -> None:
    with pytest.raises(InputError, match=r"image\[1\]"):
        captioner.caption([random_image(), b"not an image"])
    assert captioner.caption(random_image())[0].text


def test_open_model_smallest_limits_run(packages: Packages) -> None:
    with open_model(
        packages("marian", "fp32").package.folder, threads=1, max_sequences=1, limits={"new_tokens": 1}
    ) as model:
        assert model.translate("The kitchen is open.", num_beams=1)[0].usage.output_tokens == 1
        with pytest.raises(InputError, match=r"decoding\.num_beams is 2; the limit is 1"):
            model.translate("The kitchen is open.", num_beams=2)


def test_default_num_beams_above_limit_is_clamped(packages: Packages) -> None:
    package = packages("marian", "fp32").package
    assert package.manifest.decoding is not None
    wide = replace(
        package,
        manifest=package.manifest.model_copy(
            update={"decoding": package.manifest.decoding.model_copy(update={"num_beams": 4})}
        ),
    )
    with load_model(wide, ModelSettings(threads=1, max_sequences=2)) as model:
        (default,) = model.translate("The kitchen is open.")
        (explicit,) = model.translate("The kitchen is open.", num_beams=2)
        assert default.hypotheses == explicit.hypotheses


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({}, "text", "exactly one of text and image"),
        ({"text": "a", "image": b"b"}, "text", "exactly one of text and image"),
        ({"text": "a", "top_k": 0}, "top_k", "top_k is 0; it must be at least 1"),
    ],
)
def test_classify_invalid_options_are_rejected_before_model_runs(
    packages: Packages, options: dict[str, Any], field: str, message: str
) -> None:
    with open_model(packages("bert", "fp32").package.folder, threads=1) as model:
        slot_steps = model.counters["slot_steps"]
        with pytest.raises(InputError, match=message) as error:
            model.classify(**options)
        assert error.value.field == field
        assert model.counters["slot_steps"] == slot_steps
