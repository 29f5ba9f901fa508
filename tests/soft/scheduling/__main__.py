"""Runs the cases named on the command line: `begin NAME`, then `right NAME` or `wrong NAME why`."""

from __future__ import annotations

import faulthandler
import os
import sys

from soft.scheduling import CASES

DEADLINE = 180  # seconds a case


def main() -> None:
    for name in sys.argv[1:]:
        print(f"begin {name}", flush=True)
        faulthandler.dump_traceback_later(DEADLINE, exit=True)
        try:
            CASES[name]()
            print(f"right {name}", flush=True)
        except Exception as error:  # the next case is to run all the same
            print(f"wrong {name} {type(error).__name__}: {str(error)[:500]!r}", flush=True)
        faulthandler.cancel_dump_traceback_later()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
