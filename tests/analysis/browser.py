"""Headless Chromium on a pipe: a phone's width, light and dark, resizing, complaints, requests."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
_QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_ON_THREE_AND_FOUR = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
"""Where Chromium expects the ends of its pipes."""
_LIMIT = 120.0


class Page:
    """One page, spoken to by Chromium's own protocol."""

    def __init__(self, reads: int, writes: int) -> None:
        self.reads, self.writes = reads, writes
        self.number, self.rest, self.session = 0, b"", None
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        said = {"id": self.number, "method": method, "params": params}
        said |= {"sessionId": self.session} if self.session else {}
        os.write(self.writes, json.dumps(said).encode() + b"\0")
        while (answer := self._next()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path: Path, width: int, *, dark: bool = False) -> None:
        """Loads the file and waits until it has been drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.resize(width)
        self.ask("Page.navigate", url=path.as_uri())
        self.until("document.documentElement?.dataset.drawn")
        self.settle()

    def resize(self, width: int, height: int = 900) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=False)  # fmt: skip

    def settle(self) -> None:
        """Until the height of the page has stayed the same for half a second."""
        heights: list[Any] = []
        end = time.monotonic() + _LIMIT
        while len(heights) < 6 or len(set(heights[-6:])) > 1:
            assert time.monotonic() < end, "the page does not come to rest"
            time.sleep(0.1)
            heights.append(self.value("document.documentElement.scrollHeight"))

    def value(self, expression: str) -> Any:
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        end = time.monotonic() + _LIMIT
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < end, expression
            time.sleep(0.05)

    def screenshot(self, path: Path) -> None:
        """The whole page, however long."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[Any]:
        """What the page wrote to the console, and what went wrong in it."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [e["params"] for e in self.events if e.get("method") in kinds]

    def asked_for(self) -> list[str]:
        """Addresses that it asked for, its own file and data apart."""
        sent = (e for e in self.events if e.get("method") == "Network.requestWillBeSent")
        urls = (e["params"]["request"]["url"] for e in sent)
        return [u for u in urls if not u.startswith(("file:", "data:", "blob:", "about:"))]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _LIMIT
        while b"\0" not in self.rest:
            ready = select.select([self.reads], [], [], max(0.0, end - time.monotonic()))[0]
            assert ready, "Chromium does not answer"
            more = os.read(self.reads, 1 << 20)
            assert more, "Chromium has ended"
            self.rest += more
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A page of a Chromium that ends with the block."""
    assert CHROMIUM is not None
    (theirs_in, writes), (reads, theirs_out) = os.pipe(), os.pipe()
    arguments = [CHROMIUM, *_QUIET, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_THREE_AND_FOUR, str(theirs_in), str(theirs_out), *arguments],
        pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(reads, writes)
    finally:
        process.terminate()
        process.wait(timeout=30)
        os.close(reads)
        os.close(writes)
