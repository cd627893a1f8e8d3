"""real.py - what the tests of real clients share: a server with the small DeepSeek model, a Tap before it, a bare home."""
import json, os, pathlib, signal, subprocess, sys, tempfile, time, unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import client
from tap import Tap

ROOT = pathlib.Path(__file__).resolve().parents[3]
LIMIT = 400  # seconds that one run of a client may take


def program(variable, *places):
    """Where a client's program is: what the environment variable says, or the first place that exists.  Without one
    this script counts as skipped."""
    found = [p for p in (os.environ.get(variable), *places) if p and os.path.exists(p)]
    if not found:
        print(f"{variable} is not set and the packages that bring it are not installed")
        sys.exit(77)
    return str(found[0])


class Case(client.Case):
    """One server for a class; each test has its own Tap (self.tap), home and working directory."""
    options = ["-m", str(ROOT / client.nano_v4()), "-c", "131072", "--temp", "0", "--seed", "1"]
    change = None  # of a Tap

    def setUp(self):
        self.tap = Tap(self.server.port, lambda x: self.change(x) if self.change else None)
        self.addCleanup(self.tap.__exit__)
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("CLIENTS_TMP"))
        self.addCleanup(folder.cleanup)
        self.home, self.work = pathlib.Path(folder.name, "home"), pathlib.Path(folder.name, "work")
        self.home.mkdir()
        self.work.mkdir()
        (self.work / "note.txt").write_text("The password is heliotrope.\n")

    def environment(self):
        """Nothing of ours but the path: a client finds no account and no settings."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8", "NO_PROXY": "*"}

    def start(self, *command, output=subprocess.PIPE):
        return subprocess.Popen(command, cwd=self.work, env=self.environment(), stdin=subprocess.DEVNULL, text=True,
                                stdout=output, stderr=output, start_new_session=True)

    def wait(self, process, limit=LIMIT):
        try:
            out, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, errors = process.communicate()
            self.fail(f"no end after {limit} s: {out[-2000:]} {errors[-2000:]} {self.tap.exchanges}")
        return process.returncode, out, errors

    def lines(self, out):
        """The JSON lines of a client's output."""
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def idle(self, limit=20):
        """Waits until the server computes nothing; fails when it goes on."""
        end = time.monotonic() + limit
        while any(s["is_processing"] for s in self.server.get("/slots")[2]):
            self.assertLess(time.monotonic(), end, "the server goes on with the request of a client that left")
            time.sleep(0.05)

    def interrupt(self, p):
        """A client is interrupted (what Ctrl-C sends) when the server is at its request; fails when that goes on."""
        end = time.monotonic() + 60
        while not any(s["is_processing"] for s in self.server.get("/slots")[2]):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        os.killpg(p.pid, signal.SIGINT)
        self.wait(p)
        self.idle()

    def refused(self):
        """Requests that were not answered with 200."""
        return [x for x in self.tap.exchanges if x.status not in (200, None)]

    def notes(self, word):
        return [line for line in self.server.log if word in line]


def only(schema, **values):
    """A tool's schema that allows these values alone: a grammar of it makes exactly this call."""
    return {"type": "object", "properties": {k: {"const": v} for k, v in values.items()},
            "required": list(values), "additionalProperties": False}


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
