#!/usr/bin/env python3
"""page.py - the web page: its files, and in a headless Chromium the way of a day: load, send, stop, another version,
reload.  Everything else is in page_long.py.

usage: page.py INGLE

Without chromium and chromedriver only the files are looked at.
"""
import gzip, pathlib, re, shutil, subprocess, sys, tempfile

import browser
import client

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "src/server/page"
LIMIT = 1_000_000  # bytes of the page, compressed; PDF is read by files that only a PDF loads
LAZY = ("pdf.js", "pdf.worker.js")


def scripts():
    """Every script is well formed, where there is a node; none makes code of text, none trusts the clock."""
    for path in sorted(SOURCES.glob("*.js")):
        text = path.read_text()
        bad = re.search(r"\beval\(|new Function|(inner|outer)HTML \+?=|insertAdjacentHTML|document\.write|setTimeout\('|\bDate\b", text)
        assert not bad, f"{path.name}: {bad[0]}"
        assert max(map(len, text.splitlines())) <= 220, f"{path.name}: a line of more than 220 columns"
        if not shutil.which("node"):
            continue
        with tempfile.TemporaryDirectory() as d:  # a module by its name
            copy = pathlib.Path(d) / (path.stem + (".cjs" if path.name.endswith("_worker.js") else ".mjs"))
            copy.write_text(text)
            done = subprocess.run(["node", "--check", copy], capture_output=True, text=True)
            assert done.returncode == 0, f"{path.name}: {done.stderr}"


def names(build):
    """The files that the build has put in: name, tag."""
    rows = (build / "page/server/page_files.inc").read_text()
    return re.findall(r'PAGE_FILE\("([^"]+)", "[^"]+", \w+, "\\"(\w+)\\""\)', rows)


def files(s, build):
    status, headers, text = s.get("/")
    policy = headers["Content-Security-Policy"]
    assert status == 200 and "<!doctype html>" in text and "<script>" not in text and "style=" not in text
    assert "script-src 'self';" in policy and "eval" not in policy and "style-src 'self'" in policy, policy
    total = 0
    for name, tag in names(build):
        path = "/" if name == "index.html" else "/page/" + name
        c, r = s.open("GET", path, None, {"Accept-Encoding": "br;q=1, gzip"})
        raw = r.read()
        c.close()
        assert r.status == 200 and r.headers["ETag"] == f'"{tag}"', (name, r.status, dict(r.headers))
        own = r.headers["Content-Security-Policy"]
        assert r.headers["X-Content-Type-Options"] == "nosniff"
        assert own.startswith("sandbox allow-scripts; default-src 'none'; ") if name == "preview.html" else own == policy, (name, own)
        if name != "index.html":
            assert r.headers["Content-Encoding"] == "gzip", name
            gzip.decompress(raw)
        total += 0 if name in LAZY else len(raw)
        c, r = s.open("GET", path, None, {"Accept-Encoding": "gzip", "If-None-Match": f'W/"{tag}"'})
        assert r.status == 304 and not r.read(), (name, r.status)
        c.close()
    assert total <= LIMIT, f"the page has {total} bytes"
    for path, want in (("/page/nothing.js", 404), ("/page/index.html", 404), ("/page/..%2Fserve.c", 404)):
        assert s.get(path, {"Accept-Encoding": "gzip"})[0] == want, path
    for accept, want in (("identity", 406), ("gzip;q=0", 406), ("*", 200), ("deflate, GZIP;q=0.5", 200)):
        c, r = s.open("GET", "/page/main.js", None, {"Accept-Encoding": accept})
        r.read()
        assert r.status == want, (accept, r.status)
        c.close()
    print(f"the page has {total} bytes, compressed")


def day(s):
    with browser.Page(s) as p:
        p.setting("max_tokens", "24")
        p.setting("seed", "1")
        stats = p.ask("Once upon a time")
        assert "tokens/s" in stats and "from the cache" in stats, stats
        first = p.answer()
        assert first, "the first answer is empty"
        assert p.text(".message.assistant .who") == ["nano-gemma4"]
        p.click_act("Regenerate")
        p.wait_done()
        assert p.text(".versions span") == ["2/2"], p.text(".versions span")
        p.setting("max_tokens", "")
        p.setting("extra", '{"ignore_eos": true}')
        p.b.type("#input", "Tell a very long story\n")
        p.wait("return !$('stop').hidden && document.querySelectorAll('.message.assistant .text')[1]?.innerText.length > 0")
        p.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
        assert "stopped" in p.wait_done(), p.stats()
        titles, messages = p.text("#list .pick"), p.text(".message .text")
        p.load()
        assert p.text("#list .pick") == titles == ["Once upon a time"], titles
        p.wait("return document.querySelectorAll('.message .text')[3]?.innerText.length > 0")
        assert p.text(".message .text") == messages, (messages, p.text(".message .text"))
        assert not p.b.complaints()
        incomplete(p)


def incomplete(p):
    """A module that does not come: the page says so, and loads again."""
    def blocked(urls):
        for cmd, params in (("Network.enable", {}), ("Network.setCacheDisabled", {"cacheDisabled": True}),
                            ("Network.setBlockedURLs", {"urls": urls})):
            p.b.call("POST", p.b.session + "/goog/cdp/execute", {"cmd": cmd, "params": params})
    blocked(["*/page/tree.js*"])
    p.b.open(p.url + "/")
    p.wait("return $('status').textContent.includes('did not load')")
    blocked([])
    p.b.click("#status button")
    p.wait("return window.ingle?.ready")


if __name__ == "__main__":
    scripts()
    with client.Server(sys.argv[1], "-c", "32768") as server:
        files(server, pathlib.Path(sys.argv[1]).resolve().parent)
        if not browser.available():
            print("there is no chromium with chromedriver: the page was not opened")
        else:
            day(server)
    print("ok")
