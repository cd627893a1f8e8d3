#!/usr/bin/env python3
"""docs.py INGLE - runs the commands of ingle and curl that README.md and docs/ print, as they are printed: in a
folder where FILE, question.txt and the like exist, and with the port of a server that runs; and builds
examples/hello.c against an installed package as docs/use/library.md says."""
import contextlib, glob, os, re, shlex, shutil, socket, subprocess, sys, tempfile, unittest

sys.path.insert(0, "tests/serve")
from client import TIMEOUT, Server, main

INGLE, ROOT = os.path.abspath(sys.argv[1]), os.getcwd()
MODEL = "tests/data/nano-v4/nano-v4-MXFP4.gguf"
FILES = {"models.ini": "[one]\nmodel = FILE\n", "question.txt": "What is the capital of Norway?",
         "text.txt": "What is the capital of Norway? " * 40, "document.txt": "What is the capital of Norway? " * 60,
         "keys": "secret\n",
         "chess.gbnf": 'root ::= ("e4" | "d4") " " ("e5" | "d5")',
         "person.json": '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}'}
ENDLESS = {"chat": "/quit\n", "daemon": ""}  # and what is said to them


def blocks(text):
    """What stands in fences of shell or of nothing, and indented; the first column of a table."""
    for m in re.finditer(r"^```(\w*)\n(.*?)^```|((?:^ {4}[^\n]*\n)+)|^\| `(ingle [^`\n]*)`", text, re.M | re.S):
        if m[1] in ("", "sh", None):
            yield m[2] or m[3] or m[4]


def commands(block):
    """Those of ingle and curl, each with the lines that continue it."""
    whole = ""
    for line in block.split("\n"):
        whole += re.sub(r"^ {4}", "", line)
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        if re.match(r"(\$ )?(ingle|curl) ", whole):
            try:
                shlex.split(whole, comments=True)
            except ValueError:  # a quotation goes on
                whole += "\n"
                continue
            yield whole.removeprefix("$ ")
        whole = ""


def other_port(word):
    """The same address with a port that nobody has: others on this machine may have the printed one."""
    if not re.fullmatch(r"127\.0\.0\.1:\d+", word):
        return word
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


class Docs(unittest.TestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.home = self.stack.enter_context(tempfile.TemporaryDirectory())
        for name, text in FILES.items():
            with open(os.path.join(self.home, name), "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
                f.write(text)
        for name in ("FILE", "MODEL", "model.gguf"):
            os.symlink(os.path.join(ROOT, MODEL), os.path.join(self.home, name))
        os.symlink(os.path.join(ROOT, "tests/data/goldens/deepseek_v4_published"), os.path.join(self.home, "DIR"))
        os.symlink(os.path.join(ROOT, "share"), os.path.join(self.home, "share"))
        os.makedirs(os.path.join(self.home, "bin"))
        os.makedirs(os.path.join(self.home, "models"))
        os.symlink(os.path.join(ROOT, MODEL), os.path.join(self.home, "models/one.gguf"))
        os.makedirs(os.path.join(self.home, ".codex"))
        os.symlink(INGLE, os.path.join(self.home, "bin/ingle"))
        self.env = {**os.environ, "HOME": self.home, "PATH": f"{self.home}/bin:{os.environ['PATH']}"}
        self.env.pop("XDG_CACHE_HOME", None)

    def serve(self, *options):
        here = os.getcwd()
        os.chdir(self.home)
        try:
            return self.stack.enter_context(Server(INGLE, *options))
        finally:
            os.chdir(here)

    def run_one(self, command, server):
        words = shlex.split(command, comments=True)
        if words[0] == "curl":
            command = command.replace("curl ", "curl -fsS ", 1).replace("http://127.0.0.1:8080", server.url)
        r = subprocess.run(command, shell=True, cwd=self.home, env=self.env, capture_output=True, text=True,
                           input=ENDLESS.get(words[1], ""), timeout=TIMEOUT)
        self.assertEqual(r.returncode, 0, (command, r.stdout[-500:], r.stderr[-500:]))

    def test_as_printed(self):
        n, server = 0, self.serve("--slot-save-path", ".")
        for path in ["README.md", *sorted(glob.glob("docs/**/*.md", recursive=True))]:
            with open(path) as f:
                text = f.read()
            for command in (c for b in blocks(text) for c in commands(b)):
                words = shlex.split(command, comments=True)
                if words[0] == "curl" and not shutil.which("curl"):
                    continue
                with self.subTest(path=path, command=command):
                    n += 1
                    if words[:2] == ["ingle", "serve"]:
                        self.serve(*map(other_port, words[2:]))
                    else:
                        self.run_one(command, server)
        self.assertGreater(n, 25)

    def test_library(self):
        """A package under any prefix; libraries with sanitizers want their flags, too."""
        build = os.path.dirname(INGLE)
        if os.path.basename(build) != "release" or not all(map(shutil.which, ("cc", "cmake", "pkg-config"))):
            self.skipTest("a release build, cc, cmake and pkg-config are needed")
        to = os.path.join(self.home, "usr")
        subprocess.run(["cmake", "--install", build, "--prefix", to], check=True, stdout=subprocess.DEVNULL)
        with open("docs/use/library.md") as f:
            line = re.search(r"^cc examples/hello.c .*$", f.read(), re.M)[0].replace("-o hello", f"-o {to}/hello")
        with open(os.path.join(to, "own.c"), "w") as f:  # a host may use any name that does not begin with ingle_
            f.write("#include <stdlib.h>\n" + "".join(f"void {name}(void);\nvoid {name}(void) {{ abort(); }}\n" for name in (
                "report", "near_word", "pool_create", "file_open", "mem_alloc", "clock_now", "str_init", "model_load",
                "sha256_init", "kern_table", "device_create")))
        line = line.replace("cc examples/hello.c", f"cc examples/hello.c {to}/own.c")
        pc = next(os.path.dirname(p) for p in glob.glob(f"{to}/**/ingle.pc", recursive=True))
        r = subprocess.run(line.replace("./hello", f"{to}/hello"), shell=True, capture_output=True, text=True,
                           env={**os.environ, "PKG_CONFIG_PATH": pc}, timeout=TIMEOUT)
        self.assertEqual((r.returncode, r.stdout), (0, "The capital of Norway is Oslo.\n"), r.stderr[-800:])


if __name__ == "__main__":
    main()
