"""Mistakes of the client library that the fuzzer finds: each a text in one of its sources, and what stands there instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    name: str
    lies: str  # that are told, so that few sessions are needed
    source: str  # below native
    text: str
    instead: str
    found: str  # what the fuzzer says of it, a regular expression


BUGS = [
    Bug(  # a server writes into memory that the program uses for something else by then
        "a_completion_does_not_end_its_copies",
        "TOO_EARLY,PAYLOAD_LATE",
        "shim/session/streams.c",
        "enum expect_outcome outcome = expect_end(s, upto, failed, receiving);",
        "enum expect_outcome outcome = EXPECT_ENDED;",
        "violation: ",
    ),
    Bug(
        "a_payload_larger_than_its_copy",
        "PAYLOAD_SIZE",
        "shim/session/expected.c",
        "size > size_of(&e->area) - e->received",
        "size > UINT64_MAX - e->received",
        "violation: |heap-buffer-overflow|SEGV",
    ),
    Bug(
        "an_answer_that_comes_twice",
        "REPLY_TWICE",
        "shim/session/posting.c",
        "    *at = reply->next;\n    reply->status = status;",
        "    reply->status = status;",
        "stack-use-after|SEGV|still runs|stack-buffer",
    ),
    Bug(
        "a_host_function_that_is_called_twice",
        "HOST_FUNCTION",
        "shim/session/host_functions.c",
        "        *at = f->next;\n        f->bulk = bulk;",
        "        f->bulk = bulk;",
        "use-after-free|double-free|still runs",
    ),
    Bug(
        "a_record_of_any_size",
        "RECORD",
        "wire/ring.c",
        "if (gv_record_check(size, most, limit) != GV_RECORD_WHOLE) return -1;",
        "if (size < sizeof header + limit * 0) return -1;",
        "heap-buffer-overflow|SEGV|negative-size|param-overlap",
    ),
    Bug(
        "kernel_parameters_outside_their_buffer",
        "META",
        "wire/module_meta.c",
        "params[i].offset > kernel->param_bytes || params[i].size > kernel->param_bytes - params[i].offset",
        "params[i].offset > kernel->param_bytes && !params[i].size",
        "stack-buffer-overflow|SEGV|global-buffer-overflow|stack-buffer-underflow|negative-size",
    ),
    Bug(
        "more_devices_than_there_is_room_for",
        "DEVICES",
        "shim/session/attach.c",
        " || r->devices_size / sizeof *s->devices > GV_MAX_DEVICES",
        "",
        "global-buffer-overflow|out of bounds",
    ),
    Bug(
        "texts_that_terminals_obey",
        "FAILED,STATUS",
        "shim/session/log.c",
        "int size = printable(c);",
        "int size = 1 | printable(c);",
        "printed what is not printable",
    ),
    Bug(
        "two_answers_that_name_one_payload",
        "META_PAYLOAD",
        "shim/session/reply_payloads.c",
        " || (p && p->taken)",
        "",
        "use-after-free|double-free|SEGV",
    ),
    Bug(
        "waiters_that_are_not_told_of_the_end",
        "NO_REPLY,NO_COMPLETION",
        "shim/session/loss.c",
        "        atomic_store(&session.over, 1);\n",
        "",
        "still runs",
    ),
]
