"""The API tables against the headers: every function has an entry, no entry is stale, and docs/COVERAGE.md matches the tables."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import backend_spec
import command_spec
import conformance_cases
import emit_backend
import emit_dispatch
import emit_impl
import emit_proc_address
import function_spec
import headers
import pytest
from api.building import ROOT

from gpuvirt.soft import cuda_results

API = ROOT / "native" / "api"


@pytest.fixture(scope="module")
def api(headers_at: list[Path]) -> headers.Api:
    return headers.read(headers_at[:-1])


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return Path(shutil.copytree(API / "functions", tmp_path / "functions"))


def problem(tables: Path, api: headers.Api) -> str:
    with pytest.raises(function_spec.SpecError) as caught:
        function_spec.load(tables, api)
    return str(caught.value)


@pytest.mark.slow
def test_every_function_of_the_headers_has_a_class_or_a_reason(api: headers.Api) -> None:
    functions = function_spec.load(API / "functions", api)
    assert {f.base for f in functions if f.declared} == set(api.bases())
    assert len(functions) > 450
    assert all(f.reason for f in functions if f.kind in ("sync", "unsupported"))


def test_a_new_function_stops_the_generator(tables: Path, api: headers.Api) -> None:
    newer = headers.Api(dict(api.symbols), dict(api.versions), api.results, api.scalars, api.version)
    newer.symbols["cuTeleport"] = headers.Symbol("cuTeleport", "cuTeleport", 1, "", (), True)
    assert problem(tables, newer) == "cuTeleport: no table mentions it; give it a class or a reason"


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("unsupported.toml", '"cuGLInit"', '"cuInit"', "undeclared: cuInit is in the headers"),
        ("event.toml", "[cuEventQuery]", "[cuEventGone]", "cuEventGone is in no header"),
        ("event.toml", 'phEvent = "new"', 'phEvents = "new"', "no such parameter: ['phEvents']"),
        ("event.toml", 'phEvent = "new"', 'phEvent = "brand new"', "no such role: brand new"),
        ("event.toml", 'why = "waits for the device"\n', "", "says why"),
        ("event.toml", 'roles = { pMilliseconds = "out" }', "", "pointer parameter float *pMilliseconds needs a role"),
        ("event.toml", '[cuEventQuery]\nclass = "local"', '[cuEventQuery]\nclass = "lokal"', "unknown key or class"),
        ("memory.toml", "host inout[bytesize]", "host inout[bytes]", "no such parameter"),
        ("unsupported.toml", '"cuMulticast*"', '"cuMulticast*", "cuMultix*"', "cuMultix* (multicast: not yet) matches nothing"),
        ("unsupported.toml", '"cuMulticast*"', '"cuMulticast*", "cuLogicalEndpoint*"', "has several reasons"),
    ],
)
def test_mistakes_are_found(tables: Path, api: headers.Api, file: str, old: str, new: str, says: str) -> None:
    text = (tables / file).read_text()
    assert old in text
    (tables / file).write_text(text.replace(old, new, 1))
    assert says in problem(tables, api)


def test_implementations(api: headers.Api) -> None:
    found = emit_impl.prototypes(function_spec.load(API / "functions", api))
    assert found["impl_cuMemAlloc"][1] == "CUresult impl_cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);"
    assert found["impl_cuMemcpy2D"][1] == "CUresult impl_cuMemcpy2D(const CUDA_MEMCPY2D *pCopy);"
    assert found["impl_cuCtxSynchronize_v2"][1] == "CUresult impl_cuCtxSynchronize_v2(CUcontext ctx);"
    assert "impl_cuMemAlloc_v2" not in found
    assert not any("CUdeviceptr_v1" in declaration for _, declaration in found.values())


def test_versions_name_the_symbols_in_order(api: headers.Api) -> None:
    table = emit_proc_address.versions(function_spec.load(API / "functions", api), api)
    assert [(n, s.name) for n, s in table["cuCtxCreate"]] == [
        (2000, "cuCtxCreate"),
        (3020, "cuCtxCreate_v2"),
        (11040, "cuCtxCreate_v3"),
        (12050, "cuCtxCreate_v4"),
    ]
    assert sum(map(len, table.values())) == len(api.symbols)


def test_what_the_headers_tell(api: headers.Api) -> None:
    launch = api.symbols["cuLaunchKernel_ptsz"]
    assert (launch.base, launch.revision, launch.stream, len(launch.parameters)) == ("cuLaunchKernel", 1, "_ptsz", 11)
    assert [p.type for p in api.symbols["cuMemcpyDtoH_v2"].parameters] == ["void *", "CUdeviceptr", "size_t"]
    assert (api.scalars["CUstream"], api.scalars["CUdeviceptr"], api.scalars["CUlimit"], api.scalars["size_t"]) == ("pointer", "u8", "i4", "u8")
    assert {r.name: r.value for r in api.results}["CUDA_ERROR_NOT_SUPPORTED"] == 801


def test_results_have_the_same_numbers_in_both_languages(generated: Path) -> None:
    c = dict(re.findall(r"^    (CUDA_\w+) = (\d+),$", (generated / "gv_results.h").read_text(), re.M))
    python = {name: str(value) for name, value in vars(cuda_results).items() if name.startswith("CUDA_")}
    assert python == c and python["CUDA_ERROR_NOT_SUPPORTED"] == "801"


def check_committed(option: str, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(API / "generate.py"), option, str(file), "--check"], capture_output=True, text=True, check=False)


COMMITTED = [("--coverage", ROOT / "docs" / "COVERAGE.md"), ("--results", ROOT / "gpuvirt" / "soft" / "cuda_results.py")]


@pytest.mark.parametrize(("option", "file"), COMMITTED)
def test_committed_files_are_not_stale(option: str, file: Path) -> None:
    done = check_committed(option, file)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("option", "file", "old", "new"), [(*COMMITTED[0], "| sync |", "| async |"), (*COMMITTED[1], "= 719", "= 718")])
def test_stale_files_are_noticed(tmp_path: Path, option: str, file: Path, old: str, new: str) -> None:
    stale = tmp_path / file.name
    assert old in file.read_text()
    stale.write_text(file.read_text().replace(old, new, 1))
    done = check_committed(option, stale)
    assert done.returncode == 1
    assert f"make {option[2:]}" in done.stderr


CASES = [
    ('CASE(one, "cuMemAlloc",\n     "cuMemFree") {', {"cuMemAlloc": ["memory/one"], "cuMemFree": ["memory/one"]}),
    ('COLD_HINT_CASE(one, "cuInit") {', {"cuInit": ["memory/one †"]}),
    ('CASE(one, "cuMemAllok") {', "memory/one: cuMemAllok is no function of the driver API"),
    ('CASE(one, "cuMulticastCreate") {', "memory/one: cuMulticastCreate is not supported"),
    ('CASE(one, "cuInit") {\nCASE(one, "cuInit") {', "memory/one: there are two of it"),
    ('\nCASE(one, CU_INIT) {', 'memory.cpp:2: not of the form CASE(name, "cuFunction", ...)'),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_what_conformance_programs_observe(tmp_path: Path, api: headers.Api, text: str, expected: str | dict[str, list[str]]) -> None:
    (tmp_path / "memory.cpp").write_text(text)
    functions = function_spec.load(API / "functions", api)
    if isinstance(expected, dict):
        assert conformance_cases.observers(tmp_path, functions) == expected
    else:
        with pytest.raises(function_spec.SpecError, match=re.escape(expected)):
            conformance_cases.observers(tmp_path, functions)


def test_outputs_named_for_cmake_are_those_written(generated: Path) -> None:
    named = {word for line in (API / "outputs.cmake").read_text().splitlines() for word in line.strip("set()").split() if "." in word}
    assert named == {path.name for path in generated.iterdir()}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[command.a]\nnumber = 1\nclass = "async"\nfields = {x = "u16"}\n[event]\n', "no such field type"),
        ('[command.a]\nnumber = 1\nclass = "async"\nfields = {x = "bytes[2]"}\n[event]\n', "no such field type"),
        ('[command.a]\nnumber = 1\nclass = "sync"\nfields = {}\n[event]\n', "needs a why"),
        ('[command.a]\nnumber = 1\nclass = "async"\nfields = {}\nsaved = "no: never"\n[event.b]\nnumber = 1\nfields = {}\n', "must be unique"),
        ('[command.a]\nnumber = 1\nclass = "async"\nfields = {}\nreply = {x = "u32"}\n[event]\n', "neither a why nor a reply"),
    ],
)
def test_command_table_mistakes(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "commands.toml"
    path.write_text(text)
    with pytest.raises(command_spec.SpecError, match=says):
        command_spec.load(path)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("", "says what a session's image keeps"),
        ('saved = "later"', "says what a session's image keeps"),
        ('saved = "no: x"\nfind = { y = "event" }', "no such field"),
        ('saved = "no: x"\nfind = { x = "texture" }', "no such kind of object"),
        ('saved = "no: x"\nkernel = true', "no such field"),
        ('saved = "no: x"\ndestroy = { x = "texture" }', "no such kind of object"),
        ('saved = "no: x"\ndestroy = { x = "paint" }\ncall = "paint_end(x)"', "all that its command does"),
        ('saved = "no: x"\nmake = { x = "paint" }', "what `make` names is what the call makes"),
        ('saved = "no: x"\nmake = { x = "paint" }\ncall = "event_create(x, x, new x)"', "a paint is made in a context"),
        ('saved = "no: x"\ncontext = true\nmake = { x = "paint" }\ncall = "event_create(context, x, new x)"', "the call can fail"),
        ('saved = "no: x"\n[object.x]\ncontext = true', "an object has a `destroy`"),
        ('saved = "no: x"\n[object.x]\ndestroy = "close"\nsize = "x"', "unknown key"),
        ('saved = "no: x"\nstream = "perhaps"', "no such way"),
        ('saved = "no: x"\ncall = "close(context)"', "names what is not there: context"),
        ('saved = "no: x"\ncall = "close(out x)"', "names what is not there: out x"),
        ('saved = "no: x"\ncall = "close"', "no call"),
        ('saved = "no: x"\nfails = "x"\ncall = "teleport(x)"', "no such function of a backend: teleport"),
        ('saved = "no: x"\nfails = "x"\ncall = "fill(x)"', "fill takes 7 arguments"),
        ('saved = "no: x"\ncall = "physical_destroy(x)"', "the call can fail"),
    ],
)
def test_mistakes_about_the_worker(tmp_path: Path, row: str, says: str) -> None:
    path = tmp_path / "commands.toml"
    paint = '[object.paint]\ndestroy = "event_destroy"\ncontext = true\n'
    path.write_text(f'{paint}[command.a]\nnumber = 1\nclass = "async"\nfields = {{ x = "u64" }}\n{row}\n[event]\n')
    with pytest.raises(command_spec.SpecError, match=says):
        emit_dispatch.source(command_spec.load(path), backend_spec.load(API / "backend.toml"))


NEW_OBJECT = """
[object.brush]
destroy = "brush_destroy"
context = true
bytes = "width"
[command.brush_create]
number = 9001
class = "async"
fields = { brush = "u64", width = "u64", bristles = "u32" }
context = true
make = { brush = "brush" }
call = "brush_create(context, width, bristles, new brush)"
fails = "the brush could not be made"
saved = "todo: width and bristles"
[command.brush_destroy]
number = 9002
class = "async"
fields = { brush = "u64" }
destroy = { brush = "brush" }
saved = "no: it leaves the image"
[command.brush_dip]
number = 9003
class = "async"
fields = { brush = "u64", stream = "u64" }
stream = "must"
find = { brush = "brush" }
call = "brush_dip(brush, stream)"
fails = "the brush could not be dipped"
saved = "no: an image is taken at rest"
"""
NEW_FUNCTIONS = """
[brush_create]
is = "int (struct gv_context *c, uint64_t width, uint32_t bristles, struct gv_brush **out)"
optional = true
[brush_destroy]
is = "int (struct gv_brush *b)"
optional = true
[brush_dip]
is = "int (struct gv_brush *b, struct gv_stream *s)"
optional = true
"""


@pytest.mark.slow
def test_a_new_object_needs_no_code_in_the_worker(tmp_path: Path, headers_at: list[Path]) -> None:
    """Rows in two tables and the backend's type: the worker makes it, finds it, ends it with its context, and compiles as it is."""
    tables = shutil.copytree(API, tmp_path / "native" / "api")
    for name, more in (("commands.toml", NEW_OBJECT), ("backend.toml", NEW_FUNCTIONS)):
        with (tables / name).open("a") as file:
            file.write(more)
    *folders, nvml = headers_at
    line = [sys.executable, str(tables / "generate.py"), "--nvml", str(nvml), *(word for f in folders for word in ("--headers", str(f)))]
    subprocess.run([*line, "--out", str(tmp_path / "out")], check=True)
    kept = (tmp_path / "out" / "gv_objects.c").read_text()
    end = kept.split("void gv_objects_end_context(")[1].split("\n}\n")[0]
    assert "worker_destroy_brush(w, w->objects.brushs.ids[i])" in end and "atomic_fetch_sub(&w->memory_used, o->bytes)" in kept
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-include", str(tmp_path / "brush.h")]
    (tmp_path / "brush.h").write_text("struct gv_brush;\n")
    include = [f"-I{folder}" for folder in (tmp_path / "out", *(ROOT / "native" / part for part in ("wire", "worker", "")))]
    for source in (tmp_path / "out" / "gv_dispatch.c", tmp_path / "out" / "gv_objects.c", *(ROOT / "native" / "worker").glob("*.c")):
        done = subprocess.run(["cc", *flags, *include, str(source)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_commands_that_take_long_and_those_that_matter(generated: Path) -> None:
    """What the worker asks about a command comes out of the table."""
    source = (generated / "gv_dispatch.c").read_text()
    commands = tomllib.loads((API / "commands.toml").read_text())["command"]
    for function, key in (("gv_may_wait", "may_wait"), ("gv_is_work", "work")):
        body = source.split(f"bool {function}(")[1].split("}")[0]
        named = {name.lower() for name in re.findall(r"case GV_OP_(\w+):", body)}
        assert named == {name for name, row in commands.items() if row.get(key)} and len(named) > 5


def test_functions_of_a_backend(tmp_path: Path) -> None:
    path = tmp_path / "backend.toml"
    gate = '[gate]\nis = "int (struct gv_stream *s, void (*fn)(void *arg, int n), void *arg)"\noptional = true\n'
    path.write_text(gate + '[name]\nis = "const char *(void)"\n')
    found = backend_spec.load(path)
    assert found["gate"].arguments == ("struct gv_stream *s", "void (*fn)(void *arg, int n)", "void *arg") and found["name"].result == "const char *"
    text = emit_backend.header(found.values())
    assert "int (*gate)(struct gv_stream *s, void (*fn)(void *arg, int n), void *arg);" in text and "May be NULL." in text
    assert "const char *(*name)(void);" in text and ".name = prefix##_name," in text
    path.write_text('[gate]\nis = "int"\n')
    with pytest.raises(backend_spec.BackendSpecError, match="no function's type"):
        backend_spec.load(path)
