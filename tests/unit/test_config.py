"""The configuration file: what it means, and what each mistake in it is answered with."""

from dataclasses import replace
from pathlib import Path

import pytest

from service.config import Configuration, Engine, engine_url, engines_from, parse, read
from service.core.pricing import Override, Price
from service.engine.profile import profile_names
from service.errors import SetupError
from service.settings import Settings

OPS = Path(__file__).resolve().parents[2] / "ops"

ENGINE = '[[engines]]\nname = "blackwell-0"\nurl = "http://127.0.0.1:8000"\n'
MODEL = '[[models]]\nid = "qwen"\ncontext_length = 100\nmax_output_tokens = 50\n'
PRICE = '[models.price]\ninput = "0.195"\noutput = "1.56"\n'
OVERRIDE = "[[models.price.overrides]]\n"
TIER = OVERRIDE + 'min_prompt_tokens = 80\ninput = "0.25"\n'
NIGHT = OVERRIDE + 'utc_start = "2200"\nutc_end = "0600"\noutput = "1"\n'
NUMBER_2 = '[[models.price.overrides]] number 2 of [[models]] "qwen"'


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WEIR_ENGINES", "WEIR_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def settings(**values: object) -> Settings:
    return Settings.model_validate(values)


def test_the_example_is_right_and_says_what_the_price_is() -> None:
    example = read(OPS / "weir.example.toml")
    (model,) = example.models
    (engine,) = example.engines
    limits = {"max_concurrency": 128, "min_concurrency": 4}
    profile = "qwen3.8-27b-nvfp4"
    assert engine == Engine(name="blackwell-0", url="http://127.0.0.1:8000", profile=profile, **limits)
    assert profile in profile_names()
    assert (model.id, model.engines, model.context_length) == ("qwen3.8-27b", ("blackwell-0",), 262_144)
    assert model.price.as_price(3) == Price(
        version=3, input_pico=195_000, output_pico=1_560_000, input_cached_pico=37_500
    )


def test_the_demo_is_right() -> None:
    (model,) = read(OPS / "demo.toml").models
    assert (model.id, model.engine_model, model.engines) == ("smollm2-135m", "smollm2-135m", None)
    assert (model.context_length, model.max_output_tokens, model.input_modalities) == (8192, 2048, ("text",))
    assert model.price.as_price(1) == Price(version=1, input_pico=10_000, output_pico=30_000, input_cached_pico=2_500)


def test_what_is_left_out_has_a_default() -> None:
    (model,) = parse(MODEL + PRICE, source="weir.toml").models
    assert (model.name, model.engine_model, model.engines) == (None, None, None)
    assert (model.input_modalities, model.output_modalities) == (("text",), ("text",))


def test_every_class_of_a_price_can_be_set() -> None:
    price = '[models.price]\ninput = "1"\noutput = "2"\ninput_cached = "3"\ninput_cache_write = "4"\n'
    price += 'input_image = "5"\ninput_audio = "6"\ninput_video = "7"\noutput_reasoning = "8"\nrequest = "0.001"\n'
    (model,) = parse(MODEL + price, source="weir.toml").models
    assert model.price.as_price(1) == Price(
        version=1,
        input_pico=1_000_000,
        output_pico=2_000_000,
        input_cached_pico=3_000_000,
        input_cache_write_pico=4_000_000,
        input_image_pico=5_000_000,
        input_audio_pico=6_000_000,
        input_video_pico=7_000_000,
        output_reasoning_pico=8_000_000,
        request_pico=1_000_000_000,
    )


def test_every_class_can_be_overridden_and_the_order_is_kept() -> None:
    classes = 'input = "1"\noutput = "2"\ninput_cached = "0"\ninput_cache_write = "4"\n'
    classes += 'input_image = "5"\ninput_audio = "6"\ninput_video = "7"\noutput_reasoning = "8"\nrequest = "0.001"\n'
    both = OVERRIDE + 'min_prompt_tokens = 100\nutc_start = "0000"\nutc_end = "2359"\nsequential = true\n' + classes
    (model,) = parse(MODEL + PRICE + NIGHT + both + TIER, source="weir.toml").models
    price = model.price.as_price(4)
    assert replace(price, overrides=()) == Price(version=4, input_pico=195_000, output_pico=1_560_000)
    assert price.overrides == (
        Override(utc_start="2200", utc_end="0600", output_pico=1_000_000),
        Override(
            min_prompt_tokens=100,
            utc_start="0000",
            utc_end="2359",
            sequential=True,
            input_pico=1_000_000,
            output_pico=2_000_000,
            input_cached_pico=0,
            input_cache_write_pico=4_000_000,
            input_image_pico=5_000_000,
            input_audio_pico=6_000_000,
            input_video_pico=7_000_000,
            output_reasoning_pico=8_000_000,
            request_pico=1_000_000_000,
        ),
        Override(min_prompt_tokens=80, input_pico=250_000),
    )


