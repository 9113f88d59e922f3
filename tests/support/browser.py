"""Drive headless Chromium over a pipe with the DevTools protocol, without other tools."""

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
TIMEOUT_S = 30  # for any one answer


def find_chromium() -> str | None:
    """Return the browser on this machine's PATH, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page; `errors` collects the errors on the page's console."""

    def __init__(self, chromium: str, profile: Path) -> None:
        child_in, self.write_end = os.pipe()
        self.read_end, child_out = os.pipe()
        # the protocol uses descriptors 3 and 4; higher numbers cannot collide with them in dup2
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (child_in, child_out)]

        def move_ends() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        options = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run"
        self.process = subprocess.Popen(
            [chromium, *options.split(), "--remote-debugging-pipe", f"--user-data-dir={profile}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=move_ends,
            close_fds=False,
        )
        for fd in (child_in, child_out, *ends):
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
        os.close(self.write_end)
        os.close(self.read_end)
        self.process.terminate()
        self.process.wait(TIMEOUT_S)

    # -- the protocol ----------------------------------------------------------------------------

    def send(self, method: str, **params):
        """Call a method; return its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def receive(self):
        """Return the next message, after recording it if it is an event."""
        deadline = time.monotonic() + TIMEOUT_S
        while b"\0" not in self.buffer:
            ready, _, _ = select.select(
                [self.read_end], [], [], max(0, deadline - time.monotonic())
            )
            assert ready, "Chromium does not answer"
            received = os.read(self.read_end, 1 << 16)
            assert received, "Chromium has exited"
            self.buffer += received
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.record_event(message["method"], message["params"])
        return message

    def record_event(self, method: str, params) -> None:
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(str(params["args"]))
        if method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])

    # -- user actions ----------------------------------------------------------------------------

    def open(self, url: str, width: int, height: int, dark: bool = False) -> None:
        """Load a page in a window of this size; a narrow window emulates a phone."""
        phone = width < 600
        scale = 2 if phone else 1
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=phone,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        for place in ("about:blank", url):  # a change of the hash alone would not load the page
            self.events.clear()
            self.send("Page.navigate", url=place)
            while "Page.loadEventFired" not in self.events:
                self.receive()

    def run(self, script: str):
        """Return the value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str):
        """Return the value of a JavaScript expression once it is true."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"{script} stays {value}"
            time.sleep(0.05)
        return value

    def click(self, selector: str) -> None:
        """Click the centre of the first element that matches the selector."""
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
        """Press a key, given by its name, such as Enter or ArrowDown, or as a character."""
        code = {"Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40}.get(key, 0)
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        event = {"key": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def screenshot(self, path: Path, selector: str = "html") -> None:
        """Write a screenshot of an element, even one outside the window."""
        clip = self.run(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect(); return {x: b.x + scrollX, y: b.y + scrollY,"
            " width: b.width, height: b.height, scale: 1}; })()"
        )
        data = self.send(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
        )
        path.write_bytes(base64.b64decode(data["data"]))
