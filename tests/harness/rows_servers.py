"""Tables on several servers."""

import struct
import threading

from harness.cluster import ClusterTest, Process
from harness.rows import UNAVAILABLE, RowsClient

ROUTE = 67
BUCKETS = 4096
MASK = (1 << 64) - 1
TABLES = "count:dim=1,optimizer=sgd,lr=1;other:dim=2"
PATIENT = ("--lease", "8s")  # without a journal a server that a busy machine keeps silent for longer loses its rows


def bucket(key):
    """docs/reference/wire.md, RowsRoute."""
    x = (key + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return ((x ^ x >> 31) >> 8) % BUCKETS


class CountClient(RowsClient):
    names = ("count",)

    def route(self):
        """Names and endpoints of the servers, the leader first, and the owner of each bucket."""
        head, _ = self.ask(ROUTE, b"")
        at = 8
        (count,) = struct.unpack_from("<I", head, at)
        at += 4
        servers = []
        for _ in range(count):
            texts = []
            for _ in range(2):
                (length,) = struct.unpack_from("<I", head, at)
                texts.append(head[at + 4 : at + 4 + length].decode())
                at += 4 + length
            servers.append(tuple(texts))
        (count,) = struct.unpack_from("<I", head, at)
        return servers, struct.unpack_from(f"<{count}H", head, at + 4)


class Lane:
    """What one client has pushed to one server: numbers of its own, one push at a time."""

    def __init__(self, identity):
        self.identity = identity
        self.sequence = 0
        self.client = None

    def close(self):
        if self.client:
            self.client.close()
        self.client = None


class SpreadClient:
    """A client of a table on several servers, which connects again until it is answered."""

    def __init__(self, leader, identity, gives_up):
        self.leader, self.identity, self.gives_up = leader, identity, gives_up
        self.lanes = {}

    def close(self):
        for lane in self.lanes.values():
            lane.close()

    def lane(self, server):
        """Connected to the server of that place in the route."""
        lane = self.lanes.setdefault(server, Lane(self.identity * 10 + server))
        while not self.gives_up():
            try:
                if lane.client is None:
                    endpoint = self.leader
                    if server > 0:
                        asked = CountClient(self.leader, self.identity * 10 + 9)
                        try:
                            endpoint = asked.route()[0][server][1]
                        finally:
                            asked.close()
                    lane.client = CountClient(endpoint, lane.identity)
                return lane
            except (EOFError, OSError, RuntimeError, IndexError):
                lane.close()
                threading.Event().wait(0.02)
        raise TimeoutError("no connection")

    def everywhere(self, keys, act):
        """`act(lane, keys of that server)` for each server, again after a lost connection."""
        while True:
            try:
                owners = self.lane(0).client.route()[1] or [0] * BUCKETS
                break
            except (EOFError, OSError, RuntimeError):
                self.lanes[0].close()
        for server in sorted({owners[bucket(key)] for key in keys}):
            mine = [key for key in keys if owners[bucket(key)] == server]
            self.lane(server).sequence += 1
            while True:
                try:
                    act(self.lane(server), mine)
                    break
                except (EOFError, OSError):
                    self.lanes[server].close()
                except RuntimeError as error:  # it loads its rows, or has lost its leader
                    if error.args[0][0] != UNAVAILABLE:
                        raise
                    self.lanes[server].close()
                    threading.Event().wait(0.02)

    def push(self, keys):
        self.everywhere(keys, lambda lane, mine: lane.client.push("count", lane.sequence, mine, [-1.0] * len(mine)))

    def pull(self, keys):
        rows = {}
        self.everywhere(keys, lambda lane, mine: rows.update(zip(mine, struct.unpack(f"<{len(mine)}f", lane.client.pull("count", mine)))))
        return rows


class RowsServersCluster(ClusterTest):
    def shard(self, leader, name, number=0, listen="127.0.0.1:0", run="shards", environment=None):
        places = ["--join", leader, "--name", name, "--listen", listen, "--run-dir", self.folder / run, "--drain-timeout", "1s"]
        return self._start(Process, "centroid-server", f"{name}-{number}", places, environment)

    def leader(self, servers, *arguments, number=0, **places):
        common = ["--tables", TABLES, "--run-id", "r", "--servers", servers, "--checkpoint.keep", 2, "--lease", "1s"]
        return self.launch_server(*common, *arguments, name=f"leader-{number}", **places).wait_ready()

    def save_fifty(self, leader):
        """Rows 0 to 49, each pushed once, in a checkpoint."""
        client = SpreadClient(leader.data, 1, bool)
        client.push(range(50))
        client.close()
        self.assertEqual(leader.post("/v1/checkpoints")[0], 201)
