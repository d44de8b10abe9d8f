"""Write a trace of the library and of your program, for Perfetto, chrome://tracing and centroidctl trace (docs/how-to/pytorch.md).

    import centroid.trace

    centroid.trace.open("trace.json")
    with centroid.trace.span("compute"):
        loss = train(batch)
    centroid.trace.mark("diverged", f"loss {loss}")

A span costs about 100 ns, also without a file.
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
    """Write to this file twice a second, until `close` or the end of the process. A process has one file.

    process      name of this process in the trace
    limit_bytes  later spans are left out; 0: 256 MiB
    """
    _call("open", os.fsencode(path), centroid._bytes(process), ctypes.c_uint64(limit_bytes))


def close():
    """Write the rest and end the trace."""
    _call("close")


@contextlib.contextmanager
def span(name):
    """Record a span of this thread: a context manager or a decorator. Spans may be nested.

    A name has 1 to 64 bytes, and 255 names are distinguished. `centroidctl trace` reports what happened between spans that are
    named compute.
    """
    _call("begin", name.encode())
    try:
        yield
    finally:
        _call("end")


def mark(name, text=""):
    """Record an event, with at most 200 bytes of text."""
    _call("mark", name.encode(), text.encode())


def lane(name):
    """Name the lane of this thread's spans in the trace. Default: "program", "program 2" and so on."""
    _call("lane", name.encode())
