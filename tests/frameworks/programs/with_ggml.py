"""Arguments: the folder of the libraries' folder ggml, and how to run ggml's own tests of its operators, which compare with the CPU."""

import os
import subprocess
import sys

OPERATORS = ("ADD", "MUL", "SOFT_MAX", "RMS_NORM", "ROPE", "GET_ROWS", "SUM_ROWS", "ARGSORT")
os.chdir(os.path.join(sys.argv[1], "ggml", "backends0"))  # where it looks for its backends
for operator in OPERATORS:
    done = subprocess.run([*sys.argv[2:], "test", "-b", "CUDA0", "-o", operator], capture_output=True, text=True, check=False)
    print(operator, [line for line in done.stdout.splitlines() if "tests passed" in line], flush=True)
    assert done.returncode == 0 and " CUDA0: " in done.stdout and "FAIL" not in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
print("right")
