"""A PostgreSQL server on a host of its own, which is reached over the network."""

from psycopg.conninfo import make_conninfo

from tests.campaigns.jepsen.network import POSTGRES, Network, address
from tests.support.postgres_server import PostgresServer


class NetworkedPostgres(PostgresServer):
    """Its data and its address survive kills."""

    def __init__(self, network: Network) -> None:
        super().__init__(max_prepared_transactions=64, listen_addresses=address(POSTGRES))
        self._network = network
        self.permit("host all all 10.78.0.0/24 scram-sha-256")

    @property
    def conninfo(self) -> str:
        return make_conninfo(super().conninfo, host=address(POSTGRES))

    def start(self) -> None:
        with self._network.on(POSTGRES):
            super().start()
