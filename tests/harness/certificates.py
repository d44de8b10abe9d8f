"""Certificates, made by openssl."""

import functools
import subprocess

from harness.cluster import ClusterTest


def openssl(*words, folder):
    subprocess.run(["openssl", *map(str, words)], cwd=folder, check=True, capture_output=True)


class TlsTest(ClusterTest):
    @functools.cached_property
    def certificates(self):
        """A folder with ca.crt and, by `issue`, other certificates of that authority."""
        folder = self.folder / "tls"
        folder.mkdir()
        self.authority(folder, "ca")
        return folder

    def authority(self, folder, name):
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key"]
        openssl("req", "-x509", *key, "-out", f"{name}.crt", "-days", "2", "-subj", f"/CN={name}", folder=folder)

    def issue(self, name, names="IP:127.0.0.1", by="ca", days=2):
        folder = self.certificates
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key"]
        openssl("req", *key, "-out", f"{name}.csr", "-subj", f"/CN={name}", folder=folder)
        (folder / "names").write_text(f"subjectAltName={names}\n")
        signed = ["-CA", f"{by}.crt", "-CAkey", f"{by}.key", "-CAcreateserial", "-days", days, "-extfile", "names"]
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *signed, folder=folder)
        return ["--tls.certificate", folder / f"{name}.crt", "--tls.key", folder / f"{name}.key"]

    @property
    def trust(self):
        return ["--tls.authority", self.certificates / "ca.crt"]
