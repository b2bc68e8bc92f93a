"""How the kinds of errors are written for operators. The API and the database use the kinds themselves."""

from __future__ import annotations

from execution.outcome import ErrorKind

ERROR_NAMES = {
    ErrorKind.TIMEOUT: "Timed out",
    ErrorKind.DNS: "DNS lookup failed",
    ErrorKind.CONNECT: "Connection failed",
    ErrorKind.TLS: "TLS failed",
    ErrorKind.PROTOCOL: "Invalid response",
    ErrorKind.TOO_LARGE: "Response too large",
    ErrorKind.HTTP_STATUS: "Error status",
    ErrorKind.REJECTED: "Callback not done",
    ErrorKind.EGRESS: "Address not allowed",
    ErrorKind.INTERRUPTED: "Outcome unknown",
    ErrorKind.MEMORY: "Too little memory",
    ErrorKind.EXPIRED: "Started too late",
}
ERROR_EXPLANATIONS = {
    ErrorKind.TIMEOUT: "The target did not respond in time.",
    ErrorKind.DNS: "The host name could not be resolved.",
    ErrorKind.CONNECT: "The connection to the host failed.",
    ErrorKind.TLS: "The TLS handshake failed: the host's certificate or encryption was not accepted.",
    ErrorKind.PROTOCOL: "The response was not valid HTTP, or the connection was closed early.",
    ErrorKind.TOO_LARGE: "The response was too large.",
    ErrorKind.HTTP_STATUS: "The target responded with an error status.",
    ErrorKind.REJECTED: 'The callback did not respond with {"ok": true}.',
    ErrorKind.EGRESS: "The request was not sent: the egress rules of this service forbid it.",
    ErrorKind.INTERRUPTED: "The outcome is unknown: the process that made the attempt ended.",
    ErrorKind.MEMORY: "The request was not sent: the engine has too little memory for it.",
    ErrorKind.EXPIRED: "The request was not sent: it was late, and another deployment may have sent it since.",
}


def get_error_name(kind: str | None, status: int | None = None) -> str:
    """Return a few words for a kind of error, with the status code of the response if that was the error."""
    if status and kind in (None, ErrorKind.HTTP_STATUS):
        return f"HTTP {status}"
    found = _find_kind(kind)
    return ERROR_NAMES[found] if found else str(kind or "")


def explain_error_kind(kind: str | None) -> str:
    """Return a sentence, or an empty string for an unknown kind."""
    found = _find_kind(kind)
    return ERROR_EXPLANATIONS[found] if found else ""


def _find_kind(kind: str | None) -> ErrorKind | None:
    """Rows may have kinds of another version of the service."""
    return next((known for known in ErrorKind if known == kind), None)
