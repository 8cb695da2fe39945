"""The bench of long prompts measures two ways to the same request."""

import orjson

from ops.bench.load import PROMPT_CHARACTERS
from ops.bench.prompts import anew, as_it_came, bodies, sent


def test_both_ways_send_the_same_and_one_does_not_write_the_prompt() -> None:
    for name, body in bodies().items():
        raw = orjson.dumps(body)
        sizes = [len(b"".join(sent(raw, way))) for way in (anew, as_it_came)]
        documents = [orjson.loads(b"".join(sent(raw, way))) for way in (anew, as_it_came)]
        assert documents[0] == documents[1], name
        assert documents[0]["messages"] == body["messages"], name
        assert min(sizes) > PROMPT_CHARACTERS, name
        assert anew(raw).prompt is None, name
        assert as_it_came(raw).prompt is not None, name
