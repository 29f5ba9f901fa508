"""native/transport/verbs/verbs_abi.h says of libibverbs' ABI what rdma-core's own header says: sizes, offsets, values, prototypes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import c_build
import pytest
from softverbs import debian

OURS = c_build.NATIVE / "transport/verbs/verbs_abi.h"


@pytest.fixture(scope="module", autouse=True)
def theirs() -> None:
    """Those of the machine, or of Debian's package."""
    if not Path("/usr/include/infiniband/verbs.h").exists():
        FLAGS.extend(("-isystem", str(debian.unpacked() / "usr/include")))


FLAGS: list[str] = []  # with which their headers are found


def text() -> str:
    return re.sub(r"/\*.*?\*/", " ", OURS.read_text(), flags=re.DOTALL)


def enumerators(code: str) -> list[str]:
    bodies = re.findall(r"\benum(?:\s+\w+)?\s*\{([^}]*)\}", code)
    return [name for body in bodies for name in re.findall(r"\b(IBV_\w+)\s*(?:=[^,]*)?(?:,|$)", body.strip())]


def fields(body: str, prefix: str = "") -> list[str]:
    """The names of a structure's fields, those of named inner structures with a dot, down to the leaves. `_unused` ones are none of theirs."""
    found: list[str] = []
    while body := body.strip():
        if inner := re.match(r"(?:struct|union)\s*\{", body):
            end, depth = inner.end(), 1
            while depth:
                depth += {"{": 1, "}": -1}.get(body[end], 0)
                end += 1
            name, rest = body[end:].split(";", 1)
            names = fields(body[inner.end() : end - 1], f"{prefix}{name.strip()}." if name.strip() else prefix)
            found += names
            if name.strip():
                found.append(prefix + name.strip())
        else:
            declaration, rest = body.split(";", 1)
            match = re.search(r"\(\*(\w+)\)|(\w+)(?:\[\w+\])?$", declaration.strip())
            assert match, declaration
            name = match[1] or match[2]
            if not name.startswith("_unused"):
                found.append(prefix + name)
        body = rest
    return found


def structures(code: str) -> dict[str, list[str]]:
    return {f"{kind} {name}": fields(body) for kind, name, body in re.findall(r"^(struct|union) (\w+) \{\n(.*?)^\};", code, re.DOTALL | re.MULTILINE)}


def facts(folder: Path, name: str, include: str, questions: dict[str, str]) -> dict[str, int]:
    lines = "\n".join(f'    printf("%s\\t%lld\\n", "{what}", (long long)({expression}));' for what, expression in questions.items())
    source = folder / f"{name}.c"
    source.write_text(f"#include <stddef.h>\n#include <stdio.h>\n#include {include}\nint main(void) {{\n{lines}\n}}\n")
    program = c_build.program(folder / name, [source], flags=FLAGS)
    printed = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60).stdout
    return {what: int(value) for what, value in (line.split("\t") for line in printed.splitlines())}


def differences(folder: Path) -> dict[str, tuple[int, int]]:
    code = text()
    asked = {name: name for name in enumerators(code)}
    found = structures(code)
    for structure, names in found.items():
        asked[f"sizeof {structure}"] = f"sizeof({structure})"
        for field in names:
            asked[f"{structure}.{field}"] = f"offsetof({structure}, {field})"
            asked[f"sizeof {structure}.{field}"] = f"sizeof((({structure} *)0)->{field})"
    assert list(found) == [f"{kind} {name}" for kind, name in re.findall(r"^(struct|union) (\w+) \{", code, re.MULTILINE)], "one that was not seen"
    assert len(asked) > 600
    ours, theirs = facts(folder, "ours", f'"{OURS}"', asked), facts(folder, "theirs", "<infiniband/verbs.h>", asked)
    return {what: (value, theirs[what]) for what, value in ours.items() if theirs[what] != value}


def test_sizes_offsets_and_values(tmp_path: Path) -> None:
    assert differences(tmp_path) == {}


def test_prototypes(tmp_path: Path) -> None:
    """A prototype that is not theirs is a conflict: the compiler refuses it."""
    code = text()
    prototypes = re.findall(r"^(?!static|typedef)(?:\w[\w ]*[ *]+)_?ibv_\w+\([^;{]*\);", code[code.index("ibv_fork_init") - 8 :], re.MULTILINE)
    assert len(prototypes) > 30
    # Their names for two of the types: a shorter structure of ports, and a big-endian number, another integer of 64 bits to the compiler.
    renamed = {"struct ibv_port_attr": "struct _compat_ibv_port_attr", "uint64_t ibv_get_device_guid": "__be64 ibv_get_device_guid"}
    theirs = "\n".join(prototypes)
    for our_name, their_name in renamed.items():
        theirs = theirs.replace(our_name, their_name)
    undefined = "\n".join(f"#undef {name}" for name in ("ibv_query_port", "ibv_reg_mr"))
    source = tmp_path / "prototypes.c"
    source.write_text(f"#include <infiniband/verbs.h>\n{undefined}\n" + theirs + "\nint main(void) { return 0; }\n")
    c_build.program(tmp_path / "prototypes", [source], flags=FLAGS)


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("IBV_WC_RNR_RETRY_EXC_ERR,\n", "\n", "IBV_WC_LOC_RDD_VIOL_ERR"),
        ("    uint16_t pkey_index;\n    uint16_t slid;\n", "    uint16_t slid;\n    uint16_t pkey_index;\n", "struct ibv_wc.slid"),
        ("void *_unused_2[7]", "void *_unused_2[6]", "struct ibv_context_ops.post_send"),
    ],
)
def test_a_wrong_header_is_noticed(right: str, wrong: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "verbs_abi.h"
    assert right in OURS.read_text()
    changed.write_text(OURS.read_text().replace(right, wrong))
    monkeypatch.setitem(globals(), "OURS", changed)
    assert named in differences(tmp_path)
