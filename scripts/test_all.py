#!/usr/bin/env python3
"""test_all.py - build and run every test and check, and count them.

usage: test_all.py [STAGE...]        (without one: all but clients, which installs the programs of others)

A stage counts each test program, each check and each fuzz target as one.  What it printed is
in out/logs/; the end of a failed one is shown.  The last line is "N passed, N failed"; what
was skipped is counted in the line before it.  The exit status is 0 when none failed.

Builds and the linters go on behind the tests, at the lowest priority: a test that waits leaves them the processors.
Seconds are those of the clock, with those of processors in brackets.
"""
import concurrent.futures, json, os, pathlib, re, subprocess, sys, threading, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "out"
LOGS = OUT / "logs"
JOBS = os.cpu_count() or 1
FUZZ_SECONDS = int(os.environ.get("FUZZ_SECONDS", "7"))
FUZZ_HALF = ("anthropic", "grammar", "http", "openai", "responses", "schema", "store")  # half of it
FUZZ_LIMITS = {name: (10, 1000) for name in ("grammar", "schema", "openai", "anthropic", "responses", "http")}  # seconds and MB of an input, sanitizers included: nothing grows
TAIL = 40  # lines of what a failed one printed, ...
LINE = 300  # ... and characters of a line


def print_end(text):
    print("\n".join("     | " + line[:LINE] for line in text.splitlines()[-TAIL:]), flush=True)


