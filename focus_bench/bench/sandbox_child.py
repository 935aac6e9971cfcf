"""Runs one untrusted Python program behind walls; started by sandbox.py, never imported by it.

Standard library only, since it runs without the package (`python -I`). Knows no task and no score:
it says how the program ended. Three walls: limits of the kernel on time, memory and files; where
Linux offers them, a seccomp filter (no sockets, no new processes) and Landlock (no writes outside
the working folder); and an audit hook, which ends the process at the first attempt and so can name
it. The hook is Python's and no wall against native code; the other two are.
"""

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import NoReturn

_MEBIBYTE = 1 << 20
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2  # prctl(2)

# seccomp(2): numbers of the audit architecture and of the calls that are refused, by machine.
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED_CALLS = {
    # socket, socketpair, connect, fork, vfork, execve, ptrace, unshare, kill, tkill, execveat,
    # io_uring_setup (opens sockets without the other calls)
    "x86_64": (41, 53, 42, 57, 58, 59, 101, 272, 62, 200, 322, 425),
    "aarch64": (198, 199, 203, 221, 117, 97, 129, 130, 281, 425),
}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_CLONE_THREAD = 0x00010000
_X32_BIT = 0x40000000

# Landlock(7): every right to change files that ABI 1 has, and those that later ABIs added.
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_WRITES = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12))
_LANDLOCK_REFER, _LANDLOCK_TRUNCATE = 1 << 13, 1 << 14

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PROCESS_EVENTS = (
    *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"),
    *("subprocess.Popen", "os.kill", "os.killpg", "pty.spawn", "signal.pthread_kill"),
)
_PATH_EVENTS = {  # how many of the first arguments are paths
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod"), 1),
    **dict.fromkeys(("os.chown", "os.utime", "os.setxattr", "os.removexattr"), 1),
    **dict.fromkeys(("sqlite3.connect", "shutil.rmtree", "os.mkfifo", "os.mknod"), 1),
    **dict.fromkeys(("os.rename", "os.link", "os.symlink"), 2),
}


class Outcome:
    """Says once how the program ended, and ends the process."""

    def __init__(self, descriptor: int, token: str) -> None:
        self._descriptor = descriptor
        self._token = token

    def end(self, verdict: str, detail: str = "") -> NoReturn:
        """Write the verdict behind the token and leave; nothing can catch it."""
        message = json.dumps([self._token, verdict, detail[:500]])
        os.write(self._descriptor, message.encode())
        os._exit(0)


def set_limits(*, seconds: float, memory_mb: int, file_mb: int) -> None:
    """Limits of the kernel: CPU time, address space, size of a file, open files."""
    memory, size = memory_mb * _MEBIBYTE, file_mb * _MEBIBYTE
    cpu = int(seconds) + 2  # threads can use more than the clock says, but not for ever
    limits = (
        (resource.RLIMIT_CPU, (cpu, cpu)),
        (resource.RLIMIT_AS, (memory, memory)),
        (resource.RLIMIT_FSIZE, (size, size)),
        (resource.RLIMIT_NOFILE, (64, 64)),
        (resource.RLIMIT_CORE, (0, 0)),
    )
    for kind, pair in limits:
        resource.setrlimit(kind, pair)


