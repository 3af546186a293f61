"""A real Chromium, driven over its own debugging protocol: open a page, run JavaScript in it, take a picture."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
INSTALL = "no Chromium on this machine; install it with: apt-get install --no-install-recommends chromium"


def find() -> str | None:
    """The browser's path, where one is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """``with Browser() as browser``; one tab. ``errors`` holds what the page's console complained about."""

    def __init__(self, width: int = 1440, height: int = 1000, dark: bool = False) -> None:
        self.size, self.dark = (width, height), dark
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number = 0

    def __enter__(self) -> Browser:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
        options += ["--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={self._folder.name}"]
        path = find()
        assert path is not None, INSTALL
        self._process = subprocess.Popen(
            [path, *options, "about:blank"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        try:
            self._connect()
        except BaseException:
            self._process.kill()
            raise
        return self

    def _connect(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"ws://\S+", line):
                break
        else:
            raise RuntimeError("Chromium ended before it could be spoken to")
        self._socket = websocket.create_connection(found[0], timeout=120)
        target = self._send("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        attached = self._send("Target.attachToTarget", {"targetId": target, "flatten": True}, session=None)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")
        width, height = self.size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._send("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if self.dark else "light"}]
        self._send("Emulation.setEmulatedMedia", {"features": scheme})

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._send("Browser.close", session=None)
            self._socket.close()
            self._process.wait(timeout=20)
        except (OSError, websocket.WebSocketException, subprocess.TimeoutExpired):
            self._process.kill()
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._process.wait()
        self._folder.cleanup()

    def _send(self, method: str, params: dict[str, Any] | None = None, session: str | None = "tab") -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            reply = json.loads(self._socket.recv())
            if reply.get("id") == message["id"]:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']['message']}")
                return dict(reply["result"])
            self._note(reply)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", "?"))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif event.get("method") == "Page.javascriptDialogOpening":
            self.errors.append(f"dialog: {params['message']}")
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, url: str) -> float:
        """Open a page and wait until ``data-ready`` is set on its root; returns the seconds that took."""
        self._send("Page.navigate", {"url": "about:blank"})  # the page before it may be the same
        began = time.perf_counter()
        self._send("Page.navigate", {"url": url})
        self.wait("document.documentElement?.dataset.ready === 'yes'")
        return time.perf_counter() - began

    def visit(self, url: str) -> None:
        """Open a page that is not ours to mark, and wait until it is loaded."""
        self._send("Page.navigate", {"url": url})
        self.wait(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        found = self._send("Runtime.evaluate", asked)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description", "failed"))
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = 60) -> None:
        """Until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < deadline, f"not within {seconds} s: {script}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """A real click of the mouse in the middle of the first element that ``selector`` names."""
        where = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{where}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        box = self.run(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({where}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            event = {"type": kind, "x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            self._send("Input.dispatchMouseEvent", event)

    def type(self, selector: str, text: str) -> None:
        """Put the cursor into a field and write."""
        self.click(selector)
        self._send("Input.insertText", {"text": text})

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a ``<select>``."""
        where = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{where}.value = {json.dumps(value)}; {where}.dispatchEvent(new Event('change'))")

    def picture(self, path: Path, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        shot = self._send("Page.captureScreenshot", {"captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(shot["data"]))
