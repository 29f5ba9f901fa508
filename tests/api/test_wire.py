"""Every record of the wire: encoding and decoding are inverse, malformed records are refused. A C program does both with random contents under the
address sanitizer.
"""

# ruff: noqa: E501 (lines of C)
from __future__ import annotations

import subprocess
from pathlib import Path

import c_build
import command_spec
import emit_commands
import pytest
from api.building import ROOT
from command_spec import Body, Field

MAIN = """\
#include <stdio.h>
#include <stdlib.h>

#include "gv_commands.h"

static uint64_t state;

static uint64_t rnd(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

#define CHECK(x)                                                       \\
    do {                                                               \\
        if (!(x)) {                                                    \\
            fprintf(stderr, "line %d: %s (%s)\\n", __LINE__, #x, what); \\
            exit(1);                                                   \\
        }                                                              \\
    } while (0)

/* Exactly n bytes, so that the sanitizer sees a read beyond them. */
static void *copy_of(const void *data, size_t n) {
    void *copy = aligned_alloc(8, n ? (n + 7) & ~7ull : 8);
    memcpy(copy, data, n);
    return realloc(copy, n ? n : 1);
}
"""


def fill(f: Field) -> str:
    if f.type == "bytes":
        return (
            f"    c.{f.name}_size = rnd() % 3 ? (uint32_t)(rnd() % 100) : 0; char *{f.name} = malloc(c.{f.name}_size + 1); c.{f.name} = {f.name};\n"
            + (f"    for (uint32_t i = 0; i < c.{f.name}_size; i++) {f.name}[i] = (char)rnd();\n")
        )
    if f.type == "str":
        return (
            f"    size_t {f.name}_n = rnd() % 40; char *{f.name} = malloc({f.name}_n + 1); c.{f.name} = {f.name};\n"
            f"    for (size_t i = 0; i < {f.name}_n; i++) {f.name}[i] = (char)(1 + rnd() % 255);\n    {f.name}[{f.name}_n] = 0;\n"
        )
    if f.count > 1:
        return f"    for (int i = 0; i < {f.count}; i++) c.{f.name}[i] = (uint32_t)rnd();\n"
    return f"    c.{f.name} = {'(float)(rnd() % 1000000) / 7' if f.type == 'f32' else '(' + command_spec.C_TYPES[f.type] + ')rnd()'};\n"


def compare(f: Field) -> str:
    if f.type == "bytes":
        return f"    CHECK(d.{f.name}_size == c.{f.name}_size && !memcmp(d.{f.name}, c.{f.name}, c.{f.name}_size) && (uintptr_t)d.{f.name} % 8 == 0); free({f.name});\n"
    if f.type == "str":
        return f"    CHECK(!strcmp(d.{f.name}, c.{f.name})); free({f.name});\n"
    return f"    CHECK(!memcmp({'' if f.count > 1 else '&'}d.{f.name}, {'' if f.count > 1 else '&'}c.{f.name}, {f.width}));\n"


def exercise(body: Body) -> str:
    name = body.name
    out = [f'static void try_{name}(void) {{\n    const char *what = "{name}";\n    struct {name} c, d;\n    memset(&c, 0, sizeof c);\n']
    out += [fill(f) for f in body.fields]
    out.append(f"""\
    uint64_t n = {name}_size(&c);
    CHECK(n % 8 == 0);
    unsigned char *record = malloc(n + 1);
    memset(record, 0xa5, n + 1);
    {name}_encode(&c, record);
    CHECK(record[n] == 0xa5);
    unsigned char *exact = copy_of(record, n);
    CHECK({name}_decode(&d, exact, (uint32_t)n) == 0);
""")
    out += [compare(f) for f in body.fields]
    # Shorter, longer, and with lengths that promise too much.
    out.append(f"""\
    free(exact);
    for (uint64_t cut = 0; cut < n; cut += 4) {{
        exact = copy_of(record, cut);
        CHECK({name}_decode(&d, exact, (uint32_t)cut) == -1);
        free(exact);
    }}
    exact = calloc(1, n + 8);
    memcpy(exact, record, n);
    CHECK({name}_decode(&d, exact, (uint32_t)n + 8) == -1);
    free(exact);
""")
    for f in body.blobs:
        for value in ("0xffffffffu", "0xfffffff8u", "0x7fffffffu", "(uint32_t)n"):
            out.append(f"    exact = copy_of(record, n); memcpy(exact + {f.offset}, &(uint32_t){{{value}}}, 4);\n")
            out.append(f"    CHECK({name}_decode(&d, exact, (uint32_t)n) == -1); free(exact);\n")
        if f.type == "str":
            out.append(f"    uint32_t {f.name}_was; memcpy(&{f.name}_was, record + {f.offset}, 4);\n")
            out.append(
                f"    if ({f.name}_was > 0) {{\n        exact = copy_of(record, n); {name}_decode(&d, exact, (uint32_t)n); *(char *)(uintptr_t)d.{f.name} = 0;\n"
            )
            out.append(f"        CHECK({name}_decode(&d, exact, (uint32_t)n) == -1); free(exact);\n    }}\n")
    # Whatever the bytes are: a verdict, and no read outside.
    out.append(f"""\
    for (int i = 0; i < 20; i++) {{
        exact = copy_of(record, n);
        if (n) exact[rnd() % n] = (unsigned char)rnd();
        (void){name}_decode(&d, exact, (uint32_t)n);
        free(exact);
    }}
    free(record);
}}
""")
    return "".join(out)


@pytest.mark.slow
def test_round_trip_and_refusals(generated: Path, includes: list[Path], tmp_path: Path) -> None:
    spec = command_spec.load(ROOT / "native" / "api" / "commands.toml")
    bodies = emit_commands.bodies(spec)
    main = [
        MAIN,
        *map(exercise, bodies),
        "int main(int argc, char **argv) {\n    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;\n    for (int i = 0; i < 50; i++) {\n",
    ]
    main += [f"        try_{body.name}();\n" for body in bodies]
    main.append('    }\n    puts("ok");\n    return 0;\n}\n')
    (tmp_path / "wire.c").write_text("".join(main))
    sources = [tmp_path / "wire.c", generated / "gv_commands.c"]
    program = c_build.program(tmp_path / "wire", sources, variant="address", flags=[f"-I{folder}" for folder in includes])
    for seed in ("1", "20261121", "987654321"):
        done = subprocess.run([str(program), seed], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr[-3000:]


def test_names(generated: Path, includes: list[Path], tmp_path: Path) -> None:
    spec = command_spec.load(ROOT / "native" / "api" / "commands.toml")
    code = ['#include "gv_commands.h"\nint main(void) {\n']
    code += [f'    if (strcmp(gv_op_name({number}), "{name}")) return {number};\n' for name, number in spec.names()]
    unknown = max(number for _, number in spec.names()) + 1
    code.append(f'    return strcmp(gv_op_name({unknown}), "?") ? 250 : 0;\n}}\n')
    (tmp_path / "names.c").write_text("".join(code))
    sources = [tmp_path / "names.c", generated / "gv_commands.c"]
    program = c_build.program(tmp_path / "names", sources, variant="address", flags=[f"-I{folder}" for folder in includes])
    assert subprocess.run([str(program)], timeout=60, check=False).returncode == 0
