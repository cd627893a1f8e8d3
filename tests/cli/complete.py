#!/usr/bin/env python3
"""complete.py INGLE - completions of shells as bash sees them (zsh and fish check theirs where they are installed), and
'ingle serve --config FILE'; and what ./run says while it builds."""
import fcntl, json, os, pty, re, shutil, signal, subprocess, sys, tempfile, unittest

ASK = """source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ingle; printf '%s\\n' "${COMPREPLY[@]}"
"""


def ingle(*arguments):
    return subprocess.run([INGLE, *arguments], capture_output=True, text=True, check=False)


class Completion(unittest.TestCase):
    def offered(self, *words):
        with tempfile.NamedTemporaryFile("w") as f:
            f.write(ingle("help", "bash").stdout)
            f.flush()
            r = subprocess.run(["bash", "-c", ASK, "x", f.name, "ingle", *words], capture_output=True, text=True, check=False)
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        return r.stdout.split()

    def test_bash(self):
        self.assertEqual(self.offered("se"), ["serve"])
        self.assertIn("quantize", self.offered(""))
        self.assertEqual(self.offered("serve", "--models"), ["--models", "--models-max"])
        self.assertEqual(self.offered("chat", "--models"), [])
        self.assertEqual(self.offered("chat", "--kv", "f"), ["f32", "f16", "fp8", "f16v"])
        self.assertEqual(self.offered("chat", "--kv", "=", "f3"), ["f32"])
        self.assertEqual(self.offered("chat", "--ctx", ""), [])
        self.assertIn("zsh", self.offered("help", ""))
        self.assertEqual(self.offered("chat", "-m", "tests/data/nano/nano-gemma4-Q4"), ["tests/data/nano/nano-gemma4-Q4_K_M.gguf"])
        self.assertIn("tests/data", self.offered("serve", "--store", "tests/d"))

    def test_every_option_is_offered(self):
        """Each shell has each option of each command that --help has."""
        bash, zsh, fish = (ingle("help", s).stdout for s in ("bash", "zsh", "fish"))
        commands = re.findall(r"^  ([a-z]+) ", ingle("--help").stdout, re.M)
        self.assertGreater(len(commands), 10)
        for c in commands:
            names = set(re.findall(r"--([a-z-]+)", " ".join(re.findall(r"^  (?:-.,|   ) (--[a-z-]+)", ingle(c, "--help-all").stdout, re.M))))
            mine = set(re.search(rf"^    {c}\)\n        options='(.*)--help --help-all'", bash, re.M)[1].replace("--", "").split())
            self.assertEqual(mine, names - {"help"}, c)
            block = re.search(rf"^    {c}\)\n        _arguments(.*?);;", zsh, re.M | re.S)[1]
            self.assertEqual(set(re.findall(r"^            \*?'--([a-z-]+)", block, re.M)) - {"help", "help-all"}, names - {"help"}, c)
            for n in names - {"help"}:
                self.assertRegex(fish, rf"(?m)from [a-z ]*\b{c}\b[a-z ]*' -l {n}\b")

    def test_help(self):
        """--help shows the usual options and counts the others; texts have at most two sentences."""
        for c, most in (("chat", 25), ("run", 25), ("serve", 25), ("bench", 20), ("eval", 20), ("doctor", 20), ("models", 10)):
            short, whole = (ingle(c, o).stdout for o in ("--help", "--help-all"))
            shown, every = (re.findall(r"^  (?:-.,|   ) --([a-z0-9-]+)", t, re.M) for t in (short, whole))
            self.assertTrue(len(shown) <= most and set(shown) <= set(every), (c, len(shown)))
            self.assertIn("quiet", shown)
            self.assertNotIn("--help-all", whole)
            more = re.search(r"\n\n--help-all shows (\d+) more options\n$", short)
            self.assertEqual(int(more[1]) if more else 0, len(every) - len(shown), c)
        self.assertLess(ingle("chat", "--help").stdout.count("\n"), 70)
        self.assertEqual(ingle("help", "serve", "--help-all").stdout, ingle("serve", "--help-all").stdout)
        for name in "--host", "--port", "--parallel", "--api-key-file", "-m, --model", "-c, --ctx":
            self.assertIn(f" {name} ", ingle("serve", "--help").stdout)
        manual = ingle("help", "man").stdout.replace("\\", "")
        for name, text in re.findall(r"^\| `--([\w-]+)[^|]*\|[^|]*\| (.*) \|$", ingle("help", "markdown").stdout, re.M):
            self.assertIn(f"--{name}", manual)
            self.assertLessEqual(len(re.findall(r"\.(?: |$)", re.sub(r"e\.g\.|[\[(].*", "", text))), 2, (name, text))

    def test_other_shells_read_theirs(self):
        for shell in "bash", "zsh", "fish":
            if not shutil.which(shell):
                continue
            with tempfile.NamedTemporaryFile("w") as f:
                f.write(ingle("help", shell).stdout)
                f.flush()
                r = subprocess.run([shell, "-n", f.name], capture_output=True, text=True, check=False)
            self.assertEqual((r.returncode, r.stderr), (0, ""), shell)


