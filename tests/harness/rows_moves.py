"""A client of rows that move from server to server."""

import struct
import threading

from harness.rows import ABORTED, UNAVAILABLE
from harness.rows_servers import BUCKETS, CountClient, bucket


class Lane:
    """What one client has pushed to one server, by its name."""

    def __init__(self, identity, endpoint):
        self.identity, self.endpoint = identity, endpoint
        self.sequence = 0
        self.client = None

    def connected(self):
        if self.client is None:
            self.client = CountClient(self.endpoint, self.identity)
        return self.client

    def close(self):
        if self.client:
            self.client.close()
        self.client = None


class MovingClient:
    """A client that follows the route, written from docs/reference/wire.md. Its pushes count once, wherever the rows go."""

    def __init__(self, leader, identity, gives_up=bool):
        self.leader, self.identity, self.gives_up = leader, identity, gives_up
        self.asker = Lane(identity * 1000 + 999, leader)
        self.lanes = {}

    def close(self):
        for lane in (self.asker, *self.lanes.values()):
            lane.close()

    def pause(self):
        if self.gives_up():
            raise TimeoutError("the test is over")
        threading.Event().wait(0.01)

    def ask(self, lane, act):
        """What the server answers, after as many connections as it takes; ABORTED is the caller's."""
        while True:
            try:
                return act(lane.connected())
            except (EOFError, OSError):
                lane.close()
            except RuntimeError as error:
                if error.args[0][0] != UNAVAILABLE:
                    raise
                lane.close()
            self.pause()
            if lane is not self.asker and not self.follow(lane):
                raise LookupError

    def follow(self, lane=None):
        """The route: endpoint by server, owner by bucket. False: the lane's server is not in it."""
        servers, owners = self.ask(self.asker, lambda client: client.route())
        for name, endpoint in servers:
            known = self.lanes.setdefault(name, Lane(self.identity * 1000 + len(self.lanes), endpoint))
            if known.endpoint != (endpoint or self.leader):
                known.close()
                known.endpoint = endpoint or self.leader
        self.owners = [servers[owner][0] for owner in owners] or [servers[0][0]] * BUCKETS
        return lane is None or any(self.lanes[name] is lane for name, _ in servers)

    def newest(self, identity):
        client = CountClient(self.leader, identity)
        client.close()
        return client.newest

    def everywhere(self, keys, act, is_push):
        left = list(keys)
        while left:
            self.follow()
            for name in sorted({self.owners[bucket(key)] for key in left}):
                mine = [key for key in left if self.owners[bucket(key)] == name]
                lane = self.lanes[name]
                lane.sequence += is_push
                try:
                    self.ask(lane, lambda client: act(client, lane.sequence, mine))
                except RuntimeError as error:
                    if error.args[0][0] != ABORTED:
                        raise
                    lane.sequence -= is_push  # nothing of it was done
                    self.pause()
                    break
                except LookupError:  # it is gone for good: the leader knows what it applied
                    lane.close()
                    lane.endpoint = self.leader
                    newest = self.ask(self.asker, lambda _: self.newest(lane.identity)) if is_push else 0
                    del self.lanes[name]
                    self.lanes[f"{name}, once {lane.identity}"] = lane  # so that identities stay apart
                    if not is_push or newest < lane.sequence:
                        break
                left = [key for key in left if key not in mine]

    def push(self, keys):
        self.everywhere(keys, lambda client, sequence, mine: client.push("count", sequence, mine, [-1.0] * len(mine)), 1)

    def pull(self, keys):
        rows = {}
        self.everywhere(keys, lambda client, _, mine: rows.update(zip(mine, struct.unpack(f"<{len(mine)}f", client.pull("count", mine)))), 0)
        return rows
