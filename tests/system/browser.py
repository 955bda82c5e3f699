"""A headless Chromium, driven over a pipe with its own protocol: what a page shows, keys that are pressed, windows of any size."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time

import pytest

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--remote-debugging-pipe"]
KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, "Tab": 9, "Enter": 13, "Escape": 27, "Space": 32}
TEXTS = {"Enter": "\r", "Space": " "}  # what a key writes: without it a button does not act


def find():
    """The program; the test is skipped where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return shutil.which(name)
    pytest.skip("chromium is not installed (apt-get install chromium)")


class Browser:
    """Commands go in at its descriptor 3, answers and events come out of 4, each ended by a zero byte."""

    def __init__(self):
        program = find()
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command_read, self.command = os.pipe()
        self.said, said_write = os.pipe()
        self.proc = subprocess.Popen(
            ["/bin/bash", "-c", f'exec "$@" 3<&{command_read} 4>&{said_write}', "bash", program, *FLAGS, f"--user-data-dir={self.folder.name}",
             "about:blank"], pass_fds=(command_read, said_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(command_read)
        os.close(said_write)
        self.n = 0
        self.answers = {}
        self.errors = []  # what pages complained of
        self.heard = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        rest = b""
        while chunk := os.read(self.said, 1 << 16):
            *messages, rest = (rest + chunk).split(b"\0")
            for message in map(json.loads, messages):
                with self.heard:
                    if "id" in message:
                        self.answers[message["id"]] = message
                    elif message["method"] == "Runtime.exceptionThrown":
                        self.errors.append(message["params"]["exceptionDetails"])
                    elif message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                        self.errors.append(message["params"]["entry"])
                    self.heard.notify_all()

    def call(self, method, session=None, timeout=60, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self.command, json.dumps(message).encode() + b"\0")
        with self.heard:
            assert self.heard.wait_for(lambda: message["id"] in self.answers, timeout), f"no answer to {method}"
            answer = self.answers.pop(message["id"])
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, url, width=1280, height=900, scheme="light", first=""):
        """A page; `first`: a script that runs before its own."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        page = Page(self, target, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        if first:
            page.call("Page.addScriptToEvaluateOnNewDocument", source=first)
        page.call("Page.navigate", url=url)
        return page

    def close(self):
        os.close(self.command)  # it ends when nobody commands it
        try:
            self.proc.wait(10)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
        self.reader.join(10)
        os.close(self.said)
        self.folder.cleanup()


class Page:
    def __init__(self, browser, target, session):
        self.browser, self.target, self.session = browser, target, session

    def call(self, method, **params):
        return self.browser.call(method, session=self.session, **params)

    def get(self, script):
        """The value of an expression, or of the promise that it is."""
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, (script, got)
        return got["result"].get("value")

    def wait(self, script, seconds=60):
        """The first value of the expression that counts as true."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if value := self.get(script):
                    return value
            except AssertionError as e:  # the page is not there yet
                if "exceptionDetails" not in str(e):
                    raise
            time.sleep(0.05)  # between two questions
        raise AssertionError(f"{script} was not true within {seconds} s: {self.get('document.body.innerText')[:3000]}")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=" " if key == "Space" else key, code=key, windowsVirtualKeyCode=KEYS[key],
                      **({"text": TEXTS[key]} if kind == "keyDown" and key in TEXTS else {}))

    def type(self, text):
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
