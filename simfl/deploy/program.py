"""The program of a hub's or a party's process, and of the jobs that FLARE starts from it: FLARE's own, with additions.

They end when the process that started them is gone, on every system; a job does so while it still loads, too. FLARE
keeps no list of revoked certificates: here OpenSSL gets the list of the kit, and refuses a revoked certificate in the
TLS handshake, at the hub that of a party or of the submitter, at a party that of the hub. And FLARE's hub checks the
signature of a party's token with every message that it relays: here once per token.
"""

from __future__ import annotations

import runpy
import ssl
import sys
from pathlib import Path
from typing import Any

from simfl.privacy.certificates import REVOKED
from simfl.transport.lifetime import exit_with_parent

MOST_TOKENS = 100_000  # a party gets one whenever it connects


def refuse_revoked(path: Path) -> None:
    """Have every TLS connection of this process check the list in this file, as it is when a connection begins."""
    from nvflare.fuel.f3.drivers import tcp_driver  # the driver that a kit names

    original = tcp_driver.get_ssl_context

    def with_list(params: dict[str, Any], ssl_server: bool) -> ssl.SSLContext | None:
        context: ssl.SSLContext | None = original(params, ssl_server)
        if context is not None:
            context.load_verify_locations(path)
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        if context is not None and ssl_server:  # FLARE makes one for all connections: each gets its own, with the list
            context.sni_callback = lambda connection, name, own: setattr(connection, "context", with_list(params, True))
            context.num_tickets = 0  # a resumed session would not show its certificate again
        return context

    tcp_driver.get_ssl_context = with_list


def remember_verified() -> None:
    """Have a signature that was found valid not checked again: the same name, token, signature and certificate."""
    from nvflare.private.fed.utils.identity_utils import TokenVerifier

    original = TokenVerifier.verify
    valid: set[tuple[Any, ...]] = set()

    def verify(verifier: Any, client_name: str, token: str, signature: Any) -> bool:
        what = (verifier.cert, client_name, token, signature)
        if what not in valid:
            if not original(verifier, client_name, token, signature):
                return False
            if len(valid) >= MOST_TOKENS:
                valid.clear()
            valid.add(what)
        return True

    TokenVerifier.verify = verify


def start_jobs_here() -> None:
    """Have the process of a job begin with this program, which watches its parent before anything is loaded."""
    from nvflare.app_common.job_launcher import process_launcher

    original = process_launcher.spawn_process

    def spawn(argv: list[str], env: dict[str, str]) -> Any:
        interpreter, switch, module, *rest = argv
        if switch != "-m":
            return original(argv, env)
        return original([interpreter, switch, "simfl.deploy.program", "job", module, *rest], env)

    process_launcher.spawn_process = spawn


def run(module: str) -> None:
    """Be this module of FLARE's."""
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    exit_with_parent()
    side = sys.argv.pop(1)
    if side == "job":
        run(sys.argv.pop(1))
    else:
        refuse_revoked(Path(sys.argv[2]) / "startup" / REVOKED)
        remember_verified()
        start_jobs_here()
        run(f"nvflare.private.fed.app.{side}.{side}_train")
