"""What tests of centroidctl have in common."""

import email.utils
import http.client
import http.server
import os
import pathlib
import subprocess
import threading
import time

from harness.cluster import DEADLINE_SECONDS, DONE, UNHURRIED, ClusterTest, wait_for

ANSWERED_BADLY, USAGE, UNREACHABLE = 1, 2, 3
STOPPED = 143


def held(test, point, act, *arguments, status=DONE):
    """What `checkpoints ...` prints, which is held up at a point (common/checkpoint/fault_point.h) while `act` is done."""
    hold, reached = test.folder / "hold", test.folder / "reached"
    hold.write_text("")
    reached.write_text("")
    environment = {**os.environ, "CENTROID_TEST_HOLD": f"{point}:{hold}", "CENTROID_TEST_FAULT_LOG": str(reached)}
    command = [pathlib.Path(test.programs) / "centroidctl", "checkpoints", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as process:
        try:
            wait_for(lambda: point in reached.read_text(), f"centroidctl at {point}")
            act()
            hold.unlink()
            said, _ = process.communicate(timeout=DEADLINE_SECONDS)
        finally:
            hold.unlink(missing_ok=True)
            process.kill()
    test.assertEqual(process.returncode, status, said)
    return said


class Altered:
    """A way to a server's REST that alters answers: `date` seconds are added to its clock, `words` replaced in bodies of paths that begin with `path`, or are it. `before` is called with the path of each request."""

    def __init__(self, server):
        self.date, self.words, self.path, self.is_complete = 0, {}, "/", False
        self.before = lambda path: None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self):
                outer.before(self.path)
                connection = http.client.HTTPConnection(server.api, timeout=DEADLINE_SECONDS)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                connection.request(self.command, self.path, body, {name: text for name, text in self.headers.items() if name != "Host"})
                answer = connection.getresponse()
                body = answer.read()
                is_meant = self.path == outer.path if outer.is_complete else self.path.startswith(outer.path)
                for old, new in outer.words.items() if is_meant else ():
                    body = body.replace(old.encode(), new.encode())
                self.send_response_only(answer.status)
                self.send_header("Date", email.utils.formatdate(time.time() + outer.date, usegmt=True))
                for name in ("Content-Type", "Content-Range", "ETag"):
                    if answer.getheader(name) is not None:
                        self.send_header(name, answer.getheader(name))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                connection.close()

            do_GET = do_POST = do

            def log_message(self, *_):
                pass

        self.listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.api = f"127.0.0.1:{self.listener.server_port}"
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()

    def close(self):
        self.listener.shutdown()
        self.listener.server_close()


class CtlTest(ClusterTest):
    def ctl(self, server, *arguments, status=DONE):
        """What it prints; fails unless it exits with this status."""
        address = [] if server is None else ["--server", server if isinstance(server, str) else server.api]
        done = subprocess.run(
            [pathlib.Path(self.programs) / "centroidctl", *address, *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout if status == DONE else done.stdout + done.stderr

    def training(self, *arguments):
        server = self.server("--epochs", "1000000", "--min-workers", "2", *arguments)
        workers = [self.worker(server, name, "--stop-status", STOPPED, *UNHURRIED) for name in ("w0", "w1")]
        server.wait_round(3)
        return server, workers
