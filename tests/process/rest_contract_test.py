"""Every operation of the OpenAPI document against a running server: status, content type and schema of each answer.

An operation that the document has and PLAN has not, or the other way round, fails. rest_contract_test.py BIN_DIR
"""

import json
import pathlib
import re
import sys
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import ClusterTest, main, wait_for

try:
    import jsonschema
except ImportError:
    jsonschema = None

OPERATOR, VIEWER = "the-operator", "the-viewer"

# In the order in which they are called: operation, what stands in its path, body, the one status that is right, and fields of the request.
PLAN = [
    ("get_index", {}, None, [200]),
    ("get_livez", {}, None, [200]),
    ("get_healthz", {}, None, [200]),
    ("get_readyz", {}, None, [200]),
    ("get_metrics", {}, None, [200]),
    ("get_version", {}, None, [200]),
    ("get_openapi", {}, None, [200]),
    ("get_host", {}, None, [200]),
    ("get_cluster", {}, None, [200]),
    ("list_workers", {}, None, [200]),
    ("get_worker", {"id": "{member}"}, None, [200]),
    ("get_worker", {"id": 99999}, None, [404]),
    ("list_rounds", {}, None, [200]),
    ("list_epochs", {}, None, [200]),
    ("get_curves", {}, None, [200]),
    ("list_waits", {}, None, [200]),
    ("list_events", {}, None, [200]),
    ("get_trace", {}, None, [200]),
    ("get_model_picture", {}, None, [200]),
    ("get_scale", {}, None, [200]),
    ("want_scale", {}, {"workers": 3, "why": "of the test"}, [200]),
    ("want_scale", {}, {"workers": 100000}, [409]),
    ("want_scale", {}, {"workers": 1.5}, [400]),
    ("get_scale", {}, None, [200]),
    ("list_parameters", {}, None, [200]),
    ("get_parameter", {"name": "{tensor}"}, None, [200]),
    ("get_parameter", {"name": "nobody"}, None, [404]),
    ("get_config", {}, None, [200]),
    ("change_config", {}, {"checkpoint.keep": 7, "lease": "20s"}, [200]),
    ("change_config", {}, {"checkpoint.keep": 8, "seed": 5}, [409]),
    ("change_config", {}, {"checkpoint.kep": 8}, [400]),
    ("make_checkpoint", {}, None, [201]),
    ("list_checkpoints", {}, None, [200]),
    ("verify_checkpoint", {"id": "{version}"}, None, [200]),
    ("verify_checkpoint", {"id": 99999999}, None, [404]),
    ("list_checkpoint_files", {"id": "{version}"}, None, [200]),
    ("get_checkpoint_file", {"id": "{version}", "file": "manifest.json"}, None, [200]),
    ("get_checkpoint_file", {"id": "{version}", "file": "model.safetensors"}, None, [200]),
    ("get_checkpoint_file", {"id": "{version}", "file": "model.safetensors"}, None, [206], {"Range": "bytes=0-9"}),
    ("get_checkpoint_file", {"id": "{version}", "file": "model.safetensors"}, None, [206], {"Range": "bytes=0-9", "If-Range": "{etag}"}),
    ("get_checkpoint_file", {"id": "{version}", "file": "model.safetensors"}, None, [200], {"Range": "bytes=0-9", "If-Range": '"of another"'}),
    ("get_checkpoint_file", {"id": "{version}", "file": "model.safetensors"}, None, [304], {"If-None-Match": "{etag}"}),
    ("get_checkpoint_file", {"id": "{version}", "file": "model.safetensors"}, None, [412], {"If-Match": '"of another"'}),
    ("get_checkpoint_file", {"id": "{version}", "file": "model.safetensors"}, None, [416], {"Range": "bytes=99999999-"}),
    ("get_checkpoint_file", {"id": "{version}", "file": "no.such"}, None, [404]),
    ("list_tables", {}, None, [200]),
    ("get_table", {"name": "words"}, None, [200]),
    ("get_table", {"name": "nobody"}, None, [404]),
    ("create_token", {}, {"name": "of-the-test", "role": "worker", "expires_seconds": 60}, [201]),
    ("create_token", {}, {"name": "of-the-test", "role": "worker"}, [409]),
    ("create_token", {}, {"name": "of-the-test"}, [400]),
    ("list_tokens", {}, None, [200]),
    ("revoke_token", {"name": "of-the-test"}, None, [200]),
    ("revoke_token", {"name": "of-the-test"}, None, [404]),
    ("list_audit", {}, None, [200]),
    ("pause_job", {}, None, [202]),
    ("resume_job", {}, None, [202]),
    ("resume_job", {}, None, [409]),
    ("delete_checkpoint", {"id": "{version}"}, None, [409]),
    ("delete_checkpoint", {"id": "{old}"}, None, [200]),
    ("restore_checkpoint", {"id": "{version}"}, {"delete_newer": True}, [200]),
    ("restore_checkpoint", {"id": 99999999}, None, [404]),
    ("list_servers", {}, None, [200]),
    ("drain_server", {"name": "nobody"}, None, [404]),
    ("measure_worker", {"id": 99999}, None, [404]),
    ("measure_worker", {"id": "{w0}"}, None, [200]),
    ("measure_worker", {"id": "{w0}"}, {"to": 99999}, [404]),
    ("measure_worker", {"id": "{w0}"}, {"to": 0.5}, [400]),
    ("measure_worker", {"id": "{w0}"}, {"to": 2}, [404]),  # that membership ended with the restore
    ("drain_worker", {"id": 99999}, None, [404]),
    ("drain_worker", {"id": 1}, None, [409]),  # that membership ended with the restore
    ("drain_worker", {"id": "{w1}"}, None, [202]),
    ("evict_worker", {"id": "{w0}"}, {"seconds": 1000, "why": "of the test"}, [200]),
    ("list_evictions", {}, None, [200]),
    ("allow_worker", {"name": "w0"}, None, [200]),
    ("allow_worker", {"name": "w0"}, None, [404]),
    ("stop_job", {}, None, [202]),
]


