"""A token endpoint of OAuth, with the keys by which brokers know its tokens."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

from tests.support.ports import free_port

AUDIENCE, ISSUER, SCOPE = "kafka", "https://tokens.example.org", "kafka.read"
_HOST = "127.0.0.1"


@dataclass
class TokenEndpoint:
    """Gives tokens to clients that know their secret, by the grant client_credentials; a client's token is of
    the user of its name. ``folder`` has its key. ``certificate`` is the keystore in PEM of what it shows, and
    may be changed while it runs.
    """

    folder: Path
    certificate: Path
    clients: dict[str, str] = field(default_factory=dict)
    lifetime_seconds: int = 300
    audience: str = AUDIENCE
    silent_seconds: float = 0
    """How long an answer takes."""
    asked: list[Mapping[str, list[str]]] = field(default_factory=list)
    """What each client that was given a token had asked for."""

    def __post_init__(self) -> None:
        self._port = free_port()
        self._server: ThreadingHTTPServer | None = None
        self._openssl("genrsa", "-out", "token.key", "2048")

    @property
    def url(self) -> str:
        return f"https://{_HOST}:{self._port}/token"

    @property
    def keys(self) -> Path:
        """The file with its public key, as a set of JSON web keys."""
        modulus = self._openssl("rsa", "-in", "token.key", "-noout", "-modulus").decode().strip()
        number = _encoded(bytes.fromhex(modulus.partition("=")[2]))
        key = {"kty": "RSA", "kid": "1", "use": "sig", "alg": "RS256", "n": number, "e": "AQAB"}
        file = self.folder / "jwks.json"
        file.write_text(json.dumps({"keys": [key]}))
        return file

    def start(self) -> None:
        """Answer from now on."""
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                status, said = endpoint.answer(self.path, self.headers.get("Authorization", ""), body)
                content = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: object) -> None:
                """Nothing."""

        server = _Server((_HOST, self._port), Handler)
        server.endpoint = self
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self._server = server

    def stop(self) -> None:
        """Be away."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, path: str, authorization: str, body: str) -> tuple[int, Mapping[str, object]]:
        """Status and document that answer a request."""
        time.sleep(self.silent_seconds)
        if path != "/token":
            return 404, {}
        name, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if self.clients.get(name) != secret:
            return 401, {"error": "invalid_client", "error_description": "the client is not known"}
        wanted = parse_qs(body)
        if wanted.get("scope", [SCOPE]) != [SCOPE]:
            return 400, {"error": "invalid_scope", "error_description": f"{name} has {SCOPE}"}
        self.asked.append(wanted)
        return 200, {"access_token": self.token(name), "token_type": "Bearer", "expires_in": 300}

    def token(self, name: str) -> str:
        """A new token for a client."""
        now = int(time.time())
        claims = {"sub": name, "aud": self.audience, "iss": ISSUER, "scope": SCOPE}
        claims |= {"iat": now, "exp": now + self.lifetime_seconds}
        parts = [json.dumps(each).encode() for each in ({"alg": "RS256", "kid": "1"}, claims)]
        text = ".".join(map(_encoded, parts))
        signature = self._openssl("dgst", "-sha256", "-sign", "token.key", given=text.encode())
        return f"{text}.{_encoded(signature)}"

    def _openssl(self, *arguments: str, given: bytes = b"") -> bytes:
        command = ["openssl", *arguments]
        done = subprocess.run(
            command, input=given, cwd=self.folder, check=True, capture_output=True, timeout=60
        )
        return done.stdout


class _Server(ThreadingHTTPServer):
    """Takes each connection with the certificate that the endpoint has then, in the connection's thread."""

    daemon_threads = True
    endpoint: TokenEndpoint

    def finish_request(self, request: object, client_address: object) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.endpoint.certificate)
        with context.wrap_socket(request, server_side=True) as secured:  # type: ignore[arg-type]
            super().finish_request(secured, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that does not trust the certificate hangs up."""


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
