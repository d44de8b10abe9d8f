"""What the library and the program do when, in a file for Perfetto, chrome://tracing and `centroidctl trace --from` (docs/clients.md).

    centroid.trace.open("trace.json")
    with centroid.trace.span("compute"):
        loss = train(batch)
    centroid.trace.mark("diverged", f"loss {loss}")
"""

import contextlib
import ctypes
import os

import centroid

__all__ = ["close", "lane", "mark", "open", "span"]


def _call(function, *arguments):
    if centroid._library is None:
        centroid.load()
    centroid._call(f"trace_{function}", *arguments)


def open(path, process=None, limit_bytes=0):
    """From now on to this file, twice a second, until `close` or the end of the process; one a process. `process` is its name in the picture, spans beyond
    `limit_bytes` (0: 256 MiB) are left out."""
    _call("open", os.fsencode(path), centroid._bytes(process), ctypes.c_uint64(limit_bytes))


def close():
    """Write what is left."""
    _call("close")


@contextlib.contextmanager
def span(name):
    """A span of this thread, within those it is in; also as a decorator. Of 1 to 64 bytes, 255 names are told apart. A lane in which one is called "compute" counts
    as a device, whose gaps are told."""
    _call("begin", name.encode())
    try:
        yield
    finally:
        _call("end")


def mark(name, text=""):
    """Something happens now; 200 bytes of the text are kept."""
    _call("mark", name.encode(), text.encode())


def lane(name):
    """The row of the picture for this thread's spans from now on; else "program", "program 2", ... in the order of threads."""
    _call("lane", name.encode())
