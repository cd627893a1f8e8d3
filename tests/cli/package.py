#!/usr/bin/env python3
"""package.py INGLE - the Debian package: built by cpack, installed into a folder, started as its unit says, removed, purged.
Skipped where there is no dpkg, no root, or no complete release build."""
import os, pathlib, re, shutil, signal, socket, subprocess, sys, tempfile, unittest

INGLE = os.path.abspath(sys.argv.pop(1))
BUILD = pathlib.Path(INGLE).parent


class Package(unittest.TestCase):
    def dpkg(self, *words):
        r = subprocess.run(["dpkg", f"--root={self.root}", "--force-depends", "--force-script-chrootless", *words], capture_output=True, text=True,
                           check=False)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)

    def build(self, folder):
        # Without what takes long and says nothing here: compression, and the versions of libraries.
        subprocess.run(["cpack", "-G", "DEB", "-B", folder, "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=none", "-D", "CPACK_DEBIAN_PACKAGE_SHLIBDEPS=OFF",
                        "-D", "CPACK_STRIP_FILES=OFF"], cwd=BUILD, check=True, stdout=subprocess.DEVNULL)
        found = list(pathlib.Path(folder).glob("*.deb"))
        self.assertEqual(len(found), 1)
        return str(found[0])

    def serve(self):
        """The unit's command, with the files of this root; ready by systemd's protocol."""
        unit = (self.root / "usr/lib/systemd/system/ingle.service").read_text()
        command = re.search(r"^ExecStart=(.*)$", unit, re.M)[1].split()
        self.assertEqual(command, ["/usr/bin/ingle", "serve", "--config", "/etc/ingle/ingle.conf"])
        self.assertIn("Type=notify", unit)
        self.assertNotIn("@", unit)
        self.assertNotIn("LoadCredential", unit)
        conf = self.root / "etc/ingle/ingle.conf"
        (self.root / "state").mkdir()
        conf.write_text(conf.read_text().replace("/var/lib/ingle", f"{self.root}/state") + "port = 0\nthreads = 1\n")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.bind(str(self.root / "notify"))
            s.settimeout(300)
            with subprocess.Popen([str(self.root / "usr/bin/ingle"), "serve", "--config", str(conf)], stdout=subprocess.DEVNULL,
                                  env={**os.environ, "NOTIFY_SOCKET": str(self.root / "notify")}) as p:
                while b"READY=1" not in s.recv(4096):
                    pass
                p.send_signal(signal.SIGTERM)
                self.assertEqual(p.wait(), 0)

    @unittest.skipUnless(all(map(shutil.which, ("dpkg", "cpack"))) and os.geteuid() == 0, "dpkg, cpack and root are needed")
    @unittest.skipUnless(BUILD.name == "release" and all((BUILD / f).exists() for f in ("libingle.a", "ingle.1", "completion/ingle")),
                         "a complete release build is needed")
    def test_life(self):
        with tempfile.TemporaryDirectory() as d:
            self.root = pathlib.Path(d) / "root"
            (self.root / "var/lib/dpkg/updates").mkdir(parents=True)
            (self.root / "var/lib/dpkg/info").mkdir()
            (self.root / "var/lib/dpkg/status").touch()
            deb = self.build(d)
            self.dpkg("-i", deb)
            for path in ("usr/bin/ingle", "usr/lib/systemd/system/ingle.service", "etc/ingle/ingle.conf", "usr/share/man/man1/ingle.1",
                         "usr/share/bash-completion/completions/ingle", "usr/share/fish/vendor_completions.d/ingle.fish",
                         "usr/share/zsh/vendor-completions/_ingle"):
                self.assertTrue((self.root / path).is_file(), path)
            self.serve()
            self.dpkg("-i", deb)  # again: what was changed stays
            self.assertIn("port = 0", (self.root / "etc/ingle/ingle.conf").read_text())
            self.dpkg("-r", "ingle")
            self.assertFalse((self.root / "usr/bin/ingle").exists())
            self.assertFalse((self.root / "usr/lib/systemd/system/ingle.service").exists())
            self.assertTrue((self.root / "etc/ingle/ingle.conf").exists())
            self.dpkg("-P", "ingle")
            self.assertFalse((self.root / "etc/ingle").exists())

    @unittest.skipUnless(all(map(shutil.which, ("dpkg", "objdump", "awk"))), "dpkg, objdump and awk are needed")
    @unittest.skipUnless(BUILD.name == "release", "sanitizers have libraries of their own")
    def test_image(self):
        """The image has every library that the program is linked with; its build has what the tree has."""
        text = pathlib.Path("share/deploy/Containerfile").read_text()
        stages = text.split("\nFROM ")
        self.assertEqual(len(stages), 3)
        listed = set(re.search(r"--no-install-recommends \\\n *(.*?) \\\n", stages[2])[1].split())
        needed = re.findall(r"NEEDED +(\S+)", subprocess.run(["objdump", "-p", INGLE], capture_output=True, text=True, check=True).stdout)
        self.assertGreater(len(needed), 5)
        for library in needed:
            r = subprocess.run(["dpkg", "-S", f"*/{library}"], capture_output=True, text=True, check=False)
            owners = {line.split(":")[0] for line in r.stdout.splitlines()}
            self.assertTrue(owners & (listed | {"libc6"}), (library, owners))
        for command in re.findall(r"^(?:RUN|&&| &&) *(awk .*?) \|", text, re.M):
            names = subprocess.run(["sh", "-c", command.replace("/src/", "")], capture_output=True, text=True, check=True).stdout.split()
            self.assertIn("libcurl4-gnutls-dev", names)
        for copied in re.findall(r"^COPY (?!--from)(\S+)", text, re.M) + ["LICENSE", "NOTICE"]:
            self.assertTrue(os.path.exists(copied), copied)
        self.assertIn("out\n", pathlib.Path(".dockerignore").read_text())
        command = re.search(r"^ENTRYPOINT \[(.*)\]$", text, re.M)[1].replace('"', "").split(", ")
        r = subprocess.run([INGLE, *command[1:], "--plan"], capture_output=True, text=True, check=False)
        self.assertEqual(r.returncode, 0, r.stderr)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is needed")
    def test_units(self):
        """systemd understands all of the units: a word that it does not know would be left out with a line in a log."""
        for unit in BUILD / "ingle.service", BUILD / "debian/ingle.service":
            if not unit.exists():
                continue
            with self.subTest(unit=unit), tempfile.TemporaryDirectory() as d:
                text = re.sub(r"^ExecStart=\S+", f"ExecStart={INGLE}", unit.read_text(), flags=re.M)
                self.assertNotIn("@", text)
                (pathlib.Path(d) / "ingle.service").write_text(text)
                shutil.copy("share/ingle.socket", d)
                r = subprocess.run(["systemd-analyze", "verify", "--man=no", f"{d}/ingle.service", f"{d}/ingle.socket"], capture_output=True,
                                   text=True, check=False)
                ours = [line for line in (r.stdout + r.stderr).splitlines() if "ingle" in line]
                self.assertEqual((r.returncode, ours), (0, []))

    def test_scripts(self):
        """They are no more than a shell can read, and do nothing without systemd."""
        for name in "postinst", "prerm", "postrm":
            subprocess.run(["sh", "-n", f"share/debian/{name}"], check=True)
            for action in "configure", "remove", "upgrade":
                r = subprocess.run(["sh", f"share/debian/{name}", action], capture_output=True, check=False, env={**os.environ, "DPKG_ROOT": f"{__file__}/none"})
                self.assertEqual((r.returncode, r.stdout, r.stderr), (0, b"", b""), (name, action))


if __name__ == "__main__":
    unittest.main()
