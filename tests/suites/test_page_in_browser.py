"""The page of `nnhal test --report` in Chromium: colours, contrast and width, in light and dark."""

import json
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from nnhal.conformance.suites.report.page import as_page
from tests.suites.test_report import report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), "")
READABLE = 4.5  # contrast of text that WCAG 2.2 asks for at level AA
# Reads a page in a frame, which lets the test choose its width.
LOOK = """
<iframe id=page style="width:%dpx;height:2000px;border:0" srcdoc="%s"></iframe><pre id=found></pre>
<script>
const frame = document.getElementById("page");
function parts(color) {
  const [r, g, b, ...alpha] = color.match(/[\\d.]+/g).map(Number);
  return color.startsWith("rgb") ? [r / 255, g / 255, b / 255, ...alpha] : [r, g, b, ...alpha];  // else color(srgb ...)
}
function luminance(color) {
  const [r, g, b] = parts(color).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function behind(element) {
  for (let e = element; e; e = e.parentElement) {
    const color = frame.contentWindow.getComputedStyle(e).backgroundColor;
    if (parts(color)[3] !== 0) return color;
  }
}
frame.onload = () => {
  const page = frame.contentDocument, texts = [];
  for (const element of page.body.querySelectorAll("*")) {
    if (![...element.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !element.getClientRects().length) continue;
    const back = behind(element), front = frame.contentWindow.getComputedStyle(element).color;
    const [low, high] = [luminance(front), luminance(back)].sort((a, b) => a - b);
    texts.push([(high + 0.05) / (low + 0.05), element.textContent.trim().slice(0, 40)]);
  }
  const root = page.documentElement;
  document.getElementById("found").textContent = JSON.stringify({
    back: luminance(behind(page.body)), texts, wide: root.scrollWidth - root.clientWidth,
    loaded: frame.contentWindow.performance.getEntriesByType("resource").map(e => e.name),
  });
};
</script>
"""


def seen(folder: Path, width: int, *, dark: bool) -> Any:
    """What Chromium makes of the page in a window of this width."""
    file = folder / "look.html"
    file.write_text(LOOK % (width, escape(as_page(report()))), "utf-8")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", scheme]
    command = [CHROMIUM, *flags, "--dump-dom", file.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(unescape(ran.stdout.partition('<pre id="found">')[2].partition("</pre>")[0]))


@pytest.mark.nightly  # it needs a browser, which CI does not have
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_readable_in_a_browser(tmp_path: Path, dark: bool) -> None:
    assert CHROMIUM, "there is no Chromium, such as of the package chromium-headless-shell"
    for width in (1000, 400):
        found = seen(tmp_path, width, dark=dark)
        assert (found["back"] < 0.1) if dark else (found["back"] > 0.9)
        assert len(found["texts"]) > 50 and [text for text in found["texts"] if text[0] < READABLE] == []
        assert found["wide"] <= 0 and found["loaded"] == []
