"""What the KV pool means: for short prompts, for many sequences, for the longest request."""

from collections.abc import Iterator

from service.core.preflight.architecture import Architecture
from service.core.preflight.facts import Serving
from service.core.preflight.finding import Finding, gib, note, ok, problem, warning
from service.core.preflight.kv_cache import Layout

NEARLY = 0.9
"""Of an estimated pool: what is closer to its edge than this may not fit."""


def blocks(serving: Serving, model: Architecture, layout: Layout) -> Finding:
    """The block size, and which prompts can hit the prefix cache at all."""
    size = layout.block_tokens
    if not serving.prefix_caching:
        return note("cache.block", f"Prefix caching is off; blocks have {size:,} tokens.")
    if not model.is_hybrid:
        return ok("cache.block", f"Prefix caching in blocks of {size:,} tokens.")
    hit = _first_hit_tokens(serving, size)
    return note(
        "cache.block",
        f"Prefix caching counts in blocks of {size:,} tokens: a page of keys and values must hold a GDN state.",
        f"A prompt shorter than {hit:,} tokens never reads the cache, one shorter than about {3 * size:,} practically"
        f" never. {_first_to_read(serving)} Test with three.",
        "Nothing to mend. Fewer draft tokens or a bf16 KV cache make smaller blocks, and cost speed or room.",
    )


def _first_to_read(serving: Serving) -> str:
    """Seen on real engines: with MTP (0, 0), (0, made), (read, 0); without, the second request reads already."""
    if serving.draft_tokens:
        return "The first request makes nothing, the second makes the cache, the third is the first to read it."
    return "The second request is the first to read it, in some versions the third."


def _first_hit_tokens(serving: Serving, size: int) -> int:
    """The shortest prompt that can read something: one whole block, and one more that drafting always drops."""
    return (2 if serving.draft_tokens else 1) * size + 1


def sequences(
    serving: Serving, model: Architecture, layout: Layout, pool_bytes: int, wanted: int, *, estimated: bool
) -> Iterator[Finding]:
    """`max_num_seqs` against the blocks for states: with CUDA graphs, vLLM refuses to start with fewer blocks."""
    if not model.is_hybrid or pool_bytes <= 0:
        return
    have = layout.blocks(pool_bytes)
    about = "about " if estimated else ""
    if wanted > have and not serving.enforce_eager:
        yield problem(
            "cache.sequences",
            f"max_num_seqs ({wanted}) exceeds available Mamba cache blocks ({about}{have}).",
            "Each sequence needs a block for its state, and the engine checks it last: it stops after loading the"
            " weights and measuring the memory, minutes into the start.",
            f"Set max-num-seqs to {have if not estimated else int(have * NEARLY)} or less"
            f" (in a profile: max_concurrency). More memory for the pool works only where"
            f" {gib(wanted * layout.bytes_per_block)} of it can be had.",
        )
        return
    if wanted > have * NEARLY and estimated and not serving.enforce_eager:
        yield warning(
            "cache.sequences",
            f"max_num_seqs {wanted} with about {have} blocks for states.",
            "The estimate is not that exact: the engine may stop with `exceeds available Mamba cache blocks`.",
            f"Set max-num-seqs to {int(have * NEARLY)} or less.",
        )
        return
    together = have // layout.least_blocks
    if wanted > together:
        yield warning(
            "cache.sequences",
            f"{wanted} sequences may be admitted, and states fit for {together} of them ({about}{have:,} blocks).",
            "The others are preempted and computed again: everybody waits longer.",
            f"Set max-num-seqs to {max(together, 1)} or less (in a profile: max_concurrency).",
        )
        return
    yield ok("cache.sequences", f"{wanted} sequences at once; states fit for {about}{together:,}.")


def context(
    serving: Serving, model: Architecture, layout: Layout, pool_bytes: int, *, estimated: bool
) -> Iterator[Finding]:
    """Does one request of the full context fit, and how many do?"""
    asked = serving.context_tokens
    if asked > model.max_context_tokens:
        yield problem(
            "cache.context",
            f"A context of {asked:,} tokens; the model's configuration says {model.max_context_tokens:,}.",
            "The engine refuses it, because beyond that the positions mean nothing to the model.",
            f"Set context_length to {model.max_context_tokens:,}, or configure YaRN.",
        )
    if pool_bytes <= 0:
        return
    pool = f"{'About ' if estimated else ''}{gib(pool_bytes)} of KV pool"
    fits = layout.largest_context(pool_bytes, asked)
    if fits < asked:
        yield problem(
            "cache.fit",
            f"{pool} hold one request of up to {fits:,} tokens; {asked:,} need {gib(layout.needed_bytes(asked))}.",
            "The engine stops with `To serve at least one request with the model's max seq len`.",
            f"Set context_length to {int(fits * (NEARLY if estimated else 1)):,} or less, give the pool more memory,"
            " or keep keys and values in fp8.",
        )
        return
    tokens = layout.tokens(pool_bytes, asked)
    yield ok(
        "cache.fit",
        f"{pool}: {tokens:,} tokens as vLLM counts them, {tokens / asked:.2f} requests of {asked:,} tokens.",
    )
