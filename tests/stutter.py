#!/usr/bin/env python3
"""stutter.py [--seed N] [--limit SECONDS] [--share S] [--name TEXT] COMMAND... - runs a command on a machine that stutters:
any of its processes is stopped at any moment, for 20 to 1,500 ms, mostly short.

A test that passes here waits for states that stay.  With --seed the times and the choices are the same; what they meet is
not.  --share is the part of the time for which a process is stopped on average; --name restricts the stops to processes whose
command has the text.  A command that is over --limit is ended, and where its processes stood is shown.  The status is the
command's, 124 when it was over the limit.
"""
import argparse, ctypes, os, pathlib, random, signal, subprocess, sys, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import stacks

PR_SET_CHILD_SUBREAPER = 36
TICK = 0.01  # seconds
MEAN = 0.28  # of pause()


def pause(chance):
    """Seconds of a stop."""
    return chance.choice((chance.uniform(0.02, 0.08), chance.uniform(0.02, 0.08), chance.uniform(0.05, 0.3), chance.uniform(0.2, 1.5)))


class Stutter:
    def __init__(self, options):
        self.options = options
        self.chance = random.Random(options.seed)
        self.stopped = {}  # pid: when it goes on
        self.count, self.longest, self.met = 0, 0, set()

    def go_on(self, all_of_them=False):
        for pid in [p for p, when in self.stopped.items() if all_of_them or when <= time.monotonic()]:
            del self.stopped[pid]
            self.signal(pid, signal.SIGCONT)

    @staticmethod
    def signal(pid, number):
        try:
            os.kill(pid, number)
            return True
        except ProcessLookupError:
            return False

    def stop_some(self, seconds):
        """Each process that runs is stopped with the probability that makes its share: seconds have passed since the last time."""
        states = stacks.parents()
        for pid in stacks.descendants(os.getpid(), states):
            # one that is stopped already, by its test or by a debugger, is let be
            if pid in self.stopped or states[pid][1] in "Tt" or self.options.name not in stacks.command(pid):
                continue
            if self.chance.random() < self.options.share * seconds / MEAN / (1 - self.options.share):
                stop = pause(self.chance)
                if self.signal(pid, signal.SIGSTOP):
                    self.stopped[pid] = time.monotonic() + stop
                    self.count, self.longest = self.count + 1, max(self.longest, stop)
                    self.met.add(pid)

    @staticmethod
    def ended(child):
        """The status of the command, None while it runs.  What it has left behind is waited for, too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return child.returncode
            if pid == child.pid:
                child.returncode = os.waitstatus_to_exitcode(status)
            if not pid or pid == child.pid:
                return child.returncode

    def run(self, command):
        begun = time.monotonic()
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, env={**os.environ, "PYTHONFAULTHANDLER": "1"})
        status, before = None, begun
        while status is None and time.monotonic() - begun < self.options.limit:
            before, passed = time.monotonic(), time.monotonic() - before
            self.stop_some(passed)
            time.sleep(TICK)
            self.go_on()
            status = self.ended(child)
        self.go_on(all_of_them=True)
        if status is None:
            print(f"stutter: over {self.options.limit:.0f} s", flush=True)
            print("\n".join(stacks.end(child.pid)), flush=True)
            child.wait()
            status = 124
        left = stacks.descendants(os.getpid())
        if left:
            print("stutter: these outlive the command:", *stacks.show(left), sep="\n", flush=True)
            for pid in left:
                self.signal(pid, signal.SIGKILL)
        print(f"stutter: seed {self.options.seed}: status {status}, {time.monotonic() - begun:.0f} s, {self.count} stops of "
              f"{len(self.met)} processes, the longest {self.longest * 1000:.0f} ms", flush=True)
        return 0 if status == self.options.skip else status if status >= 0 else 128 - status


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--limit", type=float, default=600, help="seconds")
    p.add_argument("--share", type=float, default=0.3, help="of a process's time, less than 1 (default: %(default)s)")
    p.add_argument("--skip", type=int, default=0, help="a status of the command that is as good as 0")
    p.add_argument("--name", default="", help="only processes whose command has this text")
    p.add_argument("command", nargs=argparse.REMAINDER)
    options = p.parse_args()
    if not options.command or not 0 <= options.share < 1:
        p.error("a command is needed, and a share from 0 to below 1")
    # what a process of the command leaves behind becomes a child of this one
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return Stutter(options).run(options.command)


if __name__ == "__main__":
    sys.exit(main())
