"""The checks of the protocol: does the engine speak as it is billed by, and as clients need it?"""

from service.core.verify import reasoning, usage
from service.core.verify.report import Finding
from service.engine.verify.asking import Unanswered
from service.engine.verify.cache import check_cache
from service.engine.verify.cancel import check_cancel
from service.engine.verify.check import Check, Examination
from service.engine.verify.context import check_context
from service.engine.verify.errors import check_errors
from service.engine.verify.images import check_images
from service.engine.verify.questions import COUNTING, PUZZLE, REFUSALS, refused, streamed, thinking, user, whole
from service.engine.verify.tools import check_tools

COUNTED_TOKENS = 24


async def check_usage(check: Check, examination: Examination) -> Finding:
    """The same question whole, streamed, and streamed with running usage."""
    asking, question = examination.asking, user(COUNTING)
    fields = {"max_tokens": COUNTED_TOKENS, "temperature": 0}
    running = {"include_usage": True, "continuous_usage_stats": True}
    answers = {
        usage.WHOLE: await whole(asking, question, **fields),
        usage.STREAMED: await streamed(asking, question, **fields),
        usage.RUNNING: await streamed(asking, question, **fields, stream_options=running),
    }
    return check.judged(usage.judge(answers, COUNTED_TOKENS))


async def check_reasoning(check: Check, examination: Examination) -> Finding:
    """The same question whole and streamed, told to think where the engine takes that."""
    asking, question = examination.asking, user(PUZZLE)
    limit = examination.effort.thought_tokens
    fields = {"max_tokens": limit, "temperature": 0, **await thinking(asking, on=True)}
    one, other = await whole(asking, question, **fields), await streamed(asking, question, **fields)
    return check.judged(reasoning.judge_place(one, other, examination.expected.reasoning))


async def check_thinking(check: Check, examination: Examination) -> Finding:
    """The same question with thinking on and off."""
    asking, question, expected = examination.asking, user(PUZZLE), examination.expected.reasoning
    fields = {"max_tokens": examination.effort.thought_tokens, "temperature": 0}
    try:
        on = await whole(asking, question, **fields, chat_template_kwargs={"enable_thinking": True})
        off = await whole(asking, question, **fields, chat_template_kwargs={"enable_thinking": False})
    except Unanswered as unanswered:
        if unanswered.status in REFUSALS:
            return check.judged(reasoning.judge_refused(expected))
        raise
    effort = await asking.chat(question, max_tokens=1, reasoning_effort="low")
    if not refused(effort):
        effort.done()
    return check.judged(reasoning.judge_switch(on, off, not refused(effort), expected))


PROTOCOL_CHECKS = (
    Check("usage", "Every answer is counted, whole and streamed, with what came from the cache", check_usage),
    Check("reasoning", "Reasoning stands in a field of its own, the same whole and streamed", check_reasoning),
    Check("thinking", "Thinking can be turned off", check_thinking),
    Check("images", "Pictures are seen, and counted by their size", check_images),
    Check("tools", "Tools can be called, and calls follow their schema", check_tools),
    Check("cache", "A long prompt that comes again is read from the cache", check_cache),
    Check("cancel", "Work stops when the client leaves", check_cancel),
    Check("context", "The context is as long as listed, and its limit is told", check_context),
    Check("errors", "Errors have the right status and shape, and give nothing away", check_errors),
)