class Tally:
    """Counts results and prints one line for each."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.lock = threading.Lock()
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.behind = {}  # what goes on behind the tests, one after the other; name: its future

    def add(self, ok, what, took, log=None):
        with self.lock:
            self.passed += ok
            self.failed += not ok
            print(f"{'ok  ' if ok else 'FAIL'} {what} ({took})", flush=True)
            if not ok and log:
                print_end(log.read_text(errors="replace"))

    def skip(self, what, why):
        self.skipped += 1
        print(f"skip {what}: {why}", flush=True)


def run(name, *command):
    """Runs a command with its output in a log; returns (ok, what it took, log)."""
    log = LOGS / (name.replace("/", "_").replace(" ", "_") + ".log")
    start = time.monotonic()
    with log.open("w") as out:
        child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    return status == 0, f"{time.monotonic() - start:.0f} s [{used.ru_utime + used.ru_stime:.0f}]", log


def one(tally, name, *command):
    ok, took, log = run(name, *command)
    tally.add(ok, name, took, log)
    return ok


def one_behind(tally, name, *command):
    return one(tally, name, "nice", "-n", "19", *command)


def build(tally, preset, targets="all"):
    return one_behind(tally, f"build {preset}", "sh", "-c",
                      f"cmake --preset {preset} && cmake --build --preset {preset} -j{JOBS} --target {targets}")


def build_tsan(tally):
    """Only the programs with that label: each is a target of its name."""
    subprocess.run(["cmake", "--preset", "tsan"], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    listed = subprocess.run(["ctest", "--test-dir", "out/tsan", "-L", "threads", "--show-only=json-v1"],
                            cwd=ROOT, capture_output=True, text=True, check=False)
    names = [] if listed.returncode else [t["name"] for t in json.loads(listed.stdout)["tests"]]
    return build(tally, "tsan", " ".join(names) or "all")


# What goes on behind the tests, in this order; each is a test itself.
BEHIND = {
    "build release": lambda tally: build(tally, "release"),
    "build asan": lambda tally: build(tally, "asan"),
    "build tsan": build_tsan,
    "build fuzz": lambda tally: build(tally, "fuzz", "fuzzers"),
    "clang": lambda tally: one_behind(tally, "clang", "python3", "scripts/check_clang.py"),
    "tidy": lambda tally: one_behind(tally, "tidy", "python3", "scripts/tidy.py"),
}


def done(tally, name):
    """Waits for it; whether it went well."""
    return tally.behind[name].result()


def ctest(tally, preset, *more):
    """Counts each test program of a preset."""
    if not done(tally, f"build {preset}"):
        return
    ok, took, log = run(f"test {preset}", "ctest", "--test-dir", f"out/{preset}", f"-j{JOBS}",
                           "--output-on-failure", "--no-tests=error", *more)
    text = log.read_text(errors="replace")
    results = re.findall(r"^ *\d+/\d+ +Test +#\d+: (\S+) \.+ *\**(Passed|\S.*?) +[\d.]+ sec", text, re.M)
    good = [name for name, what in results if what == "Passed"]
    bad = [(name, what) for name, what in results if what not in ("Passed", "Skipped")]
    with tally.lock:
        tally.skipped += sum(what == "Skipped" for _, what in results)
        tally.passed += len(good)
        tally.failed += len(bad)
        print(f"{'FAIL' if bad else 'ok  '} {preset}: {len(good)} of {len(results)} test programs ({took})", flush=True)
        for name, what in bad:
            print(f"     {preset}/{name}: {what}")
            said = re.search(rf"Test +#\d+: {name} \.[^\n]* sec\n(.*?)(?=^ +Start +\d+: |^ *\d+/\d+ +Test +#|^\d+% tests passed|\Z)",
                             text, re.M | re.S)
            print_end(said[1] if said else "")
        if not ok and not bad:  # ctest itself failed
            tally.failed += 1
            print_end(text)


def checks(tally):
    scripts = sorted((ROOT / "scripts").glob("*.sh"))
    one(tally, "rooms", "python3", "scripts/check_rooms.py", ".")
    one(tally, "text", "python3", "scripts/check_text.py")
    one(tally, "length", "python3", "scripts/check_length.py")
    one(tally, "headers", "python3", "scripts/check_headers.py")
    one(tally, "openapi", "python3", "scripts/check_openapi.py")
    one(tally, "shellcheck", "shellcheck", "run", "test", ".ci/run", *map(str, scripts))
    if done(tally, "build release"):
        one(tally, "names", "python3", "scripts/check_names.py", "out/release")


def release(tally):
    ctest(tally, "release")


def clang(tally):
    done(tally, "clang")


def asan(tally):
    ctest(tally, "asan")


def tsan(tally):
    ctest(tally, "tsan", "-L", "threads")


def tidy(tally):
    done(tally, "tidy")


def fuzz_one(target):
    name = target.name[len("fuzz_"):]
    corpus = OUT / "fuzz/corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    seeds = ROOT / "tests/fuzz/seeds" / name
    seconds = FUZZ_SECONDS // 2 if name in FUZZ_HALF else FUZZ_SECONDS
    words = ROOT / "tests/fuzz" / f"{name}.dict"
    timeout, rss = FUZZ_LIMITS.get(name, (20, 3000))
    return run(f"fuzz {name}", str(target), f"-max_total_time={seconds}", f"-timeout={timeout}", f"-rss_limit_mb={rss}", "-print_final_stats=1",
               f"-artifact_prefix={OUT}/fuzz/{name}-", *([f"-dict={words}"] if words.is_file() else []), str(corpus), *([str(seeds)] if seeds.is_dir() else []))


def fuzz(tally):
    if not done(tally, "build fuzz"):
        return
    targets = sorted(p for p in (OUT / "fuzz").glob("fuzz_*") if p.is_file() and "." not in p.name)
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for target, (ok, took, log) in zip(targets, pool.map(fuzz_one, targets)):
            tally.add(ok, target.name.replace("_", " ", 1), took, log)


def packages_python():
    """A Python with the vendors' packages, in a virtual environment; None: they cannot be had."""
    python = OUT / "venv/bin/python"
    wanted = ("openai", "anthropic", "ollama", "pydantic", "schemathesis", "openapi_spec_validator")
    if python.exists() and run("venv", str(python), "-c", "import " + ", ".join(wanted))[0]:
        return python
    if not run("venv", sys.executable, "-m", "venv", str(OUT / "venv"))[0]:
        return None
    pip = (str(python), "-m", "pip", "install", "--quiet", "--timeout", "10", "--retries", "1")
    return python if run("venv pip", *pip, *wanted)[0] else None


