"""Where a cluster is, or that there is none."""

import json
import os
import pathlib

from ._abi import _Server
from ._arrays import CentroidError, _bad


def _bytes(text):
    return None if text is None else os.fsencode(text)


def local(**settings):
    """Return a `server` for `Trainer` to train alone, in this process, with the bits of a cluster of one worker.

        with centroid.Trainer(centroid.local(optimizer="adamw", lr=0.001, epochs=20), model, samples=len(data)) as trainer:

    Settings are the server's: epochs, rounds, optimizer, lr, lr_schedule, clip_norm, momentum, beta1, beta2, epsilon, weight_decay, l1,
    ftrl_beta, seed, nonfinite, local_steps, fragments, overlap, outer; and checkpoint_dir, a folder for the final state.
    """
    return f"local:{json.dumps(settings)}"


def _server(server, token, name, timeout, tls):
    if server is None:
        given = os.environ.get
        if not given("CENTROID_SERVER"):
            raise _bad("server is None and CENTROID_SERVER is not set: give HOST:PORT, start the program with `centroid run`, or give centroid.local(epochs=...)")
        server = given("CENTROID_SERVER")
        if token is None and given("CENTROID_TOKEN_FILE"):
            token = pathlib.Path(given("CENTROID_TOKEN_FILE")).read_text().strip()
        if tls is None and given("CENTROID_TLS_AUTHORITY"):
            tls = {"authority": given("CENTROID_TLS_AUTHORITY")}
    if timeout is not None and not 0 < timeout <= 10**8:
        raise _bad(f"timeout {timeout} is not from 0 to 10^8 seconds")
    return _Server(
        servers=_bytes(server),
        token=_bytes(token),
        name=_bytes(name),
        timeout_ms=max(int(1000 * timeout), 1) if timeout else 0,
        **_tls_fields(tls, "authority, certificate, key and server_name"),
    )


def _tls_fields(tls, known):
    if tls is not None and "authority" not in tls:
        raise _bad("tls has no authority: whose certificates count?")
    unknown = set(tls or {}) - set(known.replace(" and", ",").split(", "))
    if unknown:
        raise CentroidError("invalid_argument", f"tls has {known}, not {', '.join(sorted(unknown))}")
    return {f"tls_{key}": _bytes(value) for key, value in (tls or {}).items()}
