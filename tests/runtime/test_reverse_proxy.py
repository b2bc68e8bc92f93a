"""The console works behind nginx with the configuration of docs/operations.md, on any port."""

from __future__ import annotations

import contextlib
import http.cookiejar
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.process_harness import wait_until

ROOT = Path(__file__).parents[2]
PASSWORD = "correct horse battery"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
CONFIGURATION = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {folder}/certificate.pem;
        ssl_certificate_key {folder}/key.pem;
        {location}
    }}
}}
"""

pytestmark = [
    pytest.mark.sqlite_only,
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed"),
]


def read_documented_location() -> str:
    page = (ROOT / "docs" / "operations.md").read_text()
    match = re.search(r"^    location / \{\n.*?^    \}\n", page, re.M | re.S)
    assert match
    return match[0]


def write_certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


@contextlib.contextmanager
def run(argv: list[str], log: Path, port: int, **env: str) -> Iterator[None]:
    """Run a server until the end of the block, which begins when it listens on its port."""
    with log.open("wb") as file:
        process = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, **env}, stdout=file, stderr=file)
    try:
        wait_until(lambda: process.poll() is not None or is_listening(port), f"{argv[0]} listens")
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(30)


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Return the URL of nginx in front of the web process, with the settings of production."""
    env = {
        "ENVIRONMENT": "production",
        "SECRET_KEY": os.urandom(32).hex(),
        "ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        "ALLOWED_HOSTS": "localhost",
        "DB_PATH": str(tmp_path / "event_service.db"),
        "DATABASE_URL": "",
        "DJANGO_SUPERUSER_PASSWORD": PASSWORD,
    }
    for command in (
        ["migrate", "-v0"],
        ["createsuperuser", "--noinput", "--username=ada", "--email=ada@localhost"],
    ):
        subprocess.run(
            [sys.executable, "manage.py", *command],
            cwd=ROOT,
            env={**os.environ, **env},
            check=True,
            stdout=subprocess.DEVNULL,
        )
    web, proxy = find_free_port(), find_free_port()
    write_certificate(tmp_path)
    location = read_documented_location().replace("127.0.0.1:8000", f"127.0.0.1:{web}")
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(folder=tmp_path, port=proxy, location=location))
    gunicorn = [
        sys.executable, "-m", "gunicorn", "-c", "python:eventservice.runtime.gunicorn_config", "eventservice.wsgi",
        "--bind", f"127.0.0.1:{web}",
    ]  # fmt: skip
    nginx = [str(NGINX), "-p", str(tmp_path), "-c", str(configuration)]
    with run(gunicorn, tmp_path / "web.log", web, **env), run(nginx, tmp_path / "nginx.log", proxy):
        yield f"https://localhost:{proxy}"


def test_an_operator_can_sign_in_on_another_port_than_443(url: str, tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=tmp_path / "certificate.pem")
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context),
        urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()),
    )
    with opener.open(f"{url}/login/") as response:
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', response.read().decode())
    assert token
    form = {"username": "ada", "password": PASSWORD, "csrfmiddlewaretoken": token[1]}

    def sign_in(origin: str) -> Any:
        """Send the form as a browser does, with the origin of the page that it is on."""
        headers = {"Origin": origin, "Referer": f"{origin}/login/"}
        return opener.open(
            urllib.request.Request(f"{url}/login/", urllib.parse.urlencode(form).encode(), headers)
        )

    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        sign_in("https://localhost:1")
    refused.value.close()
    with sign_in(url) as response:
        assert response.url == f"{url}/"
        assert "Sign out" in response.read().decode()
