"""Calls that block."""

import ctypes
import threading

import centroid

from ._arrays import CentroidError

_NOTHING = ctypes.CFUNCTYPE(None)()


class Blocking:
    """Calls that wait for others. Every 50 ms they let Python handle signals, so that Ctrl-C ends them."""

    def __init__(self):
        self._stop, self._raised, self._thread, self._lock = None, [], None, threading.Lock()
        looks = self._looks()
        next(looks)  # what a signal handler raises then comes out of `yield`
        self._look = ctypes.CFUNCTYPE(None)(looks.__next__)

    def _looks(self):
        while True:
            try:
                yield
            except GeneratorExit:
                return
            except BaseException as error:  # nothing may leave a function that C calls
                self._raised.append(error)
                self._stop()

    def is_free(self):
        """Wait until no other thread is in a call. False: this one is."""
        if self._thread == threading.get_ident():
            return False
        with self._lock:
            return True

    def call(self, stop, function, *arguments):
        if self._thread == threading.get_ident():
            raise CentroidError("failed_precondition", "a signal handler called a Trainer that waits: there it may only call stop() or close()")
        with self._lock:
            self._thread = threading.get_ident()
            try:
                if threading.current_thread() is not threading.main_thread():  # which alone handles signals
                    return function(*arguments)
                return self._call(stop, function, arguments)
            finally:
                self._thread = None

    def _call(self, stop, function, arguments):
        self._stop = stop
        try:
            centroid._library.centroid_while_waiting(self._look)
            return function(*arguments)
        except CentroidError:
            raise
        except BaseException:  # of a signal handler, around the call
            stop()
            raise
        finally:
            centroid._library.centroid_while_waiting(_NOTHING)
            self._stop = None
            if self._raised:
                raise self._raised.pop()
