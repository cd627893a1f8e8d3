#!/usr/bin/env python3
"""stacks.py PID... - where processes and all that they have started stand: what each waits for, and its stack.

A program in C is shown by gdb, where that is installed, else by what the kernel says of its threads.  One in Python writes
its stacks itself, to its standard error, when it gets SIGABRT, which ends it: only end() does that, and only in processes
that were started with PYTHONFAULTHANDLER=1.
"""
import os, pathlib, shutil, signal, subprocess, sys, time

LINE = 160  # characters of a line that are shown
FRAMES = 12  # of a thread
THREADS = 24  # of a process
PATIENCE = 60  # seconds for what gdb says of one process


def read(path):
    try:
        return pathlib.Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""


def parents():
    """The parent and the state of every process: {pid: (parent, state)}."""
    out = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            fields = read(f"/proc/{entry.name}/stat").rpartition(")")[2].split()
            if fields:
                out[int(entry.name)] = int(fields[1]), fields[0]
    return out


def descendants(root, table=None):
    """The processes that root has started, and theirs, parents first; without root, and without those that have ended.
    table: what parents() has returned."""
    children, found = {}, []
    for pid, (parent, state) in (table or parents()).items():
        children.setdefault(parent, []).append((pid, state))
    wanted = [root]
    while wanted:
        for pid, state in sorted(children.get(wanted.pop(0), [])):
            wanted.append(pid)
            if state not in "ZX":
                found.append(pid)
    return found


def command(pid):
    return " ".join(read(f"/proc/{pid}/cmdline").replace("\0", " ").split())[:LINE] or "[" + read(f"/proc/{pid}/comm").strip() + "]"


def is_python(pid):
    return os.path.basename(os.path.realpath(f"/proc/{pid}/exe")).startswith("python")


def has_handler(pid):
    """Whether SIGABRT makes this process write its stacks."""
    caught = [line.split()[1] for line in read(f"/proc/{pid}/status").splitlines() if line.startswith("SigCgt:")]
    return is_python(pid) and caught and int(caught[0], 16) >> (signal.SIGABRT - 1) & 1


def by_kernel(pid):
    """A line for each thread: its name, its state, and the function and the call of the kernel that it waits in."""
    lines = []
    for task in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*"))[:THREADS]:
        status = dict(line.split(":\t", 1) for line in read(task / "status").splitlines() if ":\t" in line)
        lines.append(f"  thread {task.name} {status.get('Name', '?')}: {status.get('State', '?')}, in {read(task / 'wchan') or '?'}, "
                     f"call {' '.join(read(task / 'syscall').split()[:4]) or '?'}")
    return lines


def by_gdb(pid):
    try:
        r = subprocess.run(["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "set pagination off", "-ex", f"thread apply all bt {FRAMES}"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return ["  gdb said nothing in time"]
    # without the frames of a wait inside of the C library
    return ["  " + line[:LINE] for line in r.stdout.splitlines() if line.startswith(("Thread ", "#")) and "/nptl/" not in line]


def show(pids):
    """What is known of each of these processes, as lines."""
    lines = []
    for pid in pids:
        parent, state = parents().get(pid, (0, "gone"))
        lines.append(f"process {pid} of {parent}, state {state}: {command(pid)}")
        lines += by_kernel(pid)
        if not is_python(pid) and shutil.which("gdb"):
            lines += by_gdb(pid)
    return lines


def end(root):
    """Shows what root (which may have ended) has started, lets Pythons write their stacks, and ends all of it; the lines."""
    there = [root, *descendants(root)]
    lines = show(there)
    for pid in there:
        try:
            os.kill(pid, signal.SIGCONT)
            if has_handler(pid):
                os.kill(pid, signal.SIGABRT)
        except ProcessLookupError:
            pass
    time.sleep(2)  # for what they write
    for pid in {*there, *descendants(root)}:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return lines


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print("\n".join(show([int(name), *descendants(int(name))])))