class Config(unittest.TestCase):
    def run_with(self, text, *more):
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
            f.write(text)
            f.flush()
            return ingle("serve", "--plan", "--config", f.name, *more)

    def test_file(self):
        text = "# a comment\nctx = 1024\nkv = q8_0\nthink = true\nlock = off\nnp = 2\n"
        plan = json.loads(self.run_with(text).stdout)
        self.assertEqual((plan["ctx"], plan["kv"]), (1024, "q8_0"))
        plan = json.loads(self.run_with(text, "--ctx", "2048").stdout)
        self.assertEqual((plan["ctx"], plan["kv"]), (2048, "q8_0"))

    def test_limits(self):
        """Their old names are understood everywhere, with a note that has the new spelling."""
        r = self.run_with("ctx = 1024\nmax-body = 2M\nlimit = max-waiting=7\nlimit = unread=8K\n", "--max-bodies=8M", "--half-close-ok",
                          "--limit", "stall-timeout=5")
        self.assertEqual((r.returncode, json.loads(r.stdout)["ctx"]), (0, 1024), r.stderr)
        for note in ("--max-bodies 8M: it is --limit bodies=BYTES here", "max-body 2M: it is --limit body=BYTES here",
                     "--half-close-ok: it is --limit half-close-ok=on here"):
            self.assertIn(f"ingle: note: {note}", r.stderr)
        for words, why in ((("--max-body", "x"), "option '--limit body' needs a size such as 512M, not 'x'"),
                           (("--limit", "body"), "'--limit' needs NAME=VALUE, not 'body': waiting, "),
                           (("--limit", "body=1"), "option '--limit body': 1 is outside 1024 to ")):
            r = ingle("serve", "--plan", *words)
            self.assertEqual(r.returncode, 2)
            self.assertIn(why, r.stderr)
        self.assertIn(".conf:1: ", self.run_with("max-body = 7\n").stderr)
        self.assertIn("it is --limit here, of serve", ingle("run", "--max-body", "1M", "x").stderr)
        shown = ingle("serve", "--help-all").stdout
        self.assertIn("\n          body=BYTES ", shown)
        self.assertNotIn("--max-body", shown)

    def test_errors(self):
        for text, word in (("ctx = x\n", ".conf:1: "), ("\nctxx = 1\n", ".conf:2: "), ("[a]\n", "--models"), ("config = y\n", "no other file"),
                           ("think = maybe\n", "true or false"), ("plan\n", "key = value")):
            r = self.run_with(text)
            self.assertEqual((r.returncode, r.stdout), (1, ""), text)
            self.assertIn(word, r.stderr)
        self.assertEqual(ingle("serve", "--config", f"{__file__}/none").returncode, 1)
        r = self.run_with("ctx = x\n[a]\nthink = maybe\nnp = 2\nctxx = 1\n")
        lines = r.stderr.splitlines()
        self.assertEqual([line.split(".conf:")[1][0] for line in lines[:-1]], list("1235"), r.stderr)
        self.assertIn("4 lines of '", lines[-1])
        self.assertIn(".conf:1: ", lines[-1])
        r = self.run_with("ctxx = 1\n" * 1000)
        self.assertEqual(len(r.stderr.splitlines()), 51)
        self.assertIn("1000 lines of '", r.stderr)


CMAKE = """#!/bin/sh
case "$*" in
--preset*) [ -z "$NO_PRESET" ] || { echo no compiler; exit 1; } ;;
*) echo '[1/2] Building C object a.o'; [ -z "$NO_BUILD" ] || { echo 'a.c:1: error'; exit 1; }; echo '[2/2] Linking C executable ingle'; chmod +x out/release/ingle ;;
esac
"""

INGLE_SCRIPT = """#!/bin/sh
case "$1 $2" in
'help serve') exit 0 ;;
'help '*) exit 2 ;;
esac
echo "ingle $*"
"""


