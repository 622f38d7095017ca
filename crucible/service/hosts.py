"""Which hosts are this machine."""

import ipaddress


def is_loopback(host: str) -> bool:
    """The host (in small letters) is localhost or a loopback address: only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
