"""A picture of a page, by headless Chromium: `python benchmarks/screenshot.py DIR --out FILE [--dark] [--phone]`.

Makes the page as `headway report DIR` does, opens it from disk with the network off, and tells what a browser says of
it: errors, requests, whether it is wider than its window. Needs `chromium` (Debian: apt-get install chromium).
"""

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

WIDE, PHONE = 1280, 360
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions", "--mute-audio",
    "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip


def chromium() -> str | None:
    """The browser's program, if there is one."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class Browser:
    """One page in headless Chromium, spoken to over two pipes (Chrome DevTools Protocol, JSON ended by a zero byte).

    `problems` are the errors that the page logged or threw, `requests` the addresses that it asked for beside itself.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        words = [chromium() or "chromium", *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"]
        # The browser reads commands from descriptor 3 and answers on 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *words],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._number, self._left, self._session = 0, b"", ""
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self(f"{part}.enable")
        self("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._to)
        os.close(self._from)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; RuntimeError with what the browser says where it refuses."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            data = os.read(self._from, 1 << 20)
            if not data:
                raise RuntimeError("the browser ended")
            self._left += data
        message, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(str(params["args"]))
        elif event["method"] == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("data:", "blob:")) and params["type"] != "Document":
                self.requests.append(url)

    def open(self, path: Path, width: int, *, dark: bool = False, scale: float = 1.0) -> None:
        """Open a page from disk in a window of so many pixels, and wait until its charts are drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=scale, mobile=width < 600,
        )  # fmt: skip
        self("Page.navigate", url=path.absolute().as_uri())
        self.wait_for("document.documentElement?.dataset.drawn !== undefined")

    def wait_for(self, condition: str, seconds: float = 20.0) -> None:
        """Wait until an expression is true; TimeoutError where it does not become so."""
        end = time.monotonic() + seconds
        while not self.value(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition}: {self.problems}")
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """What an expression is in the page."""
        found = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def picture(self, height: int | None = None) -> bytes:
        """A PNG of the page, from its top, whole or so many pixels of it."""
        size = self("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        found = self("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(
            self("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)["data"]
        )


def main() -> int:
    """Make the page, take the picture, say what the browser said. Exit code 1 where it had anything to say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--out", type=Path, help="the PNG [default: report.png]", default=Path("report.png"))
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--phone", action="store_true", help=f"{PHONE} pixels wide, in place of {WIDE}")
    parser.add_argument("--height", type=int, help="pixels from the top [default: the whole page]")
    parser.add_argument("--pdf", type=Path, help="also write the page as it prints")
    words = parser.parse_args()
    if chromium() is None:
        parser.error("no chromium on the PATH (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as scratch, Browser() as browser:
        page = Path(scratch) / "report.html"
        subprocess.run([sys.executable, "-m", "headway", "report", str(words.folder), "--out", str(page)], check=True)
        browser.open(page, PHONE if words.phone else WIDE, dark=words.dark)
        words.out.write_bytes(browser.picture(words.height))
        wide = browser.value("document.documentElement.scrollWidth - innerWidth")
        if words.pdf:
            words.pdf.write_bytes(browser.pdf())
        print(f"{words.out}: {words.out.stat().st_size / 1024:.0f} KiB; charts: {browser.value(CHARTS)}")
        told = [*browser.problems, *browser.requests, *([f"{wide} pixels too wide"] if wide > 0 else [])]
    print("\n".join(told) if told else "no errors, no requests, no wider than its window")
    return 1 if told else 0


_FIGURES = "[...document.querySelectorAll('figure[data-chart]')]"
CHARTS = f"{_FIGURES}.filter((each) => each.querySelector('svg .trace')).length"
"""How many charts are drawn."""

if __name__ == "__main__":
    sys.exit(main())