class Run(unittest.TestCase):
    """./run, with a cmake and an ingle that only print."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = folder.name
        shutil.copy("run", self.home)
        for path, text in (("scripts/install.sh", "#!/bin/sh\n"), ("bin/cmake", CMAKE), ("bin/ninja", "#!/bin/sh\necho cc a.c\necho cc b.c\n"),
                           ("out/release/ingle", INGLE_SCRIPT)):
            self.script(path, text)

    def script(self, path, text):
        os.makedirs(os.path.dirname(f"{self.home}/{path}"), exist_ok=True)
        with open(f"{self.home}/{path}", "w", opener=lambda p, f: os.open(p, f, 0o644 if p.endswith("/ingle") else 0o755)) as f:
            f.write(text)

    def run_it(self, *words, terminal=False, **environment):
        env = {**os.environ, "PATH": f"{self.home}/bin:{os.environ['PATH']}", **environment}
        if not terminal:
            r = subprocess.run([f"{self.home}/run", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False,
                               start_new_session=True)
            return r.returncode, r.stdout, r.stderr
        ours, theirs = pty.openpty()
        p = subprocess.Popen([f"{self.home}/run", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
        os.close(theirs)
        out = b""
        try:
            while piece := os.read(ours, 65536):
                out += piece
        except OSError:  # the end of a terminal
            pass
        os.close(ours)
        return p.wait(), out.decode().replace("\r\n", "\n"), ""

    def test_run(self):
        rc, out, says = self.run_it()
        self.assertEqual((rc, out), (0, "ingle run\n"))
        self.assertEqual(says, "preparing the build: cmake looks at the compiler and the libraries; log: out/run.log\n"
                               "building: about 2 files, some minutes at the first time; log: out/run.log\n")
        self.assertEqual(self.run_it(), (0, "ingle run\n", "building what has changed; log: out/run.log\n"))
        rc, out, _ = self.run_it("-m", "x", terminal=True)
        self.assertEqual(rc, 0)
        self.assertIn("\r[1/2] \r[2/2] \nchat:  ", out)
        self.assertRegex(out, r"chat: .*\nserve: .*\ndocs: .*\ningle chat -m x\n$")
        with open(f"{self.home}/out/run.log") as f:
            self.assertEqual(f.read().count("\n"), 3)
        for terminal in False, True:
            self.assertTrue(self.run_it("serve", "-m", "x", terminal=terminal)[1].endswith("ingle serve -m x\n"))
            self.assertTrue(self.run_it("serve it?", terminal=terminal)[1].endswith("ingle run serve it?\n"))
        for terminal in False, True:
            for why, word in (("NO_PRESET", "no compiler"), ("NO_BUILD", "a.c:1: error")):
                rc, out, says = self.run_it(terminal=terminal, **{why: "1"})
                self.assertEqual(rc, 1, (terminal, why))
                self.assertIn(word, out + says)
                self.assertRegex(out + says, rf"failed; the whole log is {self.home}/out/run.log\n$")

    def test_disk(self):
        self.script("bin/df", "#!/bin/sh\nprintf 'Filesystem blocks Used Available\\nnone 1 1 20480\\n'\n")
        rc, out, says = self.run_it()
        self.assertEqual((rc, out, says), (1, "", f"run: 20 MB are free in {self.home}/out, a build takes 250 MB\n"))
        os.chmod(f"{self.home}/out/release/ingle", 0o755)
        for terminal in False, True:
            rc, out, says = self.run_it(terminal=terminal, NO_BUILD="1")
            self.assertEqual(rc, 1)
            self.assertIn("run: the disk is full: 20 MB are free", out + says)

    def test_interrupted(self):
        self.script("bin/cmake", "#!/bin/sh\n[ \"$1\" != --preset ] || exit 0\necho '[1/2] x'\nkill -INT 0\nsleep 60\n")
        ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that ignores it cannot trap it, nor can its children
        self.addCleanup(signal.signal, signal.SIGINT, ours)
        for terminal in False, True:
            rc, out, says = self.run_it(terminal=terminal)
            self.assertEqual(rc, -signal.SIGINT)
            self.assertTrue((out + says).endswith("\nrun: interrupted; the next ./run goes on where this one stopped\n"), out + says)

    def test_two(self):
        with open(f"{self.home}/out/run.lock", "w") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            p = subprocess.Popen([f"{self.home}/run"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env={**os.environ, "PATH": f"{self.home}/bin:{os.environ['PATH']}"})
            self.assertEqual(p.stderr.readline(), "another ./run is at work in this folder: waiting for it\n")
        out, _ = p.communicate()
        self.assertEqual((p.returncode, out), (0, "ingle run\n"))


if __name__ == "__main__":
    INGLE = sys.argv.pop(1)
    unittest.main()