def refuse_network_and_processes() -> bool:
    """A seccomp filter: sockets, new processes and signals fail with EPERM; threads still start.

    Returns whether this kernel took it.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _ARCHITECTURES:
        return False
    load, jump_equal, jump_set, result = 0x20, 0x15, 0x45, 0x06
    kill, allow, refuse = 0x80000000, 0x7FFF0000, 0x00050000 | errno.EPERM
    absent = 0x00050000 | errno.ENOSYS  # libc then falls back to clone, whose flags can be read
    program = [
        (load, 0, 0, 4),  # the architecture of the call
        (jump_equal, 1, 0, _ARCHITECTURES[machine]),
        (result, 0, 0, kill),
        (load, 0, 0, 0),  # the number of the call
        (jump_set, 0, 1, _X32_BIT),  # x86-64 has every call a second time under these numbers
        (result, 0, 0, kill),
        (jump_equal, 0, 1, _CLONE3),
        (result, 0, 0, absent),
    ]
    for call in _REFUSED_CALLS[machine]:
        program += [(jump_equal, 0, 1, call), (result, 0, 0, refuse)]
    program += [
        (jump_equal, 0, 3, _CLONE[machine]),
        (load, 0, 0, 16),  # the low half of the first argument
        (jump_set, 1, 0, _CLONE_THREAD),
        (result, 0, 0, refuse),
        (result, 0, 0, allow),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    instructions = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return False
    return not libc.prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.c_char_p(header), 0, 0)


def refuse_writes_outside(folder: str) -> bool:
    """Landlock: files change below `folder` only. Returns whether this kernel took it."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    rights = _LANDLOCK_WRITES
    rights |= (_LANDLOCK_REFER if version >= 2 else 0) | (_LANDLOCK_TRUNCATE if version >= 3 else 0)
    ruleset = struct.pack("Q", rights)
    descriptor = libc.syscall(_LANDLOCK_CREATE, ruleset, ctypes.c_size_t(len(ruleset)), 0)
    if descriptor < 0:
        return False
    of_files = (1 << 1) | (rights & _LANDLOCK_TRUNCATE)
    try:
        for path, granted in ((folder, rights), (os.devnull, of_files)):
            parent = os.open(path, os.O_RDONLY)
            rule = struct.pack("=Qi", granted, parent)
            refused = libc.syscall(_LANDLOCK_ADD, descriptor, 1, rule, 0)
            os.close(parent)
            if refused:
                return False
        if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            return False
        return not libc.syscall(_LANDLOCK_RESTRICT, descriptor, 0)
    finally:
        os.close(descriptor)


def auditor(outcome: Outcome, folder: str) -> Callable[[str, tuple[object, ...]], None]:
    """The audit hook: ends the process with a verdict at the first forbidden event."""

    def is_outside(path: object) -> bool:
        if isinstance(path, int):  # an open descriptor: it was judged when it was opened
            return False
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else str(path)
        if text in (os.devnull, ":memory:"):
            return False
        # A link counts by its own place and by where it leads.
        parent = os.path.realpath(os.path.dirname(text) or ".")
        places = (os.path.join(parent, os.path.basename(text)), os.path.realpath(text))
        return any(p != folder and not p.startswith(folder + os.sep) for p in places)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = isinstance(flags, int) and flags & _WRITING
            writes = writes or (isinstance(mode, str) and any(c in mode for c in "wax+"))
            if writes and is_outside(path):
                outcome.end("file outside", f"open {path}")
        elif event.startswith("socket."):
            outcome.end("network", event)
        elif event in _PROCESS_EVENTS:
            outcome.end("process", event)
        elif event in _PATH_EVENTS:
            for path in arguments[: _PATH_EVENTS[event]]:
                if is_outside(path):
                    outcome.end("file outside", f"{event} {path}")
        elif event == "ctypes.dlsym" or (event == "ctypes.dlopen" and arguments[0] is not None):
            outcome.end("native code", event)

    return hook


def run(program: str, outcome: Outcome) -> NoReturn:
    """Execute `program` as a main module; an exception in it is a verdict."""
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except MemoryError:
        outcome.end("memory")
    except SystemExit as error:
        outcome.end("exited", f"SystemExit({error.code})")
    except OSError as error:
        if error.errno == errno.EFBIG:
            outcome.end("file size", str(error))
        outcome.end("failed", f"{type(error).__name__}: {error}")
    except BaseException as error:
        outcome.end("failed", f"{type(error).__name__}: {error}")
    outcome.end("passed")


def main() -> NoReturn:
    """Read the order from standard input: a JSON object with program, token and limits."""
    order = json.loads(sys.stdin.buffer.read())
    outcome = Outcome(int(order["descriptor"]), order["token"])
    folder = os.path.realpath(os.getcwd())
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    sys.dont_write_bytecode = True
    set_limits(seconds=order["seconds"], memory_mb=order["memory_mb"], file_mb=order["file_mb"])
    refuse_writes_outside(folder)
    refuse_network_and_processes()
    sys.addaudithook(auditor(outcome, folder))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever it is doing
    signal.setitimer(signal.ITIMER_REAL, order["seconds"])
    run(order["program"], outcome)


if __name__ == "__main__":
    main()
