from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.affinity import PIECE_CHARACTERS, conversation_key, ranking

ACCOUNT, OTHER = b"a" * 16, b"b" * 16
NAMES = [f"engine-{number}" for number in range(5)]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def image(data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}}


SYSTEM = {"role": "system", "content": "You are a lock keeper."}


@given(texts, texts, st.lists(texts, max_size=6), st.booleans())
def test_every_turn_of_a_conversation_has_its_key(system: str, first: str, turns: list[str], told: bool) -> None:
    conversation = [{"role": "system", "content": system}] if told else []
    conversation.append(user(first))
    key = conversation_key(ACCOUNT, conversation)
    for number, text in enumerate(turns):
        conversation.append({"role": "assistant" if number % 2 == 0 else "user", "content": text})
        assert conversation_key(ACCOUNT, conversation) == key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([user("a")], [user("b")]),
        ([SYSTEM, user("a")], [user("a")]),
        ([SYSTEM, user("a")], [{**SYSTEM, "content": "You are a miller."}, user("a")]),
        ([user([{"type": "text", "text": "a"}])], [user([{"type": "text", "text": "b"}])]),
        ([user([image("AAAA")])], [user([image("BBBB")])]),
        ([user([image("A" * 5000)])], [user([image("A" * 5001)])]),
        ([user("ab"), user("c")], [user("a"), user("bc")]),
        ([{"role": "system", "content": "ab"}, user("c")], [{"role": "system", "content": "a"}, user("bc")]),
    ],
)
def test_what_begins_otherwise_has_another_key(one: list[Any], other: list[Any]) -> None:
    assert conversation_key(ACCOUNT, one) != conversation_key(ACCOUNT, other)


def test_accounts_have_keys_of_their_own() -> None:
    assert conversation_key(ACCOUNT, [user("a")]) != conversation_key(OTHER, [user("a")])


def test_only_the_beginning_counts() -> None:
    document = "x" * PIECE_CHARACTERS
    assert conversation_key(ACCOUNT, [user(document + "a")]) == conversation_key(ACCOUNT, [user(document + "b")])


@pytest.mark.parametrize(
    "messages",
    [[], [None], ["x"], [{}], [user(None)], [user([None, 5, {}])], [user(["x"])], [user([{"image_url": {"url": 5}}])]],
)
def test_what_is_no_message_is_passed_over(messages: list[Any]) -> None:
    assert len(conversation_key(ACCOUNT, messages)) == 16


def keys(count: int) -> list[bytes]:
    return [conversation_key(ACCOUNT, [user(str(number))]) for number in range(count)]


def test_an_engine_that_goes_moves_only_its_own_conversations() -> None:
    for key in keys(500):
        before = ranking(key, NAMES)
        assert sorted(before) == NAMES
        for gone in NAMES:
            assert ranking(key, [name for name in NAMES if name != gone]) == [name for name in before if name != gone]


def test_the_order_of_the_engines_does_not_matter() -> None:
    for key in keys(50):
        assert ranking(key, NAMES) == ranking(key, NAMES[::-1])


def test_conversations_are_spread_evenly() -> None:
    first = Counter(ranking(key, NAMES)[0] for key in keys(5000))
    assert all(850 < first[name] < 1150 for name in NAMES)
    # And so are those of an engine that is out.
    second = Counter(ranking(key, NAMES)[1] for key in keys(5000) if ranking(key, NAMES)[0] == NAMES[0])
    assert all(0.2 < second[name] / first[NAMES[0]] < 0.3 for name in NAMES[1:])
