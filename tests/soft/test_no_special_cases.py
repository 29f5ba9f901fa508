"""Nothing is recognised by a kernel's name, a hash or a library: not in the sources, and renaming everything in a module changes nothing in its code."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest
from soft import cuda_programs

from gpuvirt.demo.programs import find_nvcc
from gpuvirt.soft import pipeline
from gpuvirt.soft.ptx.module import Module

ROOT = Path(__file__).parents[2]
SOURCES = sorted(p for folder in ("gpuvirt/soft", "native/backend/soft", "native/worker") for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".c", ".h"))

LIBRARIES = "cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|cutlass|cccl|thrust|magma|cupy|numba|triton|jax|xla|torch|tensorflow|mlir|pallas"
ROUTINES = "[sdchz]?gemm|[sdcz]gemv|saxpy|[sd]trsm|convolve|wgrad|dgrad|winograd|softmax|layer_?norm|batch_?norm|radix_?sort|transpose_?kernel|vector_?add"
ARCHITECTURES = r"\b(ampere|volta|turing|hopper|maxwell|pascal|blackwell|sm\d\d+)_[a-z0-9]"
FORBIDDEN = re.compile(rf"(?i){LIBRARIES}|(\b|_)({ROUTINES})|{ARCHITECTURES}|\b_z[nk]?\d+\w|\b[0-9a-f]{{32,}}\b")


def code_of_python(text: str) -> list[str]:
    """Names and strings of a Python source; comments and docstrings say what they like."""
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False) is not None:
            docstrings.add((node.body[0].lineno, node.body[0].col_offset))
    wanted = {tokenize.NAME, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    return [t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type in wanted and t.start not in docstrings]


def code_of_c(text: str) -> list[str]:
    """A C source without its comments."""
    return re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', lambda m: m[1] or " ", text, flags=re.S).split("\n")


def names_in(path: Path, text: str) -> list[str]:
    """What in a source looks like the name of a library, of one of its kernels, or like a digest."""
    parts = code_of_python(text) if path.suffix == ".py" else code_of_c(text)
    return [f"{path.name}: {found[0]} in {part.strip()[:100]}" for part in parts if (found := FORBIDDEN.search(part))]


def test_no_library_and_no_kernel_in_the_sources() -> None:
    assert len(SOURCES) > 60
    assert [name for path in SOURCES for name in names_in(path, path.read_text())] == []


@pytest.mark.parametrize(
    "planted",
    [
        'if func.name.startswith("ampere_sgemm"): quick = True',
        'TABLE = {"_ZN3cub11EmptyKernelIvEEvv": 1}',
        'if "cutlass" in name: return',
        f'KNOWN = ("{"0123456789abcdef" * 4}",)',
        'fast = kernel in ("vectorAdd", "saxpy")',
        "def cublas_gemm(e): pass",
    ],
)
def test_the_search_finds_what_is_planted(planted: str) -> None:
    """The deliberate fault, in Python and as C would have it; the same words in a comment or a docstring are allowed."""
    python, c = Path("planted.py"), Path("planted.c")
    assert names_in(python, planted)
    assert names_in(c, f'static int known(const char *name) {{ return !strcmp(name, "{re.sub(chr(34), "", planted)}"); }}')
    quiet = planted.replace('"', "'")
    assert not names_in(python, f'def f() -> None:\n    """{quiet}"""\n    return  # {quiet}\n')
    assert not names_in(c, f"/* {quiet} */\nint f(void); // {quiet}\n")


IDENTIFIER = r"[A-Za-z_$][\w$]*"
WORD = rf"(?<![\w$%.]){IDENTIFIER}"
DECLARED = re.compile(rf"\.(?:entry|func)\b[^;{{]*?\s({IDENTIFIER})\s*\(|\.(?:global|shared|const)\b[^;={{]*?({IDENTIFIER})(?:\[\w*\])?\s*[;=]")
SHAPES = ((128, 1, 1), (16, 16, 1))


def renamed(text: str, give: str) -> tuple[str, dict[str, str]]:
    """PTX whose functions and variables have other names, and these by the old ones."""
    found = {name for groups in DECLARED.findall(text) for name in groups if name and name not in ("vprintf", "malloc", "free", "__assertfail")}
    new = {name: give.format(i) for i, name in enumerate(sorted(found))}
    # Parameters are named after their function: foo_param_0.
    return re.sub(WORD, lambda m: new.get(m[0]) or re.sub(r"^(.*)(_param_\d+)$", lambda p: new.get(p[1], p[1]) + p[2], m[0]), text), new


def in_order(text: str) -> list[str]:
    """The pieces of an IR module, sorted: functions stand in it in the order of their names."""
    return sorted(re.split(r"\n(?=define|declare|@|attributes)", text))


@pytest.mark.slow
@pytest.mark.parametrize("program", ["matmul_shared", "function_pointers"])
def test_renaming_everything_changes_no_code(tmp_path: Path, program: str) -> None:
    made = tmp_path / "text.ptx"
    options = [o for o in cuda_programs.OPTIONS if o not in ("-cudart", "static")]
    line = [str(find_nvcc()), *options, "-ptx", str(cuda_programs.sources()[program]), "-o", str(made)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = made.read_text()
    module = Module(text)
    for give in ("k{:03}", "ampere_sgemm_64x64_nn_{:03}"):
        other_text, new = renamed(text, give)
        other = Module(other_text)
        assert len(module.kernels) >= 3 and all(k.name in new for k in module.kernels)
        for shape in SHAPES:
            for entry in module.kernels:
                before, about, count = pipeline.translate(module, entry.name, shape)
                after, same, as_many = pipeline.translate(other, new[entry.name], shape)
                back = {fresh: old for old, fresh in new.items()}
                after = re.sub(IDENTIFIER, lambda m, back=back: back.get(m[0], m[0]), after)
                assert (in_order(after), as_many) == (in_order(before), count), entry.name
                about.globals, same.globals = [new.get(g, g) for g in about.globals], list(same.globals)
                assert about == same
