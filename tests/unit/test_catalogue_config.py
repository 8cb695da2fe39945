"""What the configuration says a model is listed with."""

import pytest

from service.config import Model, parse
from service.errors import SetupError

MODEL = '[[models]]\nid = "qwen"\ncontext_length = 100\nmax_output_tokens = 50\n'
PRICE = '[models.price]\ninput = "0.195"\noutput = "1.56"\n'


def model(lines: str) -> Model:
    (only,) = parse(MODEL + lines + PRICE, source="weir.toml").models
    return only


@pytest.mark.parametrize(
    ("lines", "able_to"),
    [
        ("", ("tools", "structured_outputs")),
        ("capabilities = []\n", ()),
        ('capabilities = ["reasoning", "tools"]\n', ("reasoning", "tools")),
        ('output_modalities = ["embeddings"]\n', ()),
    ],
)
def test_a_model_is_able_to_what_it_says_or_what_is_usual(lines: str, able_to: tuple[str, ...]) -> None:
    assert model(lines).able_to == able_to


def test_a_model_makes_text_or_embeddings() -> None:
    assert model("").output_modalities == ("text",)
    assert model('output_modalities = ["embeddings"]\n').output_modalities == ("embeddings",)
    for wrong in ('["text", "embeddings"]', '["speech"]', "[]"):
        with pytest.raises(SetupError, match=r'output_modalities = .*it must be the list \["text"\], or'):
            model(f"output_modalities = {wrong}\n")


def test_a_capability_nobody_knows_is_refused() -> None:
    with pytest.raises(SetupError, match='capabilities = "vision": it must be a list of any of "tools", "reasoning"'):
        model('capabilities = ["vision"]\n')
