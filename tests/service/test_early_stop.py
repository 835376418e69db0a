"""A first start, with no kernel compiled: it says how far it is, and can be ended at once."""

import os
import signal
import subprocess
import sys


def test_sigterm_while_kernels_are_compiled(tmp_path):
    nothing_compiled = {
        "XDG_CACHE_HOME": str(tmp_path / "compiled"),
        "NUMBA_CPU_NAME": "x86-64-v2",
    }
    command = "serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --data".split()
    with subprocess.Popen(
        [sys.executable, "-m", "embstore_server", *command, str(tmp_path / "store")],
        stderr=subprocess.PIPE, env=os.environ | nothing_compiled, text=True,
    ) as server:  # fmt: skip
        assert server.stderr is not None
        for line in server.stderr:
            if "preparing kernels" in line:
                server.send_signal(signal.SIGTERM)
                break
        rest = server.stderr.read()
    assert server.returncode == 0, rest
    assert "stopped" in rest and "nothing was open" in rest
    assert "kernels prepared" not in rest
    assert not (tmp_path / "store").exists()
