"""Where the nodes of a cluster are, asked of etcd once: libpsd itself asks none. etcd 3.4's JSON gateway, as psd --coord uses it."""

import base64
import http.client
import json
import re
import ssl
import time

from ._errors import ConnectionLost, SettingError

OPTIONS = ("ca", "cert", "key", "user", "password_file")  # each with coord_ before it


def _text(encoded):
    return base64.b64decode(encoded).decode()


def _encoded(text):
    return base64.b64encode(text.encode()).decode()


class _Member:
    """One endpoint, for one question."""

    def __init__(self, address, given, seconds):
        host, _, port = address.rpartition(":")
        self.headers = {}
        if given.get("ca"):
            context = ssl.create_default_context(cafile=given["ca"])
            if given.get("cert"):
                context.load_cert_chain(given["cert"], given.get("key"))
            self.connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=seconds, context=context)
        else:
            self.connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=seconds)

    def ask(self, path, body):
        self.connection.request("POST", path, json.dumps(body), self.headers)
        said = json.loads(self.connection.getresponse().read(1 << 22))
        if "error" in said:
            raise ConnectionLost(f"etcd answers: {said['error']}")
        return said

    def authenticate(self, user, password_file):
        with open(password_file, encoding="utf-8") as f:
            password = f.read().strip()
        self.headers["Authorization"] = self.ask("/v3/auth/authenticate", {"name": user, "password": password})["token"]


def _read(items, cluster):
    """Primaries, then standbys."""
    try:
        groups = [json.loads(items[f"groups/{i}"]) for i in range(int(json.loads(items["config"])["nodes"])) if f"groups/{i}" in items]
        primaries, standbys = [g["primary"] for g in groups], [g["standby"] for g in groups if g["standby"] != "-"]
    except KeyError:
        primaries = []
    if not primaries:
        raise ConnectionLost(f"etcd knows no psd of cluster {cluster}: is the name right?")
    return ",".join(primaries + standbys)


def find(url, given, seconds):
    """etcd://HOST:PORT[,HOST:PORT...]/CLUSTER[/JOB] as psd://HOST:PORT,.../JOB. given: of OPTIONS."""
    parts = re.fullmatch(r"etcd://([^/]+)/([A-Za-z0-9_.-]{1,64})(/.*)?", url)
    if not parts:
        raise SettingError(f"{url}: expected etcd://HOST:PORT[,HOST:PORT...]/CLUSTER[/JOB]")
    endpoints, cluster, job = parts[1].split(","), parts[2], parts[3] or ""
    prefix, until, why = f"/psd/{cluster}/", time.monotonic() + seconds, None
    asked = {"key": _encoded(prefix), "range_end": _encoded(prefix[:-1] + "0")}
    while why is None or time.monotonic() < until:
        for address in endpoints:
            try:
                member = _Member(address, given, 2)
                if given.get("user"):
                    member.authenticate(given["user"], given.get("password_file"))
                said = member.ask("/v3/kv/range", asked)
                items = {_text(kv["key"])[len(prefix):]: _text(kv.get("value", "")) for kv in said.get("kvs", ())}
            except (OSError, ValueError, http.client.HTTPException, ConnectionLost) as e:
                why = f"etcd at {address}: {e}"
                continue
            return f"psd://{_read(items, cluster)}{job}"
        time.sleep(min(0.2, max(0.0, until - time.monotonic())))  # between two rounds over all endpoints
    raise ConnectionLost(why)
