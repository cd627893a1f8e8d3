#!/usr/bin/env python3
"""test_all.py - build and run tests and checks, and count them.

usage: test_all.py               the checks, and the tests of the release
       test_all.py all           the gate: these, and what sanitizers, the fuzz targets, clang, and two vendors' packages find
       test_all.py soak          hours: everything, with all that the gate leaves out
       test_all.py STAGE...      these stages of the gate; clients and fleet, which are in neither, install the programs of others

A stage counts each test program and each check as one.  What it printed is in out/logs/; the end of a
failed one is shown.  The last line is "N passed, N failed", with ", N skipped" where something that a test needs is not
on this machine.  The exit status is 0 when none failed.

Builds and the linters go on behind the tests, at the lowest priority: a test that waits leaves them the processors.
Seconds are those of the clock, with those of processors in brackets.
"""
import collections, concurrent.futures, json, os, pathlib, re, shutil, subprocess, sys, threading, time

import stacks

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "out"
LOGS = OUT / "logs"
JOBS = os.cpu_count() or 1
FUZZ_SECONDS = int(os.environ.get("FUZZ_SECONDS", "600"))
LONGEST = 3 * 3600  # seconds of one command: nothing waits for ever
# ... of a test program of the gate: the longest takes a minute on a quiet machine.  A wait inside of one ends before
# (tests/serve/wait.py).
GATE_LIMITS = {"release": 1200}
FUZZ_LIMITS = {name: (10, 1000) for name in ("grammar", "schema", "openai", "anthropic", "responses", "http")}  # seconds and MB of an input, sanitizers included: nothing grows
TAIL = 40  # lines of what a failed one printed, ...
HANGS = 200  # ... of one that was over its limit, which end with where its processes stood, ...
LINE = 300  # ... and characters of a line
OVER = "test_all.py: over "  # begins the line in a log after which it has where the processes stood
WAITERS = 2  # programs labelled "waits" that run beside one for each processor
DEAREST = 12  # test programs of a stage that are named with their seconds


def print_end(log):
    lines = log.read_text(errors="replace").splitlines()
    n = HANGS if any(line.startswith(OVER) for line in lines) else TAIL
    print("\n".join("     | " + line[:LINE] for line in lines[-n:]), flush=True)


class Tally:
    """Counts results and prints one line for each."""

    soak = False  # nothing is left out

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
                print_end(log)

    def skip(self, what, why):
        self.skipped += 1
        print(f"skip {what}: {why}", flush=True)


def run_to(log, limit, command, **more):
    """Runs a command with its output in a log, to which what hangs adds where: (status, seconds of processors, whether it
    was over its limit)."""
    late, lines = threading.Event(), []

    def stop():
        late.set()
        lines.extend(stacks.end(child.pid))

    with log.open("w") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **more)
        end = threading.Timer(limit, stop)
        end.start()
        _, status, used = os.wait4(child.pid, 0)
        end.cancel()
        end.join()
        child.returncode = os.waitstatus_to_exitcode(status)
    if late.is_set():
        with log.open("a") as out:
            out.write("\n".join(["", f"{OVER}{limit:.0f} s; its processes:", *lines, ""]))
    return child.returncode, used.ru_utime + used.ru_stime, late.is_set()


def run(name, *command):
    """Runs a command with its output in a log; returns (ok, what it took, log)."""
    log = LOGS / (name.replace("/", "_").replace(" ", "_") + ".log")
    start = time.monotonic()
    code, cpu, _ = run_to(log, LONGEST, command, cwd=ROOT)
    return code == 0, f"{time.monotonic() - start:.0f} s [{cpu:.0f}]", log


def one(tally, name, *command):
    ok, took, log = run(name, *command)
    tally.add(ok, name, took, log)
    return ok


def one_behind(tally, name, *command):
    return one(tally, name, "nice", "-n", "19", *command)


def build(tally, preset, targets="all"):
    return one_behind(tally, f"build {preset}", "sh", "-c",
                      f"cmake --preset {preset} -DINGLE_SANITIZE_ALL={'ON' if Tally.soak else 'OFF'} && cmake --build --preset {preset} -j{JOBS} --target {targets}")


