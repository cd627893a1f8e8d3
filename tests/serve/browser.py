"""browser.py - a headless Chromium through chromedriver's HTTP interface (W3C WebDriver)."""
import base64, json, os, shutil, subprocess, tempfile, time, urllib.error, urllib.request

import devtools

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def available():
    return bool(shutil.which("chromedriver") and shutil.which("chromium"))


class Browser:
    def __init__(self, width=1200, height=800):
        self.traces = None
        self.base = None
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # the browser leaves some of its files
        for _ in range(5):  # two that start at once may want the same port
            self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                           env={**os.environ, "TMPDIR": self.folder.name})
            for line in self.driver.stdout:
                if "started successfully on port" in line:
                    self.base = "http://127.0.0.1:" + line.split("port ")[1].split(".")[0].strip()
                    break
            if self.base:
                break
            self.driver.wait()
        options = {"binary": shutil.which("chromium"),
                   "args": ["--headless=new", "--no-sandbox", "--disable-gpu",
                            "--disable-dev-shm-usage", f"--window-size={width},{height}",
                            "--host-resolver-rules=MAP plain.example 127.0.0.1"]}
        answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.session = "/session/" + answer["sessionId"]
        self.address = answer["capabilities"]["goog:chromeOptions"]["debuggerAddress"]

    def call(self, method, path, body=None):
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"},
                                         method=method)
        try:
            with urllib.request.urlopen(request, timeout=180) as r:
                return json.load(r)["value"]
        except urllib.error.HTTPError as e:
            raise RuntimeError(f"{method} {path}: {e.read().decode()[:500]}") from None

    def open(self, url):
        self.call("POST", self.session + "/url", {"url": url})

    def run(self, script, *args):
        """The value of a JavaScript function body."""
        return self.call("POST", self.session + "/execute/sync", {"script": script, "args": list(args)})

    def find(self, css):
        return self.call("POST", self.session + "/element",
                         {"using": "css selector", "value": css})[ELEMENT]

    def click(self, css):
        self.call("POST", f"{self.session}/element/{self.find(css)}/click")

    def type(self, css, text):
        self.call("POST", f"{self.session}/element/{self.find(css)}/value", {"text": text})

    def text(self, css):
        # What is new has no innerText before its first frame where it is laid out only when it comes near.
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => "
                        "e.checkVisibility() && !e.checkVisibility({contentVisibilityAuto: true}) ? e.textContent : e.innerText)", css)

    def wait(self, script, *args, seconds=180):
        """Waits until a JavaScript function body returns something true; returns it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.run(script, *args)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}; status {self.text('#status')}, console {self.complaints()}, page:\n"
                             + "\n".join(self.text("main"))[:1500])

    def size(self, width, height):
        self.call("POST", self.session + "/window/rect", {"width": width, "height": height})

    def shot(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("GET", self.session + "/screenshot")))

    def complaints(self):
        """What the page's console got at level SEVERE (a breach of the policy is one)."""
        return [e["message"] for e in self.call("POST", self.session + "/se/log", {"type": "browser"})
                if e["level"] == "SEVERE"]

    def begin_tasks(self):
        """Tasks are looked at from here on."""
        self.traces = self.traces or devtools.Trace(self.address)
        self.traces.begin()
        self.run("console.timeStamp('tasks')")  # it tells which thread is the page's

    def tasks(self):
        """Milliseconds of processor time of the page's tasks since begin_tasks(), the longest first.  The load of the
        machine is not in them.  Collection of garbage is left out (the browser chooses its time), and so are tasks that
        bring a script of the test."""
        events = self.traces.end()
        thread = lambda e: (e["pid"], e["tid"])
        used = lambda e: min(e.get("tdur", e["dur"]), e["dur"]) / 1000
        page = {thread(e) for e in events if e["name"] == "TimeStamp" and e["args"]["data"].get("message") == "tasks"}
        mine = sorted((e for e in events if e.get("ph") == "X" and thread(e) in page), key=lambda e: (e["ts"], -e["dur"]))
        out, end = [], -1  # end: of the task around what comes
        for e in mine:
            inside = e["ts"] + e["dur"] <= end
            if e["name"] == "ThreadControllerImpl::RunTask" and not inside:
                out.append(used(e))
                end = e["ts"] + e["dur"]
                inside = True
            if inside and e["name"] in ("MajorGC", "MinorGC"):
                out[-1] -= used(e)
            elif inside and "DevToolsSession" in str(e.get("args")):
                out[-1] = 0
        assert page, "the trace has no mark of the page"
        return sorted(out, reverse=True)

    def close(self):
        try:
            self.call("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait()
            self.folder.cleanup()


class Page:
    """The web page of a server (client.Server) in a browser of its own; use it with `with`."""

    DONE = """const a = document.querySelectorAll('.message'), last = a[a.length - 1];
    return window.ingle?.ready && ingle.isIdle() && !document.querySelector('#log').hasAttribute('aria-busy') && last
           && (last.querySelector('.error').textContent || last.querySelector('.stats').textContent || ' ')"""

    def __init__(self, server, path="/", width=1200, height=800):
        self.url = f"http://127.0.0.1:{server.port}"
        self.b = Browser(width, height)
        try:
            self.load(path)
        except BaseException:
            self.b.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.b.close()

    def load(self, path="/"):
        for _ in range(5):
            self.b.open(self.url + path)
            self.wait("return window.ingle?.ready || (!window.ingle && performance.now() > 20000)")
            # Chromium ends requests when the machine gets or loses a network, as other tests make them.
            if self.run("return !!window.ingle") or not any("ERR_NETWORK_CHANGED" in c for c in self.b.complaints()):
                break
        self.wait("return window.ingle?.ready")

    def run(self, script, *args):
        return self.b.run("const $ = id => document.getElementById(id);" + script, *args)

    def text(self, css):
        return self.b.text(css)

    def wait(self, script, *args, seconds=180):
        return self.b.wait("const $ = id => document.getElementById(id);" + script, *args, seconds=seconds)

    def wait_done(self):
        """Until the last answer is complete and shown: its error or its figures."""
        return self.wait(self.DONE)

    def ask(self, text):
        n = self.run("return document.querySelectorAll('.message').length")
        self.b.type("#input", text + "\n")
        self.wait("return document.querySelectorAll('.message').length >= arguments[0] + 2", n)
        return self.wait_done()

    def answer(self):
        # also of parts out of sight, which have no innerText
        return self.run("return [...document.querySelectorAll('.message .text')].at(-1).textContent").strip()

    def stats(self):
        return self.text(".message:last-child .stats")[0]

    def act(self, label, css=".message:last-child"):
        """The button of that label in the last message that the selector finds."""
        return """const m = [...document.querySelectorAll(%r)].at(-1);
        const b = [...m.querySelectorAll('button')].find(b => b.textContent === %r);""" % (css, label)

    def click_act(self, label, css=".message:last-child"):
        self.run(self.act(label, css) + "b.click()")

    def setting(self, key, value, scope="chat"):
        """Sets it as a user does; what is said at its place."""
        self.b.click("#open-settings")
        said = self.run("""$('scope').value = arguments[2]; $('scope').onchange();
            const f = document.querySelector(`[data-key=${arguments[0]}]`); f.value = arguments[1];
            f.dispatchEvent(new Event('input', {bubbles: true}));
            return document.getElementById('error-' + arguments[0]).textContent""", key, value, scope)
        self.run("document.querySelector('#settings').close()")
        return said
