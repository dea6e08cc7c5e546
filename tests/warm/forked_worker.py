"""Ray starts this file where it would start its own `setup_worker.py`: it has the worker forked (`warm_worker.py`), and lives as long as the worker."""

import ctypes
import json
import os
import shlex
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1


def ask(arguments: list[str]) -> int:
    """Have the worker forked whose arguments Ray gives here; the exit status of this process, once the worker has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the worker ends with Ray, also where Ray is killed
    context = {}
    own = [one for one in arguments if one.startswith(("--serialized-runtime-env-context=", "--language="))]
    for one in own:
        if one.startswith("--serialized"):
            context = json.loads(one.partition("=")[2])
    if prefix := context.get("command_prefix"):  # cd FOLDER &&: the working directory of a job
        os.chdir(shlex.split(prefix[1])[0])
    rest = [one for one in arguments if one not in own]
    if rest[0] == "-m":  # no worker, but the server of Ray's clients
        os.execv(sys.executable, [sys.executable, *rest])
    wanted = {
        "arguments": rest,
        "environment": os.environ | context.get("env_vars", {}),
        "folder": os.getcwd(),
        "group": 0,  # Ray ends a worker with its process group
        "nice": os.nice(0),
    }
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.environ["RAYDENSE_TEST_WARM_WORKERS"])
    socket.send_fds(connection, [json.dumps(wanted).encode()], [0, 1, 2])
    worker = int(connection.recv(64))
    signal.signal(signal.SIGTERM, lambda *_: os.kill(worker, signal.SIGTERM))
    return int(connection.recv(64) or b"1")


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1:]))
