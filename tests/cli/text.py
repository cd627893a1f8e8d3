#!/usr/bin/env python3
"""text.py INGLE HELLO - text in any encoding, and letters at a terminal, as a user gives them."""
import json, os, subprocess, sys, tempfile, unittest

from cli import INGLE, SANITIZED, Terminal, run

ASK, WANT = "Capital of Japan?", "The capital of Japan is Tokyo.\n"
LETTERS = "Größe 漢字 😀 é"
MARKS = {"utf-8-sig": b"", "utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff", "utf-32-le": b"\xff\xfe\0\0",
         "utf-32-be": b"\0\0\xfe\xff"}


def marked(text, encoding):
    return MARKS[encoding] + text.encode(encoding)


def ingle(*args, stdin=b""):
    return subprocess.run([INGLE, *args], input=stdin, capture_output=True, timeout=300)


class Encodings(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, data, name="text"):
        path = os.path.join(self.folder.name, name)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def ok(self, *args, stdin=b""):
        r = ingle(*args, stdin=stdin)
        self.assertEqual(r.returncode, 0, (args, r.stderr))
        return r.stdout.decode()

    def refuses(self, *args, says, code=1, stdin=b""):
        r = ingle(*args, stdin=stdin)
        self.assertEqual(r.returncode, code, (args, r.stderr))
        for text in says:
            self.assertIn(text, r.stderr.decode(), args)

    def test_a_mark_names_the_encoding(self):
        quiet = ("run", "-q", "--temp", "0")
        schema = {"type": "object", "properties": {"größe": {"const": "漢字"}}, "required": ["größe"],
                  "additionalProperties": False}
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]
        for e in list(MARKS)[2:3] if SANITIZED else MARKS:
            text = self.file(marked(ASK + "\r\n", e))
            self.assertEqual(self.ok(*quiet, "-f", text), WANT, e)
            self.assertEqual(self.ok(*quiet, stdin=marked(ASK + "\n", e)), WANT, e)
            self.assertEqual(self.ok(*quiet, "--lines", stdin=marked(f"{ASK}\r\n\r\n{ASK}", e)), WANT * 2, e)
            self.assertEqual(self.ok(*quiet, "--grammar", self.file(marked('root ::= "größe 😀"', e)), "x"), "größe 😀\n", e)
            out = self.ok(*quiet, "--json-schema", self.file(marked(json.dumps(schema, ensure_ascii=False), e)), "x")
            self.assertEqual(json.loads(out), {"größe": "漢字"}, e)
            seen = self.ok("render", "--tools", self.file(marked(json.dumps(tools), e)), "x")
            self.assertIn("get_weather", seen)
            talk = [{"role": "user", "content": LETTERS}]
            self.assertIn(LETTERS, self.ok("render", "-f", self.file(marked(json.dumps(talk), e))))
            out = self.ok("render", "--jsonl", stdin=marked(json.dumps({"messages": talk}) + "\n", e))
            self.assertIn(LETTERS, json.loads(out)["prompt"])
            self.assertIn("Your name is Ada.", self.ok("chat", "--temp", "0", stdin=marked("My name is Ada.\r\nWhat is my name?\r\n", e)))
            self.assertEqual(self.ok("tokenize", stdin=marked("I am nano", e)), self.ok("tokenize", "I am nano"), e)
            file = self.file(marked("Always answer with the word nano.", e), "system")
            one, two = self.ok(*quiet, "--system-file", file, ASK), self.ok(*quiet, "--system", "Always answer with the word nano.", ASK)
            self.assertEqual(one, two, e)

    def test_what_is_no_text_is_refused(self):
        bad = self.file("Größe".encode("latin-1"), "latin")
        place = ["latin: byte 0xF6 at offset 2 is no UTF-8"]
        for args in (["run", "-f", bad], ["run", "--lines", "-f", bad], ["run", "--grammar", bad, "x"], ["chat", "--system-file", bad],
                     ["run", "--json-schema", bad, "x"], ["run", "--tools", bad, "x"], ["render", "-f", bad],
                     ["tokenize", "-f", bad], ["parse", "-f", bad], ["eval", "--text", bad]):
            self.refuses(*args, says=place)
        for command in ("run", "chat", "tokenize", "render"):
            self.refuses(command, stdin=b"caf\xe9\n", says=["standard input: byte 0xE9 at offset 3"])
        self.refuses("run", stdin="ab".encode("utf-16-le"), says=["NUL byte at offset 1", "byte order mark"])
        self.refuses("run", stdin=b"\xff\xfea\0b", says=["standard input", "ends at offset 5", "UTF-16"])
        self.refuses("run", b"caf\xe9", says=["argument 1: byte 0xE9 at offset 3"])
        self.refuses("run", "a", b"caf\xe9", says=["argument 2: byte 0xE9 at offset 3"])
        for name in ("--system", "--stop", "--regex", "--prompt"):
            self.refuses("run", name, b"\xff", "x", says=[f"'{name}': byte 0xFF at offset 0"], code=2)
        # A line of JSON lines is wrong alone, and names of files are any bytes.
        out = self.ok("tokenize", "--jsonl", stdin=b'{"text": "\xff"}\n{"text": "a"}\n').splitlines()
        self.assertIn("error", json.loads(out[0]))
        self.assertIn("ids", json.loads(out[1]))
        path = os.path.join(self.folder.name.encode(), b"caf\xe9")
        with open(path, "w") as f:
            f.write(ASK)
        self.assertEqual(self.ok("run", "-q", "--temp", "0", "-f", path), WANT)

    def test_line_ends_inside_are_text(self):
        with_cr, without = (self.ok("tokenize", "-f", self.file(t)) for t in (b"a\r\nb", b"a\nb"))
        self.assertNotEqual(with_cr, without)
        self.assertEqual(self.ok("tokenize", "--decode", stdin=with_cr.encode()), "a\r\nb\n")

    def test_there_is_no_prompt(self):
        for stdin in (b"", b"\n", b" \t\r\n\n", b"\xef\xbb\xbf", b"\xff\xfe"):
            self.refuses("run", stdin=stdin, says=["there is no prompt on standard input"], code=2)
            self.refuses("run", "--lines", stdin=stdin, says=["there is no prompt on standard input"], code=2)
            self.refuses("run", "-f", self.file(stdin, "nothing"), says=["there is no prompt in", "nothing"], code=2)
        for args in ([""], ["-p", " "], ["", " "]):
            self.refuses("run", *args, says=["there is no prompt"], code=2)
        self.refuses("run", "--raw", says=["there is no prompt"], code=2)
        with open("/dev/null") as nothing:
            # Known before the weights are read, and before it is said that they do not fit.
            r = subprocess.run([INGLE, "run", "--memory", "8M"], stdin=nothing, capture_output=True, text=True)
        self.assertEqual((r.returncode, "no prompt" in r.stderr), (2, True), r.stderr)
        self.assertTrue(self.ok("run", "-q", "--raw", "--temp", "0", "-n", "4", ""))