def listed(preset, *which):
    """The test programs of a preset that are built there, by the choice of ctest, which leaves out the command of a
    program that does not exist yet: that is a target of the test's name."""
    subprocess.run(["cmake", "--preset", preset], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    out = subprocess.run(["ctest", "--test-dir", f"out/{preset}", *which, "--show-only=json-v1"],
                         cwd=ROOT, capture_output=True, text=True, check=False)
    tests = [] if out.returncode else json.loads(out.stdout)["tests"]
    here = str(OUT / preset)
    programs = {t.get("command", [f"{here}/{t['name']}"])[0] for t in tests}
    return sorted(os.path.basename(p) for p in programs if p.startswith(here))


def build_sanitized(tally, preset, *more):
    """Only the programs that are run, and those that Python tests start."""
    return build(tally, preset, " ".join(listed(preset, *which(preset)) + list(more)) or "all")


def which(preset):
    """What ctest runs there: the label soak is on what compares numbers that the release compares, or takes long."""
    labels = ["-L", "threads"] if preset == "tsan" else []
    return labels if Tally.soak else [*labels, "-LE", "^soak$"]


# What goes on behind the tests, in this order; each is a test itself.
BEHIND = {
    "build release": lambda tally: build(tally, "release", "all gpu_goldens" if Tally.soak else "all"),
    "build asan": lambda tally: build_sanitized(tally, "asan", "ingle", "hello"),
    "build tsan": lambda tally: build_sanitized(tally, "tsan"),
    "build fuzz": lambda tally: build(tally, "fuzz", "fuzzers"),
    "clang": lambda tally: one_behind(tally, "clang", "python3", "scripts/check_clang.py"),
    "tidy": lambda tally: one_behind(tally, "tidy", "python3", "scripts/tidy.py", *([] if Tally.soak else ["--changed"])),
}


def done(tally, name):
    """Waits for it; whether it went well."""
    return tally.behind[name].result()


def tests_of(preset, *which):
    """The tests that ctest would run, the dearest first: name, command, folder, environment, limit, status that skips,
    labels."""
    out = subprocess.run(["ctest", "--test-dir", f"out/{preset}", *which, "--show-only=json-v1"], cwd=ROOT,
                         capture_output=True, text=True, check=False)
    found = []
    for test in json.loads(out.stdout)["tests"] if out.returncode == 0 else []:
        has = {p["name"]: p["value"] for p in test["properties"]}
        env = dict(pair.split("=", 1) for pair in has.get("ENVIRONMENT", []))
        found.append((has.get("COST", 0), test["name"], test.get("command"), has.get("WORKING_DIRECTORY", ROOT), env,
                      has.get("TIMEOUT", LONGEST), has.get("SKIP_RETURN_CODE"), has.get("LABELS", [])))
    return [t[1:] for t in sorted(found, key=lambda t: -t[0])]


def run_test(preset, name, command, folder, env, limit, skips, _):
    """How it ended: "" is well; seconds of processors; and what it printed."""
    log = LOGS / preset / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    if not command:
        log.write_text("")
        return name, "not built", 0.0, log
    # Python programs write their stacks when they are told to end (stacks.py)
    limit = limit if Tally.soak else min(limit, GATE_LIMITS.get(preset, limit))
    code, cpu, late = run_to(log, limit, command, cwd=folder, env={**os.environ, "PYTHONFAULTHANDLER": "1", **env})
    how = f"over {limit:.0f} s" if late else "" if code == 0 else "skipped" if code == skips else \
        f"status {code}" if code > 0 else f"signal {-code}"
    return name, how, cpu, log


def run_tests(preset, tests):
    """Runs a program for each processor, the dearest first, and beside them WAITERS that mostly wait for sockets or clocks,
    while there are such; then all lanes run what is left.  What each gave."""
    waiting = collections.deque(t for t in tests if "waits" in t[-1])
    others = collections.deque(t for t in tests if "waits" not in t[-1])
    lock, ended = threading.Lock(), []

    def lane(mine, then):
        while True:
            with lock:
                test = mine.popleft() if mine else then.popleft() if then else None
            if not test:
                return
            ended.append(run_test(preset, *test))

    with concurrent.futures.ThreadPoolExecutor(JOBS + WAITERS) as pool:
        lanes = [pool.submit(lane, waiting, others) for _ in range(WAITERS)] + \
            [pool.submit(lane, others, waiting) for _ in range(JOBS)]
        for each in lanes:
            each.result()
    return ended


def ctest(tally, preset, *which):
    """Counts each test program of a preset.  out/logs/PRESET.txt has the seconds of processors of each."""
    if not done(tally, f"build {preset}"):
        return
    start, tests = time.monotonic(), tests_of(preset, *which)
    ended = sorted(run_tests(preset, tests), key=lambda r: -r[2])
    (LOGS / f"{preset}.txt").write_text("".join(f"{cpu:7.1f} {name} {how}\n" for name, how, cpu, _ in ended))
    bad = [r for r in ended if r[1] not in ("", "skipped")]
    good = sum(r[1] == "" for r in ended)
    with tally.lock:
        tally.skipped += len(ended) - good - len(bad)
        tally.passed += good
        tally.failed += len(bad) or not ended
        took = f"{time.monotonic() - start:.0f} s [{sum(r[2] for r in ended):.0f}]"
        print(f"{'FAIL' if bad or not ended else 'ok  '} {preset}: {good} of {len(ended)} test programs ({took})")
        print("     the dearest: " + ", ".join(f"{name} {cpu:.0f}" for name, _, cpu, _ in ended[:DEAREST]), flush=True)
        for name, how, _, log in bad:
            print(f"     {preset}/{name}: {how}")
            print_end(log)


def checks(tally):
    scripts = sorted((ROOT / "scripts").glob("*.sh"))
    one(tally, "rooms", "python3", "scripts/check_rooms.py", ".")
    one(tally, "text", "python3", "scripts/check_text.py")
    one(tally, "words", "python3", "scripts/check_words.py")
    one(tally, "length", "python3", "scripts/check_length.py")
    one(tally, "headers", "python3", "scripts/check_headers.py")
    one(tally, "openapi", "python3", "scripts/check_openapi.py")
    one(tally, "fields", "python3", "scripts/fields.py", "--check")
    if shutil.which("shellcheck"):
        one(tally, "shellcheck", "shellcheck", "run", "test", ".ci/run", *map(str, scripts))
    else:
        tally.skip("shellcheck", "it is not installed")
    if not shutil.which("codespell"):
        tally.skip("spelling", "codespell is not installed")
    if done(tally, "build release"):
        one(tally, "names", "python3", "scripts/check_names.py", "out/release")


def ptx(tally):
    """What the compiler has made of the kernels for cards."""
    if not done(tally, "build release"):
        return
    if not list((OUT / "release/gpu").glob("*.ptx")):
        tally.skip("ptx", "the build has found no clang")
        return
    one(tally, "ptx", "python3", "scripts/gpu_ptx.py")
    tools = [shutil.which("ptxas") or "/usr/local/cuda/bin/ptxas"]
    if not os.access(tools[0], os.X_OK):
        tally.skip("sass", "there is no ptxas")
    else:
        one(tally, "sass", "python3", "scripts/gpu_sass.py", "--ptxas", *tools)


def release(tally):
    ctest(tally, "release")


def clang(tally):
    done(tally, "clang")


def asan(tally):
    ctest(tally, "asan", *which("asan"))


def tsan(tally):
    ctest(tally, "tsan", *which("tsan"))


def tidy(tally):
    done(tally, "tidy")


def fuzz_one(target):
    name = target.name[len("fuzz_"):]
    corpus = OUT / "fuzz/corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    seeds = ROOT / "tests/fuzz/seeds" / name
    words = ROOT / "tests/fuzz" / f"{name}.dict"
    timeout, rss = FUZZ_LIMITS.get(name, (20, 3000))
    return run(f"fuzz {name}", str(target), f"-max_total_time={FUZZ_SECONDS}", f"-timeout={timeout}", f"-rss_limit_mb={rss}", "-print_final_stats=1",
               f"-artifact_prefix={OUT}/fuzz/{name}-", *([f"-dict={words}"] if words.is_file() else []), str(corpus), *([str(seeds)] if seeds.is_dir() else []))


def fuzz(tally):
    """Hours; the gate's stage asan runs the same targets over their seeds (tests/fuzz/replay.c)."""
    if not done(tally, "build fuzz"):
        return
    targets = sorted(p for p in (OUT / "fuzz").glob("fuzz_*") if p.is_file() and "." not in p.name)
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for target, (ok, took, log) in zip(targets, pool.map(fuzz_one, targets)):
            tally.add(ok, target.name.replace("_", " ", 1), took, log)


def packages_python(wanted):
    """A Python with these packages, in a virtual environment; None: they cannot be had."""
    python = OUT / "venv/bin/python"
    if python.exists() and run("venv", str(python), "-c", "import " + ", ".join(wanted))[0]:
        return python
    if not run("venv", sys.executable, "-m", "venv", str(OUT / "venv"))[0]:
        return None
    pip = ("timeout", "600", str(python), "-m", "pip", "install", "--quiet", "--timeout", "10", "--retries", "1")
    return python if run("venv pip", *pip, *wanted)[0] else None


def serve(tally):
    """The vendors' own packages against the server; the distribution has none of them."""
    if not done(tally, "build release"):
        return
    wanted = ["openai", "pydantic", "schemathesis", "openapi_spec_validator"]
    names = ["openapi_sdk", "openai_sdk"]  # the longest first
    if Tally.soak:
        wanted += ["anthropic", "ollama"]
        names += ["responses_sdk", "anthropic_sdk", "ollama_sdk", "matrix_sdk"]
    python = packages_python(wanted)
    scripts = [ROOT / f"tests/serve/sdk/{name}.py" for name in names]
    if not python:
        for script in scripts:
            tally.skip(script.stem, "its package could not be installed: out/logs/venv*.log")
        return
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        results = pool.map(lambda s: run(s.stem, str(python), str(s), "out/release/ingle"), scripts)
        for script, (ok, took, log) in zip(scripts, results):
            tally.add(ok, script.stem, took, log)


def over_stages(tally):
    """The goldens and the schedules of one arithmetic over 2, 3 and 4 processes."""
    for n in "123":
        for name in ("gemma4", "deepseek4", "nano_v4", "deepseek4_dspark", "deepseek4_mtp", "dflash", "dflash_files", "one_arithmetic",
                     "media_prompts", "stored"):
            one(tally, f"{name} over {n} stages", "env", f"GOLDEN_STAGES={n}", f"GOLDEN_CUTS={5 * int(n)}", "GOLDEN_PIECE=16",
                f"out/release/golden_{name}")


def long(tally):
    """What takes minutes each: kernels with more seeds at every level, combinations of settings, emulated cards, and servers under load, hostile clients and kills."""
    if not done(tally, "build release"):
        return
    for level in ("avx2", "avxvnni", "avx512", "avx512vnni", "avx512vbmi", "amx"):
        seeds = " ".join(map(str, range(2, 22)))
        one(tally, f"kerncheck {level}", "sh", "-c",
            f"for s in {seeds}; do out/release/kerncheck --cpu={level} --seed=$s || exit 1; done")
    one(tally, "combinations", "out/release/combinations", "--seconds=7200")
    one(tally, "pool", "out/release/unit_base_pool", "600")
    one(tally, "serve soak", "python3", "tests/serve/soak.py", "out/release/ingle", "--minutes", "30")
    one(tally, "serve hostile", "python3", "tests/serve/hostile.py", "out/release/ingle", "--minutes", "10")
    one(tally, "serve page", "python3", "tests/serve/page_long.py", "out/release/ingle")
    one(tally, "serve page, odd", "python3", "tests/serve/page_odd.py", "out/release/ingle")
    one(tally, "serve page, hostile answers", "python3", "tests/serve/page_hostile.py", "out/release/ingle")
    one(tally, "store kill", "python3", "tests/cli/store_kill.py", "out/release/ingle", "500")
    one(tally, "router kill", "python3", "tests/serve/router_kill.py", "out/release/ingle", "200")
    one(tally, "stages kill", "python3", "tests/serve/stages_kill.py", "out/release/ingle", "--kills", "200")
    one(tally, "stages seeds", "out/release/golden_stages", "--seeds=1:1000")
    stutter(tally)
    over_stages(tally)
    one(tally, "outputs", "python3", "tests/cli/outputs.py", "out/release/ingle", "1000")
    cards(tally)
    long_prompts(tally)


def stutter(tally):
    """The tests with several processes, on a machine that stops any of them at any moment."""
    for name, command, folder, env, _, skips, _ in tests_of("release", "-L", "^(serve|cli)$"):
        ok, took, log = run(f"stutter {name}", "env", f"--chdir={folder}", *(f"{k}={v}" for k, v in env.items()), "python3",
                            str(ROOT / "tests/stutter.py"), "--limit", "3600", "--skip", str(skips or 0), *command)
        tally.add(ok, f"stutter {name}", took, log)


def cards(tally):
    """The emulated card: lost at 50 calls of each case, each function of the driver failing and lacking, schedules of 1,000
    seeds, every golden with random cards, each barrier of a kernel removed."""
    one(tally, "card losses", "python3", "tests/gpu/losses.py", "out/release/ingle-emu", "50")
    one(tally, "card command", "python3", "tests/gpu/command.py", "out/release/ingle", "out/release/ingle-emu",
        "out/release/fake_cuda", "all")
    one(tally, "card schedules", "out/release/gpu_schedules", "0", "1000")
    for program in sorted(p for p in (OUT / "release").glob("gpu_golden_*") if os.access(p, os.X_OK)):
        seeds = " ".join(map(str, range(1, 9)))
        one(tally, f"card {program.name[4:]}", "sh", "-c",
            f"for s in {seeds}; do INGLE_TEST_SEED=$s {program} || exit 1; done")
    one(tally, "card mutants", "python3", "scripts/gpu_mutants.py")


def long_prompts(tally):
    """The prompts of scripts/long_cases.py, on slices of real widths."""
    slices = [OUT / "slices" / f"{shape}.gguf" for shape in ("gemma-31b", "gemma-26b-a4b")]
    (OUT / "slices").mkdir(exist_ok=True)
    made = [s.exists() or one(tally, f"slice {s.stem}", "python3", "scripts/make_slice.py", s.stem, "Q4_0", f"{s}.new",
                              "--vocab", "8192") and (pathlib.Path(f"{s}.new").rename(s) or True) for s in slices]
    if all(made):
        one(tally, "long prompts", "python3", "scripts/long_cases.py", "out/release/ingle", *map(str, slices))


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


def programs_of_others(tally, folder, what):
    """Scripts of a folder, each with the packages that it names; 77: what it needs is not there."""
    if not done(tally, "build release"):
        return
    for script in sorted(s for s in (ROOT / folder).glob("*.py") if "\n# packages:" in s.read_text()):
        python = client_python(tally, script)
        if not python:
            tally.skip(script.stem, f"its packages could not be installed: out/logs/clients_{script.stem}_*.log")
            continue
        log = LOGS / f"{what}_{script.stem}.log"
        start = time.monotonic()
        with log.open("w") as out:
            status = subprocess.run((str(python), "-W", "ignore", str(script), "out/release/ingle"), cwd=ROOT,
                                    stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT).returncode
        if status == 77:
            tally.skip(script.stem, "its program is not there")
        else:
            tally.add(status == 0, f"{what} {script.stem}", f"{time.monotonic() - start:.0f} s", log)


def clients(tally):
    """Programs that people use, against the server: 9 GB of packages, most of them Open WebUI's,
    so only when it is named."""
    programs_of_others(tally, "tests/serve/clients", "client")


def fleet(tally):
    """Routers that people use, in front of two replicas: 700 MB of packages, so only when it is named.  What is not
    installed of the distribution's is unpacked below out/."""
    folder = OUT / "clients/debian"
    if not all(shutil.which(p, path=f"{os.environ['PATH']}:/usr/sbin:{folder}/usr/sbin") for p in ("haproxy", "nginx")):
        folder.mkdir(parents=True, exist_ok=True)
        wanted = "haproxy nginx nginx-common liblua5.3-0 libopentracing-c-wrapper0 libopentracing1"
        run("fleet packages", "sh", "-c", f"cd {folder} && apt-get download {wanted} && "
            "for d in *.deb; do dpkg -x $d . && rm $d; done")
    programs_of_others(tally, "tests/serve/routers", "fleet")


SHORT = (checks, ptx, release)
GATE = (*SHORT, asan, tsan, serve, clang, tidy)
SOAK = (*GATE, long, fuzz)
STAGES = {f.__name__: f for f in (*SOAK, clients, fleet)}
NEEDS = {"release": "build release", "ptx": "build release", "checks": "build release", "serve": "build release", "clients": "build release",
         "fleet": "build release", "long": "build release", "asan": "build asan", "tsan": "build tsan", "fuzz": "build fuzz"}  # others: their own name
SETS = {"": SHORT, "all": GATE, "soak": SOAK}


def main(names):
    unknown = [n for n in names if n not in STAGES]
    if " ".join(names) in SETS:
        Tally.soak = names == ["soak"]
        if Tally.soak:  # tests take all their seeds (tests/unit/unit.h)
            os.environ["INGLE_TEST_SOAK"] = "1"
        names = [f.__name__ for f in SETS[" ".join(names)]]
    elif unknown:
        print(__doc__ + "\nstages: " + " ".join(STAGES))
        return 0 if unknown == ["--help"] else 2
    LOGS.mkdir(parents=True, exist_ok=True)
    tally = Tally()
    needed = {NEEDS.get(n, n) for n in names}
    start = time.monotonic()
    try:
        tally.behind = {what: tally.pool.submit(f, tally) for what, f in BEHIND.items() if what in needed}
        for name in names:
            STAGES[name](tally)
    finally:
        tally.pool.shutdown(cancel_futures=True)
    took = sum(os.times()[2:4])  # of all that has ended
    print(f"{time.monotonic() - start:.0f} s, {took:.0f} of processors")
    if names == [f.__name__ for f in SHORT]:
        print("./test all runs the rest: the tests with sanitizers, fuzz targets, clang, clang-tidy, vendors' packages")
    print(f"{tally.passed} passed, {tally.failed} failed" + (f", {tally.skipped} skipped" if tally.skipped else ""))
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
