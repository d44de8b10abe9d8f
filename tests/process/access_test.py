"""Every cell of the two tables of access, on a running server. access_test.py BIN_DIR

REST: each route and each caller, as docs/reference/rest.md has them; rest_contract_test.py has the answers behind the door.
Port of workers: each message and each state of a session, as docs/reference/wire.md has them ("What a session may send"). That table is
made from what the server does: `access_test.py BIN_DIR --write` writes it.
"""

import contextlib
import json
import pathlib
import re
import struct
import sys
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.cluster import ClusterTest, main
from harness.wire import ERROR, GOODBYE, HELLO, REQUEST, UNLIMITED, Client, connect, header, hello, read_error, read_frame, text

OPERATOR, VIEWER, WORKERS = "the-operator", "the-viewer", "of-the-workers"
REST, WIRE = (ROOT / "docs" / "reference" / name for name in ("rest.md", "wire.md"))
CALLERS = ("none", "viewer", "worker", "admin")
MAY, MAY_NOT = "✓", "–"
BEGIN = "<!-- Made by tests/process/access_test.py --write from what the server does. -->"
END = "<!-- End of what was made. -->"
HEARTBEAT, PULL, SERVER_JOIN, ROWS_OPEN, ECHO = 26, 80, 112, 64, 96
STATES = ("begun", "greeted", "worker", "client of rows", "reader", "shard server")
# Texts of a server that does not take a message of this kind in this state, and that does not read it.
REFUSALS = re.compile(
    "unexpected message kind|the first message must be Join|a session that pulls sends nothing else"
)


class Rest(ClusterTest):
    def ask(self, method, path, token, body=None):
        """Status and body."""
        fields = {"Authorization": f"Bearer {token}"} if token else {}
        if body is not None:
            fields["Content-Type"] = "application/json"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.place}{path}", data=data, method=method, headers=fields)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=40) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def make_token(self, role):
        status, body = self.ask("POST", "/v1/tokens", OPERATOR, {"name": role, "role": role, "expires_seconds": 600})
        self.assertEqual(status, 201, body)
        return json.loads(body)["secret"]

    def test_every_route_for_every_caller(self):
        rows = re.findall(r"^(GET|POST|PATCH|DELETE) (/[^ ?|]*)[^|]*\|(?:[^|]*\|){2}(.*?)\|(.*?)\|(.*?)\|(.*?)\|", REST.read_text().replace("\\|", "/"), re.MULTILINE)
        server = self.server("--api.token", OPERATOR, "--api.viewer-token", VIEWER, "--token", WORKERS)
        self.place = server.api
        paths = json.loads(self.ask("GET", "/openapi.json", VIEWER)[1])["paths"]
        routes = {(method.upper(), path) for path, item in paths.items() for method in item}
        self.assertEqual({(method, path) for method, path, *_ in rows}, routes, "the table of docs/reference/rest.md")
        tokens = {
            "none": [None, "unknown", WORKERS],
            "viewer": [VIEWER, self.make_token("viewer")],
            "worker": [self.make_token("worker")],
            "admin": [OPERATOR, self.make_token("admin")],
        }
        for method, path, *cells in rows:
            path = path.replace("{id}", "1").replace("{name}", "x").replace("{file}", "x")
            for caller, cell in zip(CALLERS, cells):
                refusal = 401 if caller == "none" else 403
                for token in tokens[caller]:
                    with self.subTest(route=f"{method} {path}", caller=caller):
                        # Whoever may pass is stopped by the query behind the door, so that nothing changes.
                        may = cell.strip() == MAY
                        self.assertEqual(self.ask(method, f"{path}?no_such=1", token)[0], 400 if may else refusal)
                        if method == "GET":
                            self.assertEqual(self.ask("HEAD", f"{path}?no_such=1", token)[0], 400 if may else refusal)
                        elif not may:
                            self.assertEqual(self.ask(method, path, token)[0], refusal)
        self.assertEqual(json.loads(self.ask("GET", "/v1/cluster", VIEWER)[1])["state"], "waiting", "nothing has changed")


def kinds():
    """Number, name, whether it is a request, of the messages that the page lists."""
    listed = WIRE.read_text()
    for number, name, how in re.findall(r"^\| (\d+) \| (\w+) \| [^|]* \| ([^|]*) \| [^|]* \|$", listed, re.MULTILINE):
        if int(number) >= 16:
            yield int(number), name, how.startswith("request")
    tables = listed[listed.index("### Tables on several servers") :]
    for number, name in re.findall(r"^\| (\d+) \| (\w+) \|", tables, re.MULTILINE):
        if 144 <= int(number) <= 161:
            yield int(number), name, True


