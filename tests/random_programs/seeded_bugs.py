"""Mistakes of the client library that random programs find: each a text in one of its sources, and what stands there instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    name: str
    source: str  # below native/shim
    text: str
    instead: str
    within: int  # steps
    chained: bool = False  # found where the device is further away than the next process
    link: str = "shm"
    also: tuple[tuple[str, str, str], ...] = ()  # more of the same: source, text, instead

    def changes(self) -> list[tuple[str, str, str]]:
        return [(self.source, self.text, self.instead), *self.also]


BUGS = [
    Bug(
        "a_stream_does_not_wait_for_an_event",
        "objects/stream_calls.c",
        "if (e->stream && e->stream != s &&",
        "if (e->stream == s && e->seq &&",
        20_000,
    ),
    Bug("a_pageable_source_is_read_later", "objects/memory/copy.c", ".lend = !wait && src->pinned,", ".lend = !wait,", 30_000, link="tcp"),
    Bug(
        "a_source_is_read_before_it_is_written",
        "objects/memory/copy.c",
        "if (late) return defer(s, dst, src, box);",
        "if (late && !box->width) return defer(s, dst, src, box);",
        20_000,
    ),
    Bug(
        "the_tail_of_a_wide_fill",
        "objects/memory/copy.c",
        ".value = value, .width = width, .height = height};\n    bool begun",
        ".value = value, .width = width - (element == 2 && width > 9 && width % 2), .height = height};\n    bool begun",
        20_000,
    ),
    Bug(
        "a_changed_node_stays_as_it_was",
        "objects/graph/execute.c",
        "return change_locked(x, node, graph_describe_kernel(p, &work), &work);",
        "return graph_describe_kernel(p, &work) || !x || !node;",
        60_000,
    ),
    Bug(
        "a_graph_reads_its_source_too_early",
        "objects/graph/execute.c",
        "src.pinned = host_writes_pending(src.address, src.address + size);",
        "src.pinned = size > 1ull << 40;",
        60_000,
    ),
    Bug(
        "a_page_of_managed_memory_is_not_sent",
        "objects/managed/coherence.c",
        "bool send = region_state(r, i) == BLOCK_DIRTY && i - spare >= n_spare;",
        "bool send = region_state(r, i) == BLOCK_DIRTY && i - spare >= n_spare && !(i & 1);",
        60_000,
    ),
    Bug(
        "a_fetch_beside_a_launch_is_kept",
        "objects/managed/coherence.c",
        "return f->beside_work || region_given(f->region) != f->given;",
        "return f->beside_work;",
        400_000,
    ),
    Bug(
        "a_prefetch_behind_which_a_kernel_was_launched_is_kept",
        "objects/managed/coherence.c",
        "region_given(r) == r->prefetch_given ? BLOCK_CLEAN : BLOCK_STALE",
        "r->prefetch_given ? BLOCK_CLEAN : BLOCK_STALE",
        400_000,
    ),
    Bug(
        "a_copy_to_the_host_is_told_too_early",
        "session/streams.c",
        "enum expect_outcome outcome = expect_end(s, upto, failed, receiving);",
        "enum expect_outcome outcome = s ? EXPECT_ENDED : expect_end(s, upto, failed, receiving);",
        60_000,
        chained=True,
        also=(
            (
                "session/completions.c",
                "if (h->bulk > atomic_load(&session.received)) return",
                "if (h->bulk > atomic_load(&session.received) && !q) return",
            ),
        ),
    ),
    Bug(
        "copies_to_the_same_place_land_in_any_order",
        "objects/memory/copy.c",
        "int rc = host_copies_pending(dst->address, dst->address + extent(dst, box)) ? after_landing(s) : 0;",
        "int rc = host_copies_pending(dst->address, dst->address + extent(dst, box)) && !src ? after_landing(s) : 0;",
        300_000,
        chained=True,
    ),
    Bug(
        "a_synchronous_copy_does_not_wait_for_its_stream",
        "objects/memory/copy.c",
        "if (!rc && wait && (host_writes_pending(0, UINT64_MAX) || ipc_memory_is_shared())) rc = stream_drain(s);",
        "",
        20_000,
    ),
    Bug(
        "what_a_copy_leaves_in_a_shadow_does_not_come_back",
        "objects/managed/coherence.c",
        "int rc = shadow_access(address, written);",
        "int rc = shadow_access(address, written && size > 1ull << 40);",
        60_000,
    ),
]
SEEDED = {bug.name: bug for bug in BUGS}
