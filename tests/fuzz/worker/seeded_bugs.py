"""Bugs that the fuzzer must find: each is a change of one source of the worker, of the kind that people make, and how it shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """`old` stands once in native/worker/`file`, and becomes `new`; the fuzzer's report then matches `shows`."""

    name: str
    file: str
    old: str
    new: str
    shows: str


BUGS = [
    Bug(
        "the class of a piece of staging memory is rounded down",
        "staging.c",
        "class <= STAGING_LARGEST && size > 1ull << class",
        "class <= STAGING_LARGEST && size >> class > 1",
        "heap-buffer-overflow|the link of a sound session has died",  # the kernel may refuse to write where no memory is
    ),
    Bug(
        "what a payload's early bytes take the place of is not given back",
        "bulk_copy_in.c",
        "            staging_give(&c->w->staging, mine->data, mine->size);\n            mine->data = p->data;",
        "            mine->data = p->data;",
        "wrong: at rest",
    ),
    Bug(
        "a copy does not hold its stream",
        "bulk_copy_in.c",
        "    worker_stream_hold(s);\n    worker_expect_it(w, &c->expected);",
        "    worker_expect_it(w, &c->expected);",
        "heap-use-after-free|double-free|the session does not end",
    ),
    Bug(
        "a destroyed context's streams keep their handles",
        "do_context.c",
        "        handles_take(&w->streams, s->id);\n",
        "",
        "heap-use-after-free|double-free",
    ),
    Bug(
        "the packed bytes of an image are freed twice",
        "do_module.c",
        "*bytes = (struct worker_bytes){unpacked, c->raw, unpacked};",
        "bytes->data = unpacked, bytes->size = c->raw;",
        "double-free|heap-use-after-free",
    ),
    Bug(
        "nobody looks at the rank of a tensor map",
        "do_tensor_map.c",
        "if (count > 5 || size != count * each) return -1;",
        "if (size != count * each) return -1;",
        "stack-buffer-overflow|index [0-9]+ out of bounds|runtime error",
    ),
    Bug(
        "a handle that was taken is there for another time",
        "handles.c",
        "    if (at < 0) return NULL;\n    h->ids[at] = GRAVE;",
        "    if (at < 0) return NULL;",
        "heap-use-after-free|double-free",
    ),
    Bug(
        "commands of a mark are counted as one",
        "completion.c",
        "    worker_pending_done(m->w, m->count);",
        "    worker_pending_done(m->w, 1);",
        "wrong: at rest",
    ),
    Bug(
        "the number of a link's inputs wraps",
        "do_link.c",
        "c->n_inputs <= bytes->size / GV_LINK_INPUT_LEAST && c->n_inputs <= GV_LINK_MAX_INPUTS && c->options_size % "
        "sizeof(struct gv_link_option) == 0;\n    struct gv_link_part *parts = sound ? calloc((size_t)c->n_inputs",
        "c->options_size % sizeof(struct gv_link_option) == 0;\n    struct gv_link_part *parts = sound ? calloc(c->n_inputs",
        "heap-buffer-overflow",
    ),
    Bug(
        "a host function that was answered keeps its tag",
        "host/do_host_func.c",
        "handles_take(&w->host_calls, tag)",
        "handles_get(&w->host_calls, tag)",
        "heap-use-after-free|double-free",
    ),
    Bug(
        "nobody looks whether a copy's record has as many bytes as its shape",
        "do_copy.c",
        "if (!size || (!c->bulk && c->data_size != size)) return -1;",
        "if (!size) return -1;",
        "which is malformed|heap-buffer-overflow|SEGV",
    ),
    Bug(
        "memory that could not be given back is counted as given back",
        "do_memory.c",
        "given back\");\n    else\n        atomic_fetch_sub",
        "given back\");\n    atomic_fetch_sub",
        "wrong: the worker counts|wrong: at rest",
    ),
]