class Contract(ClusterTest):
    def ask(self, method, path, body=None, token=OPERATOR, **fields):
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.server_.api}{path}", data=data, method=method, headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=40) as reply:
                return reply.status, reply.headers, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def check(self, operation, status, fields, body):
        """One answer against what the document says of it."""
        where = f"{operation['operationId']} {status} {body[:300]}"
        self.assertIn(str(status), operation["responses"], where)
        response = self.resolve(operation["responses"][str(status)])
        self.assertTrue(fields.get("X-Request-Id"), where)
        for name in response.get("headers", {}):
            self.assertIn(name, fields, where)
        media = (fields.get("Content-Type") or "").partition(";")[0]
        if "content" not in response:
            self.assertEqual((media, body), ("", b""), where)
            return
        self.assertIn(media, response["content"], where)
        if media.endswith("json"):
            schema = response["content"][media]["schema"]
            resolver = jsonschema.RefResolver("", self.document)
            jsonschema.Draft202012Validator(schema, resolver=resolver).validate(json.loads(body))

    def resolve(self, node):
        while "$ref" in node:
            target = self.document
            for part in node["$ref"].lstrip("#/").split("/"):
                target = target[part]
            node = target
        return node

    def check_stream(self, operation):
        """The same path as a stream: its first event is one of the document's."""
        request = urllib.request.Request(f"http://{self.server_.api}/v1/events?since=0", headers={"Accept": "text/event-stream", "Authorization": f"Bearer {VIEWER}"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as reply:
            self.assertEqual(reply.headers["Content-Type"].partition(";")[0], "text/event-stream")
            self.assertIn("text/event-stream", operation["responses"]["200"]["content"])
            data = next(line for line in reply if line.startswith(b"data: "))
        resolver = jsonschema.RefResolver("", self.document)
        jsonschema.Draft202012Validator({"$ref": "#/components/schemas/Event"}, resolver=resolver).validate(json.loads(data[6:]))

    def fill(self, path, values):
        for name, value in values.items():
            for mark, known in self.known.items():
                value = str(value).replace(mark, str(known))
            path = path.replace("{" + name + "}", str(value))
        return path

    @unittest.skipUnless(jsonschema, "python3-jsonschema is not installed")
    def test_every_operation_answers_as_documented(self):
        self.server_ = self.server(
            "--api.token", OPERATOR, "--api.viewer-token", VIEWER, "--epochs", "1000000", "--checkpoint.keep", "5", "--tables", "words:dim=4"
        )
        for worker in ("w0", "w1"):
            self.worker(self.server_, worker)
        status, _, body = self.ask("GET", "/openapi.json")
        self.assertEqual(status, 200)
        self.document = json.loads(body)
        operations = {}
        for path, item in self.document["paths"].items():
            allow = self.ask("OPTIONS", path.replace("{id}", "1").replace("{name}", "x").replace("{file}", "x"))[1]["Allow"]
            documented = {method.upper() for method in item} | {"OPTIONS"} | ({"HEAD"} if "get" in item else set())
            self.assertEqual(set(allow.split(", ")), documented, path)
            for method, operation in item.items():
                operations[operation["operationId"]] = (method.upper(), path, operation)
        self.assertEqual({name for name, *_ in PLAN}, set(operations), "PLAN and the document have the same operations")

        def checkpoint():
            status, _, body = self.ask("POST", "/v1/checkpoints")
            return json.loads(body)["version"] if status == 201 else None

        old = wait_for(checkpoint, "a checkpoint")
        version = wait_for(lambda: (now := checkpoint()) != old and now, "another checkpoint")
        tensor = json.loads(self.ask("GET", "/v1/parameters")[2])["parameters"][0]["name"]
        self.known = {"{member}": 1, "{old}": old, "{version}": version, "{tensor}": tensor}
        self.check_stream(operations["list_events"][2])
        for name, values, body, (right,), *more in PLAN:
            method, path, operation = operations[name]
            if (name, right) == ("resume_job", 409):
                wait_for(lambda: json.loads(self.ask("GET", "/v1/cluster")[2])["state"] == "training", "rounds again")
            if (name, right) in (("delete_checkpoint", 409), ("restore_checkpoint", 200)):
                self.known["{version}"] = json.loads(self.ask("GET", "/v1/checkpoints")[2])["checkpoints"][0]["version"]
            for mark in re.findall(r"\{w\d\}", str(values)):  # a worker that went back with the job has another number
                self.known[mark] = wait_for(lambda mark=mark: self.member_of(mark[1:-1]), f"an active worker {mark}")
            target = self.fill(path, values)
            with self.subTest(operation=name, target=target):
                if more:  # the same path with other fields
                    asked = {field: self.fill("{x}", {"x": text}) for field, text in more[0].items()}
                    status, fields, text = self.ask(method, target, body, **asked)
                    self.assertEqual(status, right, text)
                    self.check(operation, status, fields, text)
                    continue
                is_open = operation.get("security") == []
                if not is_open:
                    self.check(operation, *self.ask(method, target, body, token=None))
                if not is_open and "403" in operation["responses"]:
                    # of the events only those of the audit log are not for viewers
                    hidden = target + ("?type=audit" if name == "list_events" else "")
                    status, fields, text = self.ask(method, hidden, body, token=VIEWER)
                    self.assertEqual(status, 403, text)
                    self.check(operation, status, fields, text)
                status, fields, text = self.ask(method, target + "?no_such=1", body)
                self.assertEqual(status, 400, text)
                self.check(operation, status, fields, text)
                if method == "GET":
                    head, head_fields, nothing = self.ask("HEAD", target)
                    self.assertEqual(head, right)
                    self.assertEqual(nothing, b"")
                    self.assertTrue(head_fields.get("Content-Length"))
                status, fields, text = self.ask(method, target, body)
                self.assertEqual(status, right, text)
                self.check(operation, status, fields, text)
                self.known["{etag}"] = fields.get("ETag", self.known.get("{etag}"))

    def member_of(self, name):
        """Number of the worker of this name that is active."""
        workers = json.loads(self.ask("GET", "/v1/workers")[2])["workers"]
        return max((one["member"] for one in workers if one["state"] == "active" and one["name"] == name), default=None)


if __name__ == "__main__":
    main()
