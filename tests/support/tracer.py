"""Runs a command and kills it with SIGKILL at its N-th change below a directory: `python tests/support/tracer.py ... -- COMMAND`.

A change is a system call that writes, syncs, renames, removes, truncates or creates something there. Changes are counted over all
threads in the order in which they enter the kernel (strace counts per thread, so its N-th call is not well-defined). The call at
which the process is killed is not executed; with --torn-bytes, a pwritev writes that many bytes first. The report has the process
id, then a line per change, the last one being where it was killed. SIGTERM is forwarded. Linux on x86-64 only; needs the right to
trace its own children. Imports only the standard library, since it starts often."""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import signal
import struct
import subprocess
import sys
from typing import NamedTuple, TextIO

# asm/unistd_64.h. The kind tells where the path is: behind a descriptor, below a directory's descriptor, or given itself.
_FD, _AT, _PATH = "fd", "at", "path"
_CALLS = {
    1: ("write", _FD),
    18: ("pwrite64", _FD),
    20: ("writev", _FD),
    74: ("fsync", _FD),
    75: ("fdatasync", _FD),
    76: ("truncate", _PATH),
    77: ("ftruncate", _FD),
    82: ("rename", _PATH),
    83: ("mkdir", _PATH),
    84: ("rmdir", _PATH),
    87: ("unlink", _PATH),
    257: ("create", _AT),
    258: ("mkdir", _AT),
    263: ("unlink", _AT),
    264: ("rename", _AT),
    285: ("fallocate", _FD),
    296: ("pwritev", _FD),
    316: ("rename", _AT),
    328: ("pwritev", _FD),
}
_OPENAT = 257
_AUDIT_ARCH_X86_64 = 0xC000003E
_AT_FDCWD = -100
_WALL = 0x40000000

_PTRACE_CONT = 7
_PTRACE_SYSCALL = 24
_PTRACE_SEIZE = 0x4206
_PTRACE_GET_SYSCALL_INFO = 0x420E
_OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x80 | 0x100000  # syscall-good, fork, vfork, clone, seccomp, exit-kill
_EVENT_SECCOMP = 7

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_RET_TRACE = 0x7FF00000
_RET_ALLOW = 0x7FFF0000
_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class Change(NamedTuple):
    """A system call that would change something."""

    name: str
    path: str
    arguments: tuple[int, ...]


def why_not() -> str:
    """Why tracing is impossible here; "" if it is possible."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"the sweep knows the system calls of Linux on x86-64 only, not of {sys.platform} on {platform.machine()}"
    trial = [sys.executable, __file__, "--directory", os.devnull, "--report", os.devnull, "--", "true"]
    ended = subprocess.run(trial, capture_output=True, text=True, check=False)
    return f"the sweep must trace the broker, and may not: {ended.stderr.strip()}" if ended.returncode else ""


def main() -> int:
    """The command line; returns the command's exit code, or 128 + n if signal n ended it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--report", required=True)
    parser.add_argument("--kill-at", type=int, default=0, help="0 = never")
    parser.add_argument("--torn-bytes", type=int, default=-1, help="-1 = nothing of the call is executed")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))  # its parent may be killed too
    pid = _start(args.command)
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(pid, number))
    with open(args.report, "w", buffering=1) as report:
        print(pid, file=report)
        return _Tracer(pid, os.path.abspath(args.directory), report, args.kill_at, args.torn_bytes).run()


