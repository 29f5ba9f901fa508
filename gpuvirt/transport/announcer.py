"""Says in the network that this server is there, by multicast DNS, until it ends (`serve --announce`)."""

from __future__ import annotations

import ipaddress
import logging
import secrets
from typing import TYPE_CHECKING

from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.announcement import NAME_MOST, SERVICE, Announcement

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

log = logging.getLogger("gpuvirt.server")

ALL = ("0.0.0.0", "::")


def check_installed() -> None:
    """Raises:
    GpuvirtError: what announcing needs is not installed.
    """
    try:
        import zeroconf  # noqa: F401
    except ImportError:
        raise GpuvirtError("--announce needs the Python package zeroconf; pip install 'gpuvirt[discovery]'") from None


class Announcer:
    """Args:
    announcement: its addresses are not used: they are those of this machine at which it listens.
    host, port: of the listening socket.
    """

    def __init__(self, announcement: Announcement, host: str, port: int) -> None:
        self._announcement, self._host, self._port = announcement, host, port
        self._zeroconf: AsyncZeroconf | None = None

    async def start(self) -> None:
        """Raises:
        GpuvirtError: nothing can be said on this network.
        """
        import ifaddr
        from zeroconf import Error as ZeroconfError
        from zeroconf import InterfaceChoice, IPVersion
        from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

        everywhere = self._host in ALL
        mine = [str(ip.ip) for adapter in ifaddr.get_adapters() for ip in adapter.ips if ip.is_IPv4]
        addresses = [text for text in mine if not ipaddress.ip_address(text).is_loopback] if everywhere else [self._host]
        if not addresses:
            raise GpuvirtError("--announce: this machine has no address but those that only itself reaches")
        name = self._announcement.name.encode()[:NAME_MOST].decode(errors="ignore")
        info = AsyncServiceInfo(
            SERVICE,
            f"{name}.{SERVICE}",
            port=self._port,
            parsed_addresses=addresses,
            properties=self._announcement.properties(),
            server=f"gpuvirt-{secrets.token_hex(8)}.local.",  # not the machine's own name, which others announce
        )
        version = IPVersion.V6Only if ":" in addresses[0] else IPVersion.V4Only
        try:
            self._zeroconf = AsyncZeroconf(InterfaceChoice.All if everywhere else addresses, ip_version=version)
            await self._zeroconf.async_register_service(info, allow_name_change=True)
        except (OSError, ZeroconfError) as error:
            await self.close()
            raise GpuvirtError(f"--announce: nothing can be said on this network: {str(error) or type(error).__name__}") from None
        log.info("announced in this network as %s", info.name.removesuffix("." + SERVICE))

    async def close(self) -> None:
        """Takes it back."""
        zeroconf, self._zeroconf = self._zeroconf, None
        if zeroconf is not None:
            await zeroconf.async_unregister_all_services()
            await zeroconf.async_close()