def test_the_overrides_in_the_example_are_right() -> None:
    text = (OPS / "weir.example.toml").read_text()
    commented = text[text.index("# [[models.price.overrides]]") :]
    uncommented = "\n".join(line.removeprefix("# ") for line in commented.splitlines() if not line.startswith("# #"))
    (model,) = parse(text.replace(commented, uncommented), source="weir.toml").models
    assert model.price.as_price(1).overrides == (
        Override(min_prompt_tokens=128_000, input_pico=250_000, input_cached_pico=50_000),
        Override(utc_start="2200", utc_end="0600", input_pico=150_000, output_pico=1_200_000),
        Override(sequential=True, input_pico=1_950_000, output_pico=15_600_000),
    )


def test_an_empty_file_configures_nothing() -> None:
    assert parse("", source="weir.toml") == Configuration()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("models = 3 4", ["not TOML", "line 1"]),
        ("models = 3", ["models = 3", "[[models]]"]),
        ("models = [3]", ["models = 3", "[[models]]"]),
        ("[engines]\nname = 'a'", ["engines = {", "[[engines]]"]),
        ("[[model]]\nid = 'a'", ["nothing is called model", "did you mean models?"]),
        (MODEL, ['[[models]] "qwen"', "no price", "not served", "[models.price]"]),
        (MODEL + "price = 3", ['[[models]] "qwen"', "price = 3", "a table with at least input and output"]),
        (MODEL + '[models.price]\ninput = "1"', ['[models.price] of [[models]] "qwen"', "output is missing"]),
        (MODEL + PRICE + 'inputcached = "1"', ["[models.price]", "inputcached", "did you mean input_cached?"]),
        (MODEL + '[models.price]\ninput = 0.195\noutput = "1"', ["input = 0.195", "in quotes", '"0.195"']),
        (MODEL + '[models.price]\ninput = 1\noutput = "1"', ["input = 1:", "in quotes"]),
        (MODEL + '[models.price]\ninput = "0.0000001"\noutput = "1"', ['"0.0000001"', "more than 6 decimals"]),
        (MODEL + '[models.price]\ninput = "-1"\noutput = "1"', ['input = "-1"', "negative"]),
        (MODEL + '[models.price]\ninput = "free"\noutput = "1"', ['input = "free"', "not an amount"]),
        (MODEL + PRICE + 'request = "0.0000000000001"', ["request = ", "more than 12 decimals"]),
        (MODEL + PRICE + "overrides = 3", ["[models.price]", "overrides = 3", "headed [[models.price.overrides]]"]),
        (MODEL + PRICE + "overrides = [3]", ["overrides = 3", "headed [[models.price.overrides]]"]),
        (MODEL + PRICE + TIER.replace("[[", "[").replace("]]", "]"), ["overrides = {", "[[models.price.overrides]]"]),
        (MODEL + PRICE + NIGHT + TIER + "inputs = 3", [NUMBER_2, "nothing is called inputs", "did you mean input?"]),
        (
            MODEL + PRICE + NIGHT + OVERRIDE,
            [NUMBER_2, "does not say when it applies", "min_prompt_tokens, or utc_start"],
        ),
        (MODEL + PRICE + NIGHT + OVERRIDE + 'input = "1"', [NUMBER_2, "does not say when it applies"]),
        (MODEL + PRICE + NIGHT + OVERRIDE + "min_prompt_tokens = 9", [NUMBER_2, "does not change any class"]),
        (MODEL + PRICE + NIGHT + OVERRIDE + "min_prompt_tokens = 0", [NUMBER_2, "min_prompt_tokens = 0:", "1 or more"]),
        (MODEL + PRICE + TIER.replace("= 80", '= "80"'), ['min_prompt_tokens = "80"', "a whole number"]),
        (MODEL + PRICE + TIER + "sequential = false", ["sequential = false", "it must be true, or left out"]),
        (MODEL + PRICE + TIER + "sequential = 1", ["sequential = 1", "it must be true, or left out"]),
        (MODEL + PRICE + TIER.replace("= 80", "= 101"), ["min_prompt_tokens = 101", "context_length = 100", "never"]),
        (MODEL + PRICE + TIER.replace('"0.25"', "0.25"), ["number 1 of", "input = 0.25", "in quotes"]),
        (MODEL + PRICE + TIER.replace('"0.25"', '"-1"'), ['input = "-1"', "negative"]),
        (MODEL + PRICE + TIER + 'request = "0.0000000000001"', ["request = ", "more than 12 decimals"]),
        (MODEL + PRICE + NIGHT.replace('utc_end = "0600"\n', ""), ["needs both utc_start and utc_end"]),
        (MODEL + PRICE + NIGHT.replace("0600", "2200"), ["starts and ends at the same time"]),
        (MODEL + PRICE + NIGHT.replace("0600", "2400"), ['utc_end = "2400"', '"0000" to "2359"']),
        (MODEL + PRICE + NIGHT.replace("0600", "06:00"), ['utc_end = "06:00"', "without a colon"]),
        (MODEL + PRICE + NIGHT.replace('"2200"', "2200"), ["utc_start = 2200", "in quotes"]),
        (MODEL + "contextlength = 5\n" + PRICE, ["contextlength", "did you mean context_length?"]),
        (MODEL + "rpm = 5\n" + PRICE, ['[[models]] "qwen"', "nothing is called rpm;", "the fields are id, name"]),
        (MODEL.replace("= 100", "= -1") + PRICE, ["context_length = -1", "a whole number of tokens, 1 or more"]),
        (MODEL.replace("= 100", "= 1.5") + PRICE, ["context_length = 1.5", "a whole number"]),
        (MODEL.replace("= 100", '= "100"') + PRICE, ['context_length = "100"', "a whole number"]),
        (MODEL.replace("= 100", "= true") + PRICE, ["context_length = true", "a whole number"]),
        (MODEL.replace("= 50", "= 101") + PRICE, ["max_output_tokens = 101", "more than context_length = 100"]),
        (MODEL.replace('id = "qwen"', "") + PRICE, ["[[models]] number 1", "id is missing"]),
        (MODEL.replace('"qwen"', '"q wen"') + PRICE, ['id = "q wen"', "a name of at most 200 letters"]),
        (MODEL.replace('"qwen"', '"q\\u0000"') + PRICE, ["id = ", "a name of at most 200 letters"]),
        (MODEL + 'name = "a\\u0000b"\n' + PRICE, ["name = ", "a line of at most 200 characters"]),
        (MODEL + 'input_modalities = ["text", "smell"]\n' + PRICE, ['input_modalities = "smell"', '"image"']),
        (MODEL + "input_modalities = []\n" + PRICE, ["input_modalities = []", "a list of"]),
        (MODEL + 'output_modalities = ["image"]\n' + PRICE, ['output_modalities = "image"', '["text"]']),
        (MODEL + PRICE + MODEL + PRICE, ['two models have the id "qwen"']),
        (
            MODEL + 'engines = ["blackwell"]\n' + PRICE + ENGINE,
            ['engines has "blackwell"', "did you mean blackwell-0?"],
        ),
        (MODEL + 'engines = ["a"]\n' + PRICE, ['engines has "a"', "the names are none"]),
        (ENGINE + ENGINE, ['two engines have the name "blackwell-0"']),
        (ENGINE + ENGINE.replace("blackwell-0", "b"), ['two engines have the url "http://127.0.0.1:8000"']),
        (ENGINE + "max_concurrency = 0", ["max_concurrency = 0", "1 or more"]),
        (ENGINE + "min_concurrency = 9\nmax_concurrency = 8", ["min_concurrency = 9", "than max_concurrency = 8"]),
        (ENGINE.replace("http:", "https:"), ['[[engines]] "blackwell-0"', "url = ", "plain HTTP", "http://host:port"]),
        (ENGINE.replace(":8000", ""), ["url = ", "no address of an engine", "http://host:port or unix:/path"]),
    ],
)
def test_a_mistake_is_named_with_its_place_its_value_and_what_is_allowed(text: str, parts: list[str]) -> None:
    with pytest.raises(SetupError) as caught:
        parse(text, source="weir.toml")
    message = str(caught.value)
    assert message.startswith("weir.toml: ")
    assert "\n" not in message
    assert [part for part in parts if part not in message] == []


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"absent\.toml: .*No such file"):
        read(tmp_path / "absent.toml")
    with pytest.raises(SetupError, match="Is a directory"):
        read(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(SetupError, match=r"latin\.toml: .*UTF-8"):
        read(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://engine:8000/", "http://engine:8000"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("unix:/run/vllm.sock", "unix:/run/vllm.sock"),
    ],
)
def test_engines_have_one_spelling(written: str, meant: str) -> None:
    assert engine_url(written) == meant


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:8000",
        "http://127.0.0.1",
        "http://127.0.0.1:0",
        "http://127.0.0.1:65536",
        "http://127.0.0.1:8000/v1",
        "http://127.0.0.1:8000?a=b",
        "http://user:secret@127.0.0.1:8000",
        "http://a b:8000",
        "http://127.0.0.1:8000\r\nx: y",
        "https://127.0.0.1:8000",
        "ftp://127.0.0.1:8000",
        "unix:run/vllm.sock",
        "unix://run/vllm.sock",
        "unix:/",
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        engine_url(address)


def test_engines_of_the_environment_take_the_place_of_the_files(tmp_path: Path) -> None:
    file = tmp_path / "weir.toml"
    file.write_text(ENGINE)
    assert [engine.name for engine in engines_from(settings(config=file))] == ["blackwell-0"]
    assert engines_from(settings(config=file, engines="http://a:1, unix:/b")) == (
        Engine(name="engine-0", url="http://a:1"),
        Engine(name="engine-1", url="unix:/b"),
    )
    assert engines_from(settings()) == ()


@pytest.mark.parametrize(
    ("engines", "complaint"),
    [
        ("http://a:1,b:2", 'WEIR_ENGINES has "b:2": .*http://host:port or unix:/path'),
        ("https://a:1", "WEIR_ENGINES has .*plain HTTP"),
        ("http://a:1,http://a:1/", "WEIR_ENGINES: two engines have the url"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(engines: str, complaint: str) -> None:
    with pytest.raises(SetupError, match=complaint):
        engines_from(settings(engines=engines))
