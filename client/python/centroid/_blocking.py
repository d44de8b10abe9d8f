"""Calls that block."""

import contextlib
import queue
import threading


class Blocking:
    """Run blocking calls on a thread of their own, so that Ctrl-C works meanwhile."""

    def __init__(self):
        self._calls, self._results = queue.SimpleQueue(), queue.SimpleQueue()
        threading.Thread(target=_run, args=(self._calls,), name="centroid", daemon=True).start()

    def call(self, stop, function, *arguments):
        self._calls.put((function, arguments, self._results))
        try:
            result, error = self._results.get()
        except BaseException:  # Ctrl-C, or an exception of a signal handler
            stop()
            with contextlib.suppress(queue.Empty):
                self._results.get(timeout=30)
            self._results = queue.SimpleQueue()  # a late result is not that of the next call
            raise
        if error is not None:
            raise error
        return result

    def close(self):
        self._calls.put(None)


def _run(calls):
    while call := calls.get():
        function, arguments, results = call
        try:
            results.put((function(*arguments), None))
        except BaseException as error:
            results.put((None, error))
        del call, function, arguments, results  # what they refer to may end meanwhile
