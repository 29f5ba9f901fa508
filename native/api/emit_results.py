"""gv_results.h: the values of CUresult, for what is compiled without cuda.h."""

from __future__ import annotations

from headers import Api
from writing import BANNER

TOP = """\
#ifndef GV_RESULTS_H
#define GV_RESULTS_H

/* CUresult under the names of the driver API. Empty where cuda.h was included before. */
#ifndef CUDA_VERSION
enum gv_result {
"""


def header(api: Api) -> str:
    rows = [f"    {r.name} = {r.value},\n" for r in sorted(api.results, key=lambda r: r.value)]
    return "".join([BANNER, TOP, *rows, "};\n#endif\n\n#endif\n"])
