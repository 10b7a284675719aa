"""A palimpsest server as a child process, for the scripts that drive one."""

import contextlib
import subprocess
import threading


@contextlib.contextmanager
def served(program, model, *flags, key="a key of this test"):
    """Yields the server's address. Its log goes to nowhere; it must end with code 0 when it is told."""
    command = [program, "serve", "-m", model, "--port", "0", "--alias", "demo", "--shutdown-time", "0", *flags]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={"PALIMPSEST_API_KEY": key})
    address = None
    for line in child.stderr:
        if " on http://" in line:
            address = line.split(" on ")[1].split(": ")[0]
            break
    if address is None:
        raise SystemExit(f"the server ended with code {child.wait()}")
    drain = threading.Thread(target=lambda: [None for _ in child.stderr], daemon=True)
    drain.start()
    try:
        yield address
    finally:
        child.terminate()
        code = child.wait(60)
        if code != 0:
            raise SystemExit(f"the server ended with code {code}")