def _start(command: list[str]) -> int:
    """Forks a child that is traced before it executes the command."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(writer)
            os.read(reader, 1)  # until traced: without a tracer, the filtered calls fail
            _install_filter()
            os.execvp(command[0], command)
        except BaseException as error:
            print(f"{command[0]}: {error}", file=sys.stderr)
        finally:
            os._exit(127)
    try:
        _ptrace(_PTRACE_SEIZE, pid, 0, _OPTIONS)
    except OSError as error:
        raise SystemExit(f"this machine does not let a process trace its child: {error}") from None
    os.close(reader)
    os.write(writer, b"x")
    os.close(writer)
    return pid


def _install_filter() -> None:
    """Stops at the calls of _CALLS, at openat only if it may create; all other calls run normally."""
    jumps = [number for number in _CALLS if number != _OPENAT]
    trace = 6 + len(jumps)  # index of the instruction that traces; the next one allows
    program = [(_LOAD, 0, 0, 4), (_JUMP_EQUAL, 0, trace + 1 - 2, _AUDIT_ARCH_X86_64), (_LOAD, 0, 0, 0)]
    for number in jumps:
        program.append((_JUMP_EQUAL, trace - len(program) - 1, 0, number))
    program.append((_JUMP_EQUAL, 0, trace + 1 - len(program) - 1, _OPENAT))
    program += [(_LOAD, 0, 0, 32), (_JUMP_SET, 0, 1, os.O_CREAT), (_RETURN, 0, 0, _RET_TRACE), (_RETURN, 0, 0, _RET_ALLOW)]
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("@HxxxxxxP", len(program), ctypes.addressof(buffer)))
    zero = ctypes.c_ulong(0)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    if _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), header, zero, zero):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


def _ptrace(request: int, pid: int, address: int, data: int | ctypes.Array[ctypes.c_char]) -> int:
    result = _libc.ptrace(request, pid, address, data if isinstance(data, int) else ctypes.addressof(data))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


class _Tracer:
    def __init__(self, pid: int, directory: str, report: TextIO, kill_at: int, torn_bytes: int) -> None:
        self._pid = pid
        self._directory = directory
        self._report = report
        self._kill_at = kill_at
        self._torn_bytes = torn_bytes
        self._count = 0
        self._tearing = 0  # the thread whose torn call is under way

    def run(self) -> int:
        """Traces until the process has ended."""
        code = 0
        while True:
            try:
                tid, status = os.waitpid(-1, _WALL)
            except ChildProcessError:
                return code
            if os.WIFSTOPPED(status):
                try:
                    self._stopped(tid, os.WSTOPSIG(status), status >> 16)
                except ProcessLookupError:
                    continue  # killed meanwhile
            elif tid == self._pid:
                code = os.waitstatus_to_exitcode(status)
                code = 128 - code if code < 0 else code

    def _stopped(self, tid: int, number: int, event: int) -> None:
        if event == _EVENT_SECCOMP:
            change = self._change(tid)
            if change is None:
                _ptrace(_PTRACE_CONT, tid, 0, 0)
            else:
                self._changes(tid, change)
        elif number == signal.SIGTRAP | 0x80:
            if tid == self._tearing:
                os.kill(self._pid, signal.SIGKILL)
            else:
                _ptrace(_PTRACE_CONT, tid, 0, 0)
        else:
            # Resume a new thread, a group stop and the like; deliver a signal.
            _ptrace(_PTRACE_CONT, tid, 0, 0 if event else number)

    def _changes(self, tid: int, change: Change) -> None:
        if self._tearing:
            return  # leave the thread stopped until the process ends
        self._count += 1
        print(f"{change.name} {os.path.relpath(change.path, self._directory)}", file=self._report)
        if self._count != self._kill_at:
            _ptrace(_PTRACE_CONT, tid, 0, 0)
        elif self._torn_bytes >= 0 and change.name == "pwritev":
            self._tearing = tid
            _shorten(tid, change.arguments[1], change.arguments[2], self._torn_bytes)
            _ptrace(_PTRACE_SYSCALL, tid, 0, 0)
        else:
            os.kill(self._pid, signal.SIGKILL)

    def _change(self, tid: int) -> Change | None:
        """The call at which a thread has stopped, if it concerns the directory."""
        info = ctypes.create_string_buffer(88)
        _ptrace(_PTRACE_GET_SYSCALL_INFO, tid, len(info), info)
        number, *arguments = struct.unpack_from("<Q6Q", info.raw, 24)
        name, kind = _CALLS[number]
        if kind == _FD:
            path = _descriptor(tid, arguments[0])
        elif kind == _PATH:
            path = os.path.join(_link(f"/proc/{tid}/cwd"), _text(tid, arguments[0]))
        else:
            fd = ctypes.c_int(arguments[0] & 0xFFFFFFFF).value
            directory = _link(f"/proc/{tid}/cwd") if fd == _AT_FDCWD else _descriptor(tid, fd)
            path = os.path.join(directory, _text(tid, arguments[1]))
        if path != self._directory and not path.startswith(self._directory + "/"):
            return None
        return Change(name, path, tuple(arguments))


def _descriptor(tid: int, fd: int) -> str:
    return _link(f"/proc/{tid}/fd/{fd & 0xFFFFFFFF}")


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _text(tid: int, address: int) -> str:
    """A zero-terminated string in the memory of a process."""
    with open(f"/proc/{tid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return (memory.read(256) or b"").split(b"\0", 1)[0].decode()


def _shorten(tid: int, address: int, count: int, size: int) -> None:
    """Limits the buffers of a pwritev to `size` bytes in total."""
    with open(f"/proc/{tid}/mem", "r+b", buffering=0) as memory:
        for index in range(count):
            memory.seek(address + 16 * index + 8)
            length = struct.unpack("<Q", memory.read(8))[0]
            kept = min(length, size)
            size -= kept
            memory.seek(address + 16 * index + 8)
            memory.write(struct.pack("<Q", kept))


if __name__ == "__main__":
    raise SystemExit(main())
