"""Looks at the built pages in Chrome or Chromium: ``python docs/in_a_browser.py`` after ``make docs``.

Every page is opened at 1280 and 390 pixels: at neither may it be wider than its window, and at 1280 no table may need
scrolling. A page of more than three screens begins with a summary.
"""

from __future__ import annotations

import functools
import http.server
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

BUILT = Path(__file__).parent / "_build" / "html"
NAMES = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser", "chrome")
THREE_SCREENS = 2700
_SCRIPT = """<body><script>
async function open(page, width) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  const loaded = new Promise((done) => (frame.onload = done));
  frame.src = page;
  document.body.append(frame);
  await loaded;
  return frame;
}
async function look(page, width) {
  const frame = await open(page, width), inside = frame.contentDocument;
  const wide = [...inside.querySelectorAll("article table, article img")].filter((part) => {
    const box = part.closest(".table-wrapper") || part.parentElement;
    return part.getBoundingClientRect().width > box.getBoundingClientRect().width + 1;
  });
  const found = {page, width, page_width: inside.documentElement.scrollWidth,
    height: (inside.querySelector("article") || inside.body).getBoundingClientRect().height,
    summary: inside.body.innerText.includes("In short"),
    wide: wide.map((part) => part.innerText?.slice(0, 60) || part.src)};
  frame.remove();
  return found;
}
(async () => {
  const found = {pages: []};
  for (const page of PAGES) for (const width of [1280, 390]) found.pages.push(await look(page, width));
  await fetch("/found", {method: "POST", body: JSON.stringify(found)});
})();
</script></body>"""


class _Pages(http.server.SimpleHTTPRequestHandler):
    """The built pages, and one that opens all of them and posts what it found."""

    found: queue.Queue[dict[str, Any]] = queue.Queue()

    def do_GET(self) -> None:
        if self.path != "/look":
            super().do_GET()
            return
        pages = [path.relative_to(BUILT).as_posix() for path in sorted(BUILT.rglob("*.html"))]
        script = _SCRIPT.replace("PAGES", json.dumps(pages))
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(script.encode())

    def do_POST(self) -> None:
        self.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing of each request."""


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """A page that is closed before all of its files are sent is no error."""


def looked_at(browser: str) -> dict[str, Any]:
    """Return the sizes of all pages at both widths."""
    server = _Server(("127.0.0.1", 0), functools.partial(_Pages, directory=str(BUILT)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless=new", "--no-sandbox", f"--user-data-dir={profile}", "--window-size=1400,1000"]
        command = [browser, *flags, f"http://127.0.0.1:{server.server_port}/look"]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        try:
            return _Pages.found.get(timeout=600)
        finally:
            running.terminate()
            running.wait()
            server.shutdown()


def faults(found: dict[str, Any]) -> list[str]:
    """Return a line for each page that is too wide, or long without a summary."""
    lines = []
    for seen in found["pages"]:
        if seen["page_width"] > seen["width"]:
            lines.append(f"{seen['page']} is {seen['page_width']} pixels wide in a window of {seen['width']}")
        if seen["wide"] and seen["width"] == 1280:
            lines.append(f"{seen['page']}: wider than the page at 1280 pixels: {seen['wide']}")
        written = not seen["page"].startswith(("generated/api/", "generated/changelog", "genindex"))
        if written and not seen["summary"] and seen["width"] == 1280 and seen["height"] > THREE_SCREENS:
            lines.append(
                f"{seen['page']} is longer than three screens and has no summary (`**In short**`) on top"
            )
    return lines


def main() -> int:
    """Look, and print what is wrong."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        raise SystemExit(f"there is no browser: install one of {', '.join(NAMES)}")
    found = looked_at(browser)
    wrong = faults(found)
    fine = f"{len(found['pages']) // 2} pages fit windows of 1280 and 390 pixels"
    sys.stdout.write("\n".join([*wrong] or [fine]) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
