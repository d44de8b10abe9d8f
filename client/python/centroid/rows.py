"""Tables of sparse rows, for any program."""

import ctypes

import centroid

from ._abi import _memory, _u64
from ._arrays import CentroidError, _bad, _number, _read, _shape, _write
from ._servers import _bytes, _server


class Rows:
    """One embedding table (docs/how-to/embedding-tables.md). One call at a time; it reconnects by itself and follows the leader.

    table    name of the table
    timeout  seconds that a call may take; default: 30

    `dim` is the number of floats of a row. Keys are an array of 64-bit integers or any iterable of int. `server`, `token` and `tls`
    are as for `Trainer`.
    """

    def __init__(self, server, table, *, token=None, name=None, timeout=None, tls=None):
        self._handle = None
        centroid._library or centroid.load()
        handle = _memory()
        centroid._call("rows_open", ctypes.byref(_server(server, token, name, timeout, tls)), _bytes(table), ctypes.byref(handle))
        self._handle = handle
        self.dim = centroid._library.centroid_rows_dim(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def pull(self, keys, out=None):
        """Return the rows of the keys: a memoryview of float32 of the shape [keys, dim], or the array `out` of that shape."""
        address, count, keep = self._keys(keys)
        if out is not None and _shape(out, "out") != (count, self.dim):
            raise _bad(f"out has shape {list(_shape(out, 'out'))}, not {[count, self.dim]}")
        values = (ctypes.c_float * (count * self.dim))()
        centroid._call("rows_pull", self._open(), address, count, values)
        del keep
        if out is not None:
            _write(out, "out", ctypes.addressof(values), (count, self.dim), {})
            return out
        flat = memoryview(values).cast("B")
        return flat.cast("f", [count, self.dim]) if count else flat.cast("f")

    def push(self, keys, gradients, step=None):
        """Send gradients of the shape [keys, dim]; the server updates the rows, at most once whatever happens to the connection.

        After an error a part may have been applied. The error says so, `rest` counts the other keys, and `push_rest` repeats those.

        step  number of the training step, from 1; a table with a learning-rate schedule needs it
        """
        at = [] if step is None else [_number(step, "step", 1, 2**64 - 1)]
        address, count, keep = self._keys(keys)
        values, keep_values = _read(gradients, "gradients", (count, self.dim))
        centroid._call("rows_push_at" if at else "rows_push", self._open(), address, count, values, *at)
        del keep, keep_values

    def push_rest(self):
        """Repeat the part of the last push that was not applied. Each key is applied once, however often you call this."""
        centroid._call("rows_push_rest", self._open())

    # keys of the last push that were not applied, or may not have been; a copy is kept until the next push
    rest = property(lambda self: centroid._library.centroid_rows_rest(self._open()))
    # pushes that the server answered
    pushed = property(lambda self: centroid._library.centroid_rows_pushed(self._open()))
    # pushes of these that were lost with a server that had no journal
    lost = property(lambda self: centroid._library.centroid_rows_lost(self._open()))

    def close(self):
        """Close the connection."""
        if self._handle:
            handle, self._handle = self._handle, None
            centroid._library.centroid_rows_close(handle)

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()

    def _open(self):
        if not self._handle:
            raise CentroidError("failed_precondition", "these rows are closed")
        return self._handle

    @staticmethod
    def _keys(keys):
        try:
            view = memoryview(keys)
        except TypeError:
            view = None
        if view is not None and view.ndim == 1 and view.format in ("q", "Q", "l", "L") and view.itemsize == 8 and view.c_contiguous:
            memory = (_u64 * max(len(view), 1)).from_buffer_copy(view) if len(view) else (_u64 * 1)()
            return ctypes.addressof(memory), len(view), memory
        if view is not None and view.ndim != 1:
            raise _bad(f"keys have {view.ndim} dimensions, not one")
        if view is not None and hasattr(keys, "tolist"):
            keys = keys.tolist()
        numbers = [_number(key, "key", -(2**63), 2**64 - 1) & (2**64 - 1) for key in keys]
        memory = (_u64 * max(len(numbers), 1))(*numbers)
        return ctypes.addressof(memory), len(numbers), memory
