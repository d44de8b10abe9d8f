"""A stand-in for centroid-server and centroid-worker that keeps their interface to the local cluster driver and trains nothing.

fake_cluster.py server|worker FLAGS...; the environment says what goes wrong: FAKE_FAULT=worker-dies|server-dies|halted|endless|no-summary.
"""

import http.server
import json
import os
import pathlib
import signal
import socket
import sys
import threading

ROUNDS = 4
FAULT = os.environ.get("FAKE_FAULT", "")


def flag(name):
    return sys.argv[sys.argv.index(name) + 1]


class Job:
    """Every look at the cluster is one round further. Workers stay as long as their connection does."""

    def __init__(self, settings):
        self.settings, self.round = settings, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.connections, self.is_over = [], False

    def accept(self):
        while True:
            self.connections.append(self.listener.accept()[0])
            if self.is_over:
                self.leave()

    def leave(self):
        self.is_over = True
        while self.connections:
            self.connections.pop().close()

    def cluster(self):
        self.round += 0 if FAULT == "endless" and self.round == ROUNDS - 1 else 1
        is_done = self.round >= ROUNDS
        if is_done:
            self.leave()
        state = "halted" if FAULT == "halted" else "finished" if is_done else "training"
        return {
            "state": state, "state_reason": "planted", "round": self.round, "version": self.round, "test_version": self.round,
            "epoch": min(self.round, ROUNDS), "epochs": self.settings["epochs"], "progress": min(1.0, self.round / ROUNDS),
            "samples_per_second": 1000.0, "loss": 0.5, "train_accuracy": 0.9, "test_accuracy": 0.95, "test_loss": 0.25,
            "samples_total": 5748,
        }  # fmt: skip

    def answers(self):
        return {
            "/readyz": lambda: {"status": "ready"},
            "/v1/cluster": self.cluster,
            "/v1/rounds": lambda: {"rounds": [{"opened_unix_seconds": 100.0, "seconds": 1.5}]},
            "/v1/checkpoints": lambda: {"checkpoints": [{"path": "checkpoints/4"}]},
        }


def serve(job):
    class Rest(http.server.BaseHTTPRequestHandler):
        def reply(self, value):
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.reply(job.answers()[self.path.split("?")[0]]())

        def do_POST(self):
            self.reply({"action": "stop"})
            job.leave()

        def log_message(self, *_):
            pass

    return http.server.ThreadingHTTPServer(("127.0.0.1", 0), Rest)


def server():
    job = Job(json.loads(pathlib.Path(flag("--config")).read_text()))
    rest = serve(job)
    for run in (rest.serve_forever, job.accept):
        threading.Thread(target=run, daemon=True).start()
    if FAULT == "server-dies":
        print("server: planted fault")
        sys.exit(3)
    endpoints = pathlib.Path(flag("--endpoints-file"))
    draft = endpoints.with_suffix(".draft")
    draft.write_text(json.dumps({"data": f"127.0.0.1:{job.listener.getsockname()[1]}", "api": f"127.0.0.1:{rest.server_port}", "pid": os.getpid()}))
    draft.rename(endpoints)
    while True:
        signal.pause()


def worker():
    print("worker: started as", flag("--name"), flush=True)
    if FAULT == "worker-dies" and flag("--name") == "worker-1":
        print("worker: planted fault")
        sys.exit(4)
    if flag("--exchange") == "local":
        print("epoch 1 of", flag("--epochs"), "on", flag("--devices"))
    else:
        host, port = flag("--server").rsplit(":", 1)
        with socket.create_connection((host, int(port))) as connection:
            connection.recv(1)
    if FAULT != "no-summary":
        summary = {"name": flag("--name"), "rounds": 2, "samples": 10, "step_seconds": 0.25, "compute_seconds": 0.5, "wait_seconds": 0.1}
        summary |= {"bytes_in": 1, "bytes_out": 2, "test_accuracy": 0.5, "test_loss": 1.0, "seconds": 2.0}
        pathlib.Path(flag("--summary-file")).write_text(json.dumps(summary))


if __name__ == "__main__":
    {"server": server, "worker": worker}[sys.argv.pop(1)]()
