"""Where the processes of a `centroid.torch.DataParallel` meet: a program of its own, so that any of them may die.

Usage: _meeting.py HOST PORT SECONDS      and the token as standard input

A member keeps its connection; when that ends, the member is gone. Messages are lines of JSON.

    member   {"token", "world", "rank"} when it comes; {"meet": version, "open": is between two steps, "group": number or null};
             {"group": number, "address": text}; {"bye": true}
    meeting  {"news": true}: somebody wants to come in; {"refused": why};
             {"group": number, "rank", "world", "was": former ranks, "versions", "open", "same": the group stays}, once all members
             meet; {"addresses": [...]} or {"failed": why}

Members that are in the middle of a step form a group of those that are left. Others come in when all are between two steps.
It ends with its last member, or when the first `world` do not come in time. It uses only the standard library.
"""

import hmac
import json
import selectors
import socket
import sys
import time

_LINE_BYTES = 1 << 16


class _Member:
    def __init__(self, connection):
        self.socket, self.rest = connection, b""
        self.hello = self.rank = self.meet = self.address = None  # hello: the rank that it wants; rank: in the group
        self.is_there = True

    def send(self, **message):
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.is_there = False

    def lines(self):
        """What has arrived; a connection that has ended is not there any more."""
        try:
            data = self.socket.recv(_LINE_BYTES)
        except OSError:
            data = b""
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        if not data or len(self.rest) > _LINE_BYTES:
            self.is_there = False
        return lines


class _Meeting:
    def __init__(self, listener, seconds, token):
        self.listener, self.seconds, self.token = listener, seconds, token
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self.members, self.group = [], 0  # group: number of the newest
        self.world = None  # as the first member says
        self.forming = []  # members that connect with each other
        self.is_over = False
        self.since = time.monotonic()  # the first one waits, or nobody has come

    def run(self):
        while not self.is_over:
            self.selector_turn(max(self.since + self.seconds - time.monotonic(), 0) if self.since else None)
            self.turn()

    def selector_turn(self, timeout):
        for key, _ in self.selector.select(timeout):
            if key.fileobj is self.listener:
                connection, _ = self.listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(self.seconds)
                member = _Member(connection)
                self.members.append(member)
                self.selector.register(connection, selectors.EVENT_READ, member)
                continue
            for line in key.data.lines():
                try:
                    self.take(key.data, json.loads(line))
                except (ValueError, KeyError, TypeError, AttributeError):
                    key.data.is_there = False  # no member of ours

    def take(self, member, message):
        if "world" in message:
            if not hmac.compare_digest(self.token, str(message["token"]).encode()):
                member.send(refused="the token is another one")
                member.is_there = False
                return
            self.world = self.world or int(message["world"])
            member.hello = int(message["rank"])
        elif member.hello is None:
            member.is_there = False
        elif "meet" in message:
            member.meet = {"meet": int(message["meet"]), "open": bool(message["open"]), "group": message["group"]}
            if member.rank is None and self.group:
                self.tell_news()
        elif message.get("group") == self.group and "address" in message:
            member.address = str(message["address"])
        elif message.get("bye"):
            member.is_there = False
            if not any(other.rank is not None for other in self.members if other is not member and other.is_there):
                self.end("the others have come to their end")

    def tell_news(self):
        for member in self.members:
            if member.rank is not None:
                member.send(news=True)

    def end(self, why):
        for member in self.members:
            member.send(refused=why)
        self.is_over = True

    def turn(self):
        """What follows from what the members have said, and from those that are gone."""
        self.bury()
        ranked = [member for member in self.members if member.rank is not None]
        waiting = [member for member in self.members if member.meet is not None]
        if self.forming and all(member.address is not None for member in self.forming):
            addresses = [member.address for member in self.forming]
            self.forming = []
            for member in ranked:
                member.send(addresses=addresses)
        if self.group and not any(member.hello is not None for member in self.members):
            self.is_over = True
        if not self.forming and waiting:
            if ranked and all(member.meet is not None for member in ranked):
                self.form(ranked, [member for member in waiting if member.rank is None])
            elif not ranked and len(waiting) >= self.world:
                self.form([], waiting)
        self.watch()

    def bury(self):
        gone = [member for member in self.members if not member.is_there]
        self.members = [member for member in self.members if member.is_there]
        for member in gone:
            self.selector.unregister(member.socket)
            member.socket.close()
        if any(member in self.forming for member in gone):
            for member in self.forming:
                member.address = None
                member.send(failed="another process died while the group was made")
            self.forming = []

    def form(self, ranked, others):
        """Make a group of the members that have ranks, and of the others if nobody is in the middle of a step."""
        ranked.sort(key=lambda member: member.rank)
        is_open = all(member.meet["open"] for member in ranked)
        others.sort(key=lambda member: member.hello)
        group = ranked + others if is_open else ranked
        is_same = bool(ranked) and group == ranked and all(member.meet["group"] == self.group for member in ranked)
        is_same = is_same and [member.rank for member in ranked] == list(range(self.size))
        was, versions = [member.rank for member in group], [member.meet["meet"] for member in group]
        self.group += not is_same
        self.size = len(group)
        self.forming = [] if is_same else group
        for rank, member in enumerate(group):
            member.rank, member.meet, member.address = rank, None, None
        for member in list(group):
            member.send(group=self.group, rank=member.rank, world=len(group), was=was, versions=versions, open=is_open, same=is_same)
        if not is_open and others:
            self.tell_news()

    def watch(self):
        """Those that wait do so for a limited time."""
        waiting = [member for member in self.members if member.meet is not None or member.address is not None]
        is_waiting = bool(waiting) or not self.group
        self.since = (self.since or time.monotonic()) if is_waiting else None
        if not is_waiting or time.monotonic() < self.since + self.seconds:
            return
        self.since = None
        if not self.group:
            self.end(f"{len(waiting)} of {self.world} processes have come within {self.seconds:g} s")
            return
        for member in self.members:
            if member.rank is not None and member not in waiting:
                member.send(refused=f"it did not come to the others within {self.seconds:g} s")
                member.is_there = False
        self.turn()


def main(host, port, seconds):
    is_loopback = socket.gethostbyname(host).startswith("127.")
    with socket.create_server(("127.0.0.1" if is_loopback else "", int(port)), backlog=1024) as listener:
        _Meeting(listener, float(seconds), sys.stdin.buffer.read()).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
