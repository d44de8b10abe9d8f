"""A real etcd."""

import json
import os
import shutil
import urllib.request

from harness.cluster import Process, wait_for

ETCD = shutil.which("etcd") or shutil.which("etcd", path=os.environ.get("OPS_ETCD", ""))


class Etcd(Process):
    """One etcd on loopback, that can be killed and started again on its data."""

    def __init__(self, folder, client, peer):
        self.client, self.url = client, f"http://127.0.0.1:{client}"
        peers = f"http://127.0.0.1:{peer}"
        arguments = ["--name", "e", "--data-dir", folder / "etcd", "--listen-client-urls", self.url]
        arguments += ["--advertise-client-urls", self.url, "--listen-peer-urls", peers]
        arguments += ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"e={peers}"]
        super().__init__(ETCD, arguments, folder / "etcd.log", None)
        wait_for(self.is_healthy, "etcd to answer")

    def is_healthy(self):
        if not self.is_running():
            raise AssertionError(f"etcd ended with {self.child.returncode}:\n{self.text()[-2000:]}")
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"{self.url}/health", timeout=1) as reply:
                return json.loads(reply.read())["health"] == "true"
        except OSError:
            return False