def bare(kind, flags, head, identity):
    return header(kind, flags, head, identity=identity if flags else 0) + head


class Messages(ClusterTest):
    """What is taken is read: its head makes no sense, and the answer says so, or asks why it comes now."""

    def setUp(self):
        self.server_ = self.server("--token", WORKERS, "--min-workers", 100, "--tables", "words:dim=4", "--lease", "60s")

    @contextlib.contextmanager
    def session(self, state):
        """A connection in this state."""
        with connect(self.server_.data) as peer:
            role = {"worker": "worker", "shard server": "server"}.get(state, "client")
            if state != "begun":
                peer.sendall(hello(token=WORKERS, name="probe", role=role, credit_bytes=UNLIMITED))
                self.assertEqual(read_frame(peer)[1] & ERROR, 0)
            if state == "worker":
                joining = Client("probe", [("w", (4,))])
                joining.peer = peer
                joining.send_join()
                self.await_answer(peer, Client.JOIN)
            elif state == "client of rows":
                peer.sendall(bare(ROWS_OPEN, REQUEST, struct.pack("<Q", 7) + text("words"), 1))
                self.await_answer(peer, ROWS_OPEN)
            elif state == "reader":
                peer.sendall(bare(PULL, REQUEST, struct.pack("<I", 0), 1))
            elif state == "shard server":
                peer.sendall(bare(SERVER_JOIN, REQUEST, text("b") + text("127.0.0.1:9") + text(""), 1))
                self.await_answer(peer, SERVER_JOIN)
            yield peer

    def await_answer(self, peer, kind):
        while True:
            got, flags, head = read_frame(peer)
            self.assertEqual(flags & ERROR, 0, head)
            if got == kind:
                return

    def said(self, peer, kind, is_request, head):
        """What the server answers to one message, and to a heartbeat behind it: "" if nothing but that."""
        answers = []
        with contextlib.suppress(ConnectionError):
            peer.sendall(bare(kind, REQUEST if is_request else 0, head, 2))
            if kind >= 16:
                peer.sendall(bare(HEARTBEAT, 0, b"", 0))
        with contextlib.suppress(ConnectionError, EOFError):
            while True:
                got, flags, answer = read_frame(peer)
                if got == GOODBYE or flags & ERROR:
                    answers.append(read_error(answer)[1])
                    if got == GOODBYE or kind < 16:
                        break
                elif got == HEARTBEAT or (got == kind and not is_request):
                    break
                elif got == kind and flags & 2:
                    answers.append("answered")
        return " / ".join(answers)

    def takes(self, state, kind, is_request):
        """Whether a message is read in this state, and what was said."""
        with self.session(state) as peer:
            said = self.said(peer, kind, is_request, b"\xff\xff\xff")
        if "but has none" in said:  # no head: any would be refused
            with self.session(state) as peer:
                said = self.said(peer, kind, is_request, b"")
        return state != "begun" and not REFUSALS.search(said), said

    def table(self):
        rows = [f"| kind | name | {' | '.join(STATES)} |", "|---|---|" + "---|" * len(STATES)]
        self.words = {}
        for kind, name, is_request in [(HELLO, "Hello", True), *sorted(set(kinds()))]:
            cells = []
            for state in STATES:
                if kind == HELLO:
                    taken, said = state == "begun", ""
                    if not taken:
                        with self.session(state) as peer:
                            said = self.said(peer, HELLO, True, b"\xff")
                else:
                    taken, said = self.takes(state, kind, is_request)
                self.words[state, kind] = said
                cells.append(MAY if taken else MAY_NOT)
            rows.append(f"| {kind} | {name} | {' | '.join(cells)} |")
        return "\n".join(rows)

    def test_every_message_in_every_state(self):
        made = self.table()
        page = WIRE.read_text()
        before, _, rest = page.partition(BEGIN)
        there, _, after = rest.partition(END)
        if WRITES:
            WIRE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}")
            print(json.dumps({f"{state} {kind}": said for (state, kind), said in self.words.items()}, indent=1))
        else:
            self.assertEqual(made.splitlines(), there.strip().splitlines(), "docs/reference/wire.md, What a session may send")
        for (state, kind), said in self.words.items():
            if state == "begun" and kind != HELLO:
                with self.subTest(state=state, kind=kind):
                    self.assertRegex(said, "^expected a Hello|^$")
        self.assertEqual(self.server_.cluster()["state"], "waiting", "the server goes on")


if __name__ == "__main__":
    WRITES = "--write" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--write"]
    main()