def serve(tally):
    """The vendors' own packages against the server; the distribution has none of them."""
    if not done(tally, "build release"):
        return
    python = packages_python()
    scripts = sorted((ROOT / "tests/serve/sdk").glob("*_sdk.py"), key=lambda s: s.stem != "openapi_sdk")  # the longest first
    if not python:
        for script in scripts:
            tally.skip(script.stem, "its package could not be installed: out/logs/venv*.log")
        return
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        results = pool.map(lambda s: run(s.stem, str(python), str(s), "out/release/ingle"), scripts)
        for script, (ok, took, log) in zip(scripts, results):
            tally.add(ok, script.stem, took, log)


def client_python(tally, script):
    """A Python with what the script's line `packages` names, in an environment of its own: the clients want different
    versions of the same packages.  None: they cannot be had."""
    wanted = re.search(r"^# packages: (.*)$", script.read_text(), re.M)[1].split()
    folder, uv = OUT / "clients" / script.stem, OUT / "clients/uv/bin/uv"
    python, have = folder / "bin/python", folder / "packages"
    if have.exists() and have.read_text().split() == wanted:
        return python
    if not uv.exists() and not run("clients uv", "sh", "-c", f"{sys.executable} -m venv {OUT}/clients/uv && "
                                   f"{OUT}/clients/uv/bin/pip install --quiet --timeout 10 --retries 1 uv")[0]:
        return None
    if not run(f"clients {script.stem} venv", str(uv), "venv", "--quiet", "--clear", str(folder))[0] or \
            not run(f"clients {script.stem} packages", str(uv), "pip", "install", "--quiet", "--python", str(python),
                    *wanted)[0]:
        return None
    have.write_text(" ".join(wanted))
    return python


def clients(tally):
    """Programs that people use, against the server: 9 GB of packages, most of them Open WebUI's,
    so only when it is named."""
    if not done(tally, "build release"):
        return
    for script in sorted(s for s in (ROOT / "tests/serve/clients").glob("*.py") if "# packages:" in s.read_text()):
        python = client_python(tally, script)
        if not python:
            tally.skip(script.stem, f"its packages could not be installed: out/logs/clients_{script.stem}_*.log")
            continue
        log = LOGS / f"client_{script.stem}.log"
        start = time.monotonic()
        with log.open("w") as out:
            status = subprocess.run((str(python), "-W", "ignore", str(script), "out/release/ingle"), cwd=ROOT,
                                    stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT).returncode
        if status == 77:
            tally.skip(script.stem, "its program is not there")
        else:
            tally.add(status == 0, f"client {script.stem}", f"{time.monotonic() - start:.0f} s", log)


GATE = (checks, release, asan, tsan, serve, fuzz, clang, tidy)
STAGES = {f.__name__: f for f in (*GATE, clients)}
NEEDS = {"release": "build release", "checks": "build release", "serve": "build release", "clients": "build release",
         "asan": "build asan", "tsan": "build tsan", "fuzz": "build fuzz"}  # others: their own name


def main(names):
    unknown = [n for n in names if n not in STAGES]
    if unknown:
        print(__doc__ + "\nstages: " + " ".join(STAGES))
        return 0 if unknown == ["--help"] else 2
    LOGS.mkdir(parents=True, exist_ok=True)
    tally = Tally()
    names = names or [f.__name__ for f in GATE]
    needed = {NEEDS.get(n, n) for n in names}
    try:
        tally.behind = {what: tally.pool.submit(f, tally) for what, f in BEHIND.items() if what in needed}
        for name in names:
            STAGES[name](tally)
    finally:
        tally.pool.shutdown(cancel_futures=True)
    if tally.skipped:
        print(f"{tally.skipped} skipped: what they need is not on this machine")
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
