"""Headless Chromium, driven through two pipes by its debugging protocol, and a server of pages.

`start` gives the reason where there is no Chromium, or none with WebGPU. Chromium ends by itself
when its pipe closes, so that none outlives the tests.
"""

import base64
import contextlib
import http.server
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

NAMES = ["chromium", "chromium-browser", "google-chrome"]
# WebGPU on the software adapter that Chromium brings along, and no network traffic of its own.
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--enable-unsafe-webgpu",
    "--enable-features=Vulkan", "--use-webgpu-adapter=swiftshader", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps",
    "--disable-sync", "--disable-breakpad", "--hide-scrollbars", "--force-device-scale-factor=1",
    "--force-color-profile=srgb", "--remote-debugging-pipe",
]  # fmt: skip
# The browser reads from 3 and writes to 4, by its own rule.
LAUNCH = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


def start():
    """A `Browser`, or the reason why there is none."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        return "no Chromium; tools/browser.sh says how to get one"
    browser = Browser(path)
    try:
        adapter = browser.evaluate("navigator.gpu?.requestAdapter().then("
                                   "a => a && `${a.info.vendor}, ${a.info.architecture}`)")
    except BaseException:
        browser.close()
        raise
    if not adapter:
        browser.close()
        return "Chromium has no WebGPU adapter"
    browser.adapter = adapter
    return browser


class PageError(Exception):
    """What JavaScript threw."""


class Browser:
    """A browser with one page. `files` are what its server gives: bytes, or folders, by path."""

    def __init__(self, path):
        self.profile = tempfile.mkdtemp(prefix="wengert-browser-")
        self.files = {"/": b"<!doctype html><title>tests</title>"}
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(self.files))
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.events, self.count, self.rest = [], 0, b""
        there, self.write = os.pipe()
        self.read, back = os.pipe()
        command = [sys.executable, "-c", LAUNCH, str(there), str(back), path, *FLAGS,
                   f"--user-data-dir={self.profile}", "about:blank"]
        self.process = subprocess.Popen(
            command, pass_fds=(there, back), start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={"XDG_RUNTIME_DIR": "/tmp", **os.environ, "HOME": self.profile})
        os.close(there)
        os.close(back)
        self.session = None
        try:
            target = self.ask("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.ask("Target.attachToTarget", targetId=target,
                                    flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.ask(f"{domain}.enable")
            self.open("/")
        except BaseException:
            self.close()
            raise

    def ask(self, method, seconds=60, **arguments):
        """The answer to a request of the protocol."""
        self.count += 1
        request = {"id": self.count, "method": method, "params": arguments}
        if self.session:
            request["sessionId"] = self.session
        data = memoryview(json.dumps(request).encode() + b"\0")
        while data:
            data = data[os.write(self.write, data):]
        deadline = time.monotonic() + seconds
        while True:
            answer = self.message(deadline, method)
            if answer.get("id") == self.count:
                break
            self.events.append(answer)
        if "error" in answer:
            raise PageError(f"{method}: {answer['error']}")
        return answer["result"]

    def message(self, deadline, what):
        while b"\0" not in self.rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.read], [], [], left)[0]:
                raise PageError(f"{what}: no answer in time")
            data = os.read(self.read, 1 << 20)
            if not data:
                raise PageError(f"{what}: the browser ended")
            self.rest += data
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def open(self, path, width=800, height=600, seconds=30):
        """Shows a page of the server; waits until it is loaded."""
        self.events.clear()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url=self.address + path)
        deadline = time.monotonic() + seconds
        while all(event.get("method") != "Page.loadEventFired" for event in self.events):
            self.events.append(self.message(deadline, f"open {path}"))

    def evaluate(self, text, *arguments, seconds=60):
        """The value of an expression, or of what a function gives for arguments; promises are
        awaited. Values travel as JSON."""
        if arguments:
            text = f"({text})({', '.join(json.dumps(x) for x in arguments)})"
        found = self.ask("Runtime.evaluate", seconds, expression=text, awaitPromise=True,
                         returnByValue=True, userGesture=True)
        if "exceptionDetails" in found:
            said = found["exceptionDetails"]
            raise PageError(said.get("exception", {}).get("description") or said["text"])
        return found["result"].get("value")

    def complaints(self):
        """What the page has said since it was opened: uncaught errors, warnings, logs of errors."""
        self.ask("Runtime.evaluate", expression="0")  # what was said before has arrived
        found = []
        for event in self.events:
            said = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                details = said["exceptionDetails"]
                found.append(details.get("exception", {}).get("description") or details["text"])
            elif event.get("method") == "Log.entryAdded":
                found.append(said["entry"]["text"])
            elif said.get("type") in ("error", "warning", "assert") and "args" in said:
                found.append(" ".join(str(x.get("value", x)) for x in said["args"]))
        return found

    def mouse(self, kind, x, y):
        """An event of the mouse: pressed, moved or released."""
        name = {"pressed": "mousePressed", "moved": "mouseMoved", "released": "mouseReleased"}[kind]
        self.ask("Input.dispatchMouseEvent", type=name, x=x, y=y, button="left",
                 buttons=0 if kind == "released" else 1, clickCount=int(kind != "moved"))

    def stroke(self, points):
        """Draws a line with the button held."""
        self.mouse("pressed", *points[0])
        for point in points[1:]:
            self.mouse("moved", *point)
        self.mouse("released", *points[-1])

    def screenshot(self):
        """The page as the bytes of a PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])

    def close(self):
        """Ends the browser and the server, and removes the profile."""
        self.server.shutdown()
        self.server.server_close()
        self.session = None
        with contextlib.suppress(PageError, OSError):
            self.ask("Browser.close", 10)
        os.close(self.write)
        os.close(self.read)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        # What is left of it; the group has no other members.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        shutil.rmtree(self.profile, ignore_errors=True)


def handler(files):
    """Answers with `files`; the longest path that fits counts."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.partition("?")[0]
            data, kind = found(files, path), TYPES.get(Path(path).suffix)
            self.send_response(200 if data is not None else 404)
            data = data or b""
            self.send_header("Content-Type", kind or "application/octet-stream"
                             if path != "/" else "text/html")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    return Handler


def found(files, path):
    """The bytes at a path, or None."""
    if path == "/favicon.ico":
        return b""
    if isinstance(files.get(path), bytes):
        return files[path]
    for start, folder in sorted(files.items(), key=lambda item: -len(item[0])):
        if isinstance(folder, Path) and path.startswith(start):
            file = (folder / path.removeprefix(start).lstrip("/")).resolve()
            if file.is_file() and file.is_relative_to(folder.resolve()):
                return file.read_bytes()
    return None
