"""Headless Chromium, driven over a pipe with its DevTools protocol; nothing beside the browser."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 30  # seconds for any one answer


def find_chromium() -> str | None:
    """The browser on this machine's PATH; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page. `errors` collects what the page's console calls an error."""

    def __init__(self, chromium: str, profile: Path) -> None:
        theirs_in, self.out = os.pipe()
        self.inp, theirs_out = os.pipe()
        # the protocol wants descriptors 3 and 4; from above them, dup2 overwrites neither
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs_in, theirs_out)]

        def place_ends() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        options = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run"
        self.process = subprocess.Popen(
            [chromium, *options.split(), "--remote-debugging-pipe", f"--user-data-dir={profile}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=place_ends,
            close_fds=False,
        )
        for fd in (theirs_in, theirs_out, *ends):
            os.close(fd)
        self.number, self.buffer, self.session = 0, b"", ""
        self.events: list[str] = []
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        os.close(self.out)
        os.close(self.inp)
        self.process.terminate()
        self.process.wait(PATIENCE)

    # -- the protocol ----------------------------------------------------------------------------

    def send(self, method: str, **params):
        """Call a method; gives its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def receive(self):
        """The next message; events are noted."""
        until = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.inp], [], [], max(0, until - time.monotonic()))
            assert ready, "Chromium does not answer"
            piece = os.read(self.inp, 1 << 16)
            assert piece, "Chromium has gone"
            self.buffer += piece
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.note(message["method"], message["params"])
        return message

    def note(self, method: str, params) -> None:
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(str(params["args"]))
        if method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])

    # -- what a person does ----------------------------------------------------------------------

    def open(self, url: str, width: int, height: int, dark: bool = False) -> None:
        """Load a page in a window of a size; a narrow one is a phone's."""
        phone = width < 600
        scale = 2 if phone else 1
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=phone,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        for place in ("about:blank", url):  # by way of nothing: only a hash may have changed
            self.events.clear()
            self.send("Page.navigate", url=place)
            while "Page.loadEventFired" not in self.events:
                self.receive()

    def run(self, script: str):
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Click the middle of the first element that the selector finds."""
        quoted = json.dumps(selector)
        where = "{block: 'center', behavior: 'instant'}"
        self.run(f"document.querySelector({quoted}).scrollIntoView({where})")
        x, y = self.run(
            f"(() => {{ const b = document.querySelector({quoted}).getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """A key by its name, such as Enter or ArrowDown, or a character."""
        code = {"Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40}.get(key, 0)
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        event = {"key": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def picture(self, path: Path, selector: str = "html") -> None:
        """A screenshot of an element, whether it is in the window or not."""
        clip = self.run(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect(); return {x: b.x + scrollX, y: b.y + scrollY,"
            " width: b.width, height: b.height, scale: 1}; })()"
        )
        data = self.send(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
        )
        path.write_bytes(base64.b64decode(data["data"]))
