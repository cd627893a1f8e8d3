"""browser.py - a headless Chromium through chromedriver's HTTP interface (W3C WebDriver)."""
import base64, json, shutil, subprocess, time, urllib.error, urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def available():
    return bool(shutil.which("chromedriver") and shutil.which("chromium"))


class Browser:
    def __init__(self, width=1200, height=800):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, text=True)
        self.base = None
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                self.base = "http://127.0.0.1:" + line.split("port ")[1].split(".")[0].strip()
                break
        options = {"binary": shutil.which("chromium"),
                   "args": ["--headless=new", "--no-sandbox", "--disable-gpu",
                            "--disable-dev-shm-usage", f"--window-size={width},{height}"]}
        answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.session = "/session/" + answer["sessionId"]

    def call(self, method, path, body=None):
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"},
                                         method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as r:
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
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", css)

    def wait(self, script, *args, seconds=60):
        """Waits until a JavaScript function body returns something true; returns it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.run(script, *args)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}; status {self.text('#status')}, page:\n"
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

    def close(self):
        try:
            self.call("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait()
