"""Calls that block."""

import concurrent.futures

from ._arrays import CentroidError


class Blocking:
    """Run blocking calls on a thread of their own, so that Ctrl-C works meanwhile."""

    def __init__(self):
        self.pool = concurrent.futures.ThreadPoolExecutor(1, "centroid")

    def call(self, stop, function, *arguments):
        waiting = self.pool.submit(function, *arguments)
        try:
            return waiting.result()
        except CentroidError:
            raise
        except BaseException:  # Ctrl-C, or an exception of a signal handler
            stop()
            concurrent.futures.wait([waiting], 30)
            raise
