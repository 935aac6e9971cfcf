"""Choices that exist to be measured: what a commit pass feeds, and how far attention reaches."""

import numpy as np
from decoding_cases import block_of, positions

from focus_bench.decoding.attention_cover import last_attended
from focus_bench.decoding.caching import plan_feed
from focus_bench.decoding.policies import POLICY_CODES


def test_commit_pass_feeds_the_blocks_first_tokens_again_if_asked_to() -> None:
    # Three tokens were there when the block began; the second row still has a mask.
    block = block_of("DDDDDDDD", "DDDDDDDM", uncached=(".....x.x", "......xx"), decoded=5)
    block.block_decoded[1] = 4
    assert positions(plan_feed(block).positions[0]) == [5, 7]
    feed = plan_feed(block, refresh_prompt=True)
    assert positions(feed.positions[0]) == [0, 1, 2, 5, 7]
    assert positions(feed.positions[1]) == [6, 7]
    assert not feed.decodable[0].any()


def test_a_block_without_prompt_tokens_is_not_refreshed() -> None:
    block = block_of("DDDDDDDD", uncached=(".....x.x",), decoded=8)
    assert positions(plan_feed(block, refresh_prompt=True).positions[0]) == [5, 7]


def test_attention_reaches_progress_or_the_rightmost_kept_position() -> None:
    block = block_of(*["DDMMMMDD"] * 3, "D" * 8, uncached=(*[".xxxxxx."] * 3, "..xx...."))
    block.policy_code[:] = [
        POLICY_CODES[p] for p in ("focus", "focus-fixed", "delayed-cache-neighbor", "focus")
    ]
    feed = plan_feed(block)
    kept = np.zeros((4, 8), dtype=bool)
    kept[:, 2:4] = True
    progress = np.full(4, 7)
    assert last_attended(block, feed, kept, progress, "progress").tolist() == [7, 7, 7, 7]
    # Steps of the policies that evict by score are cut; other policies and commit passes are not.
    assert last_attended(block, feed, kept, progress, "rightmost").tolist() == [3, 3, 7, 7]
