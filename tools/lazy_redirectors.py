"""Has what packages of the tests do at the start of every Python done when somebody imports them: for the Python that runs this.

numba-cuda and cuda-bindings come with .pth files, which cost each of the tests' thousands of Python processes 20 ms of processor time. The first one
puts itself in the place of `numba.cuda`; the second one gives `cuda.__version__` a warning.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

# One line, which `site` executes. The finder is asked of each import, and takes its own place with the package's when numba is first imported.
NUMBA = """\
import sys; sys.meta_path.insert(0, type("Redirector", (), {"find_spec": classmethod(lambda c, name, path=None, target=None: \
(sys.meta_path.remove(c), __import__("_numba_cuda_redirector"), None)[2] if name == "numba" else None)}))
"""


def main(folder: Path) -> None:
    if (file := folder / "_numba_cuda_redirector.pth").exists():
        file.write_text(NUMBA)
    (folder / "_cuda_bindings_redirector.pth").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sysconfig.get_path("purelib")))
