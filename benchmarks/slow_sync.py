"""A disk whose every sync takes longer, as many disks' do.

A sync takes 0.1 ms on a disk that acknowledges early, and 1 to 10 ms on a laptop or a
network volume. The benchmarks' ratios depend on it, so they can be run as if on such a
disk: a library that is loaded before the C library's own delays `fsync` and
`fdatasync`, for this process and the database servers it starts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_VARIABLE = "DPFLOW_BENCH_SYNC_NANOSECONDS"
_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static int later(const char *name, int file) {
    const char *told = getenv("%(variable)s");
    long long wait = told ? atoll(told) : 0;
    struct timespec span = {wait / 1000000000, wait %% 1000000000};
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    nanosleep(&span, NULL);
    return real(file);
}

int fsync(int file) { return later("fsync", file); }
int fdatasync(int file) { return later("fdatasync", file); }
"""


def run_again_with_slow_syncs(module: str, milliseconds: float) -> None:
    """Start this program again with slower syncs, and end with its exit status.

    Returns only in the program that has been started so.

    Args:
        module: What `python -m` runs; it gets this program's arguments.
        milliseconds: How much longer each sync takes; not negative.
    """
    if _VARIABLE in os.environ:
        return
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("--sync-ms needs a C compiler named `cc`; install one, say gcc")
    with tempfile.TemporaryDirectory() as folder:
        # A database server may run as another user.
        Path(folder).chmod(0o755)
        source, library = Path(folder, "slow.c"), Path(folder, "slow.so")
        source.write_text(_SOURCE % {"variable": _VARIABLE})
        build = [
            compiler,
            "-O2",
            "-shared",
            "-fPIC",
            "-o",
            *map(str, (library, source)),
            "-ldl",
        ]
        subprocess.run(build, check=True)  # noqa: S603 (our own words)
        slow = {"LD_PRELOAD": str(library), _VARIABLE: str(round(milliseconds * 1e6))}
        again = [sys.executable, "-m", module, *sys.argv[1:]]
        sys.exit(subprocess.call(again, env={**os.environ, **slow}))  # noqa: S603