class Letters(unittest.TestCase):
    """ingle chat on a terminal that sends UTF-8."""

    def talk(self, *pieces, env=None):
        """What the conversation holds after these pieces were typed, each behind the answer of the one before."""
        with tempfile.TemporaryDirectory() as d:
            t = Terminal(INGLE, "chat", "--temp", "0", env=env)
            t.wait_for("> ")
            for piece in (*pieces, f"/save {d}/größe.json\r"):
                os.write(t.fd, piece.encode() if isinstance(piece, str) else piece)
                t.wait_for_pattern(r"\n> \Z")
            t.send("/quit\r")
            self.assertEqual(t.end(), 0)
            with open(f"{d}/größe.json") as f:
                return [m["content"] for m in json.load(f)]

    def test_letters_in_every_locale(self):
        for name in ("C.UTF-8", "C", "POSIX", "de_DE.UTF-8", "nonsense", ""):
            self.assertEqual(self.talk(LETTERS + "\r", env={"LC_ALL": name})[0], LETTERS, name)
        self.assertEqual(self.talk(LETTERS + "\r", env={"LC_NUMERIC": "de_DE.UTF-8"})[0], LETTERS)

    def test_commands_have_letters(self):
        self.assertEqual(self.talk("/system Grüße 漢字\r")[0], "Grüße 漢字")

    def test_editing_goes_by_characters(self):
        self.assertEqual(self.talk("a漢😀\x7f\x02é\r")[0], "aé漢")

    def test_the_arrow_brings_letters_back(self):
        self.assertEqual(self.talk(LETTERS + "\r", "\x1b[A\r")[::2], [LETTERS, LETTERS])

    def test_a_paste_is_one_message(self):
        for end in ("\r", "\n", "\r\n"):
            text = f"Größe{end}{end}/quit{end}  漢字"
            self.assertEqual(self.talk(f"\x1b[200~{text}\x1b[201~ 😀\r")[0], "Größe\n\n/quit\n  漢字 😀")
        long = "\r".join(f"{i} ü" for i in range(300))
        self.assertEqual(self.talk(f"x\x1b[200~{long}\x1b[201~\x01y\r")[0], "yx" + long.replace("\r", "\n"))

    def test_a_paste_without_brackets(self):
        self.assertEqual(self.talk("Größe\r漢字\ré\r")[0], "Größe\n漢字\né")

    def test_bytes_that_are_no_letters_show(self):
        self.assertEqual(self.talk(b"caf\xe9 \xe6\xbc\xc3\xbcx\r")[0], "caf\ufffd \ufffdüx")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
